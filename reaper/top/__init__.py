"""`python -m reaper top`: a live view of a server's connections on a terminal.

The rule of this room: *looking touches nothing*. `sources` asks for a picture (a server's own
status by HTTP, or what the kernel knows of a process), `picture` reckons with it, `view` draws it;
`command` has the flags, and waits in between.
"""
