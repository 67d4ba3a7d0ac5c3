"""Servers that show how `reaper` is embedded.

The rule of this room: *it uses the public names of `reaper` only*. Read `echo` (the embedding),
`serving` (a process from its first accept to the end of its drain) and `http` (a limit for every
kind of idleness); then `workers` (processes that share a port), `listening`, `planning`, `notify`,
`status`. `__main__` is the command line.
"""
