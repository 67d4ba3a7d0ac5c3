"""How long each limit of the guarded servers is.

One rule: *no two are as long*, so that the instant of an end says which limit it was.
Two that may be taken for each other differ by more than a tick and what a machine with
other work is late.
"""

from __future__ import annotations

LENGTHS = {
    "handshake": 0.8,
    "headers": 1.0,
    "write": 1.1,
    "idle": 1.2,
    "first_byte": 1.35,
    "body": 1.5,
    "tunnel": 1.7,
    "keep_alive": 1.9,
    "half_closed": 2.3,
}
"""Seconds of each limit, by its name among `timeouts`."""
