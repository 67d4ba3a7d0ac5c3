"""The idle connections of any running server, in any language; and of this process, without a touch
per packet.

`python -m reaper attach` watches other processes. `Guard` watches sockets of this one.
"""

from __future__ import annotations

from ..errors import needs

with needs("reaper.attach", "idle-reaper[attach]"):
    from .guard import Guard
    from .judge import Limits
    from .watch import Event

__all__ = ["Guard", "Event", "Limits"]
