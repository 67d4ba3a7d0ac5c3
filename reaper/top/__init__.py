"""`python -m reaper top`: a live view of a server's connections on a terminal.

The rule of this room: *looking touches nothing*. `sources` asks for a status document:
a server's own, by HTTP, or one that is made from what the kernel knows of a process.
`picture` reckons with it, and `view` draws it. `command` has the flags, and waits in
between.
"""
