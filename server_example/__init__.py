"""Servers that show how `reaper` is embedded.

The rule of this room: *it uses the public names of `reaper` only*. Read `echo` (the whole embedding on one page) and
`http` (a limit for every kind of idleness); then `workers` (processes that share a port), `listening`, `notify`,
`bulletins`, `tls`. `__main__` is the command line.
"""
