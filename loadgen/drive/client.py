"""One connection of a worker: where it is in its plan, and what it knows of the server.

One rule: plain slots and no more of them than needed. There are 17,000 of these in a process, each within 2 KiB.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from ..plan.behaviours import Act, Behaviour


class Client:
    """One connection. All instants are seconds on the monotonic clock; see `records.Record` for those of proof."""

    __slots__ = (
        "act", "answered", "asked", "began", "behaviour", "established", "fd", "final", "goodbye", "incarnation",
        "index", "intended", "key", "log", "number", "offset", "outbox", "overslept", "parser", "refusal", "seen",
        "sent", "sock", "tries", "waiting",
    )  # fmt: skip

    def __init__(self, index: int, incarnation: int, key: int, behaviour: Behaviour) -> None:
        self.index = index
        self.incarnation = incarnation
        self.key = key
        self.behaviour = behaviour
        self.fd = -1
        self.sock: socket.socket | None = None
        self.tries = 0  # refusals so far
        self.refusal = 0  # errno of the latest
        self.number = 0  # steps done
        self.offset = 0.0  # of the step that is due next, from establishment
        self.act = Act.PING  # what that step does
        self.began = self.established = self.sent = self.seen = self.intended = 0.0
        self.asked = 0  # units of answer that are owed: bytes for echo, responses for HTTP
        self.answered = 0
        self.waiting = False  # counted as unanswered
        self.final = False
        self.overslept = False
        self.goodbye = False  # the server has said that it will close
        self.outbox: bytes | None = None  # what the kernel would not take yet
        self.parser: Any = None
        self.log: Any = None  # its rows in the journal, if one is kept

    def too_late(self, now: float, looked: float) -> bool:
        """Whether what is sent at *now* may come too late: it does itself, or the step before did, and nothing says yet
        that the server has read that one: no answer, and no look (the last was at *looked*) that showed no close.

        After a stall several steps are done in one turn.
        """
        if now >= self.sent + self.behaviour.timeout:
            return True
        return self.overslept and (self.seen < self.sent or looked < self.sent)


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
