"""One thing that is kept: its states, and what the driver asks of it.

The rule of this module: *who uses a thing stands in its `users`*. There is no other
account of who is in, so nothing can disagree with it.

        NEW --begin--> MAKING --made--> KEPT <--revive-- ASKING --answered--+
         |                |              | |                ^               |
         +-----failed-----+              | +----- due ------+               |
                  |                      | `end` amid uses                  |
                  v                      v                                  v
                FAILED                LEAVING --the last one leaves--> ENDING --> OVER
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.lease import Expiry
from ..core.wheel import Timer
from ..driver.watched import Reapable
from ..errors import shown

Due = Callable[["Kept", str, Expiry | None], object]
"""Called with a thing that is due, the reason, and the core's record or None."""

NEW = "new"
"""Asked for by one caller, who makes it next."""

MAKING = "being made"
"""Its callers, who count as users already, wait for it."""

FAILED = "not made"
"""`make` raised, which is in `why`; or it was given up, and `why` is None."""

KEPT = "kept"
"""In use while it has users, idle otherwise."""

ASKING = "being asked"
"""Due, and `ask` has not answered. Whoever uses it now takes it back."""

LEAVING = "leaving"
"""To be ended, and in use: nobody is let in any more."""

ENDING = "being ended"
"""Nobody uses it, and nobody ever will. Its end waits for its turn, or runs."""

OVER = "ended"
"""Its end has run."""

ABANDONED = "abandoned"
"""`why` of a thing that is being made although nobody waits for it any more."""


class Kept(Reapable):
    """A thing and its key.

    Attributes:
        users: Who uses it, or waits for it while it is made; None: nobody.
        state: One of the words above.
        why: The reason of its end; while it is asked, that and the core's record; what
            `make` raised; or a mark of the law's.
        signal: Set when it is made, or over; None: nobody waits for that.
        age: Waits for `max_age`; None: nothing does.
    """

    __slots__ = ("_due", "age", "key", "lease", "signal", "state", "thing", "users", "why")

    probe: None = None

    def __init__(self, due: Due, key: Any) -> None:
        self._due = due
        self.key: Any = key
        self.thing: Any = None
        self.users: dict[Any, None] | None = None
        self.state: str = NEW
        self.why: Any = None
        self.signal: Any = None
        self.age: Timer[Kept] | None = None

    def __repr__(self) -> str:
        return f"<Kept {shown(self.key)} {self.state}>"

    def __str__(self) -> str:
        return shown(self.key)

    @property
    def descriptor(self) -> int:
        """None is known: -1."""
        return -1

    @property
    def busy(self) -> bool:
        """Whether somebody uses it."""
        return self.users is not None or self.state is not KEPT

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End it for *reason*, if nobody uses it."""
        self._due(self, reason, expiry)
