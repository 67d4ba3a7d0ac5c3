"""tornado, guarded by `reaper run`: each request tells its stream which one it is."""
