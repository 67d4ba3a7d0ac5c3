"""tornado, guarded by `reaper run`: each stream learns which request it serves."""
