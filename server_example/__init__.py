"""Servers that show how `reaper` is embedded. They use its public names only."""
