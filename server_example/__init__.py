"""A reference server: echo and HTTP/1.1 with all that a server in production needs
around `reaper`.

The rule of this room: *it uses the public names of `reaper` only*. README.md in this
folder says in which order to read it. Small programs to copy are in `examples/`.
"""
