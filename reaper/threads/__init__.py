"""The adapter for threads: one thread of its own wakes when something is due, and
sleeps otherwise.

The rule of this room: *one lock, never held while a function of the program runs*.
`reaping` has the thread, `keeper` what programs call, `status` their `/metrics`.

Stability: public.
"""

from __future__ import annotations

from ..errors import needs

with needs("reaper.threads", "idle-reaper"):
    from .keeper import ThreadKeeper, open_keeper
    from .reaping import ThreadReaper
    from .status import serve_status

__all__ = ["open_keeper", "ThreadKeeper", "ThreadReaper", "serve_status"]
