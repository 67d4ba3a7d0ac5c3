"""The idle connections of any running server, in any language, by what the kernel knows
of them.

The rule of this room: *the data path is not touched*. `python -m reaper attach` watches
other processes; `Guard` watches sockets of this one. Nothing is called per packet: the
kernel is asked.

In the order of reading: `tcpinfo` (what the kernel says of a connection), `judge` (what
follows from it), `watch` (when to ask again), `netlink`, `kernel` and `sockets` (how to
ask), `targets` (whose connections), `closing` (how to end one), `runner` and `command`
(the loop and the flags).

Stability: provisional.
"""

from __future__ import annotations

from ..errors import needs

with needs("reaper.attach", "idle-reaper[attach]"):
    from .guard import Guard
    from .judge import Limits
    from .watch import Event

__all__ = ["Guard", "Event", "Limits"]
