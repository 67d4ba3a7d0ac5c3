"""How long a task waits for more before its connection is parked.

The rule of this module: *a busy connection keeps its task as long as few do*. Lingering
spares a client that asks again soon the making of a new task. But tasks that only wait
must stay few: when many clients come at once, each of them would have a task for a
moment, and the memory of all those tasks is not given back. So at most `FEWEST` wait at
a time, and one more for each whose wait was worth it, up to `LINGERERS`. Those that
wait already are not sent away for another: of many clients that ask in turn, the
longest waiting is the very one that asks next.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

import trio

FEWEST, LINGERERS = 8, 64
"""Tasks of one parking lot that may wait at the same time: `FEWEST` always, `LINGERERS`
at most, which is less than a MB. Where no more clients than `LINGERERS` ask again and
again, none of them is parked after a while.
"""


class Silent(BaseException):
    """Raised in a handler whose connection has gone silent. Let it pass, and the
    connection is parked.

    Like `trio.Cancelled` it is no Exception, so that no handler swallows it by
    accident. A `finally` of the handler runs at every silence; to close the stream
    there, as `async with stream:` does, ends this handler's use of it only.
    """


class Lingerer(Protocol):
    """What waits: a `ParkableStream`."""

    silenced: bool
    disturbed: bool

    def fileno(self) -> int: ...


class Lingering:
    """The tasks that wait for the next bytes of their connection.

    Args:
        seconds: How long each waits at least; it waits at most twice as long. With 0
            none waits.
        parks: With False each waits until there are bytes.
    Attributes:
        at_once: Whether nobody waits, so that a connection is parked without asking
            here.
    """

    def __init__(self, seconds: float, *, parks: bool) -> None:
        self._seconds = seconds
        self._parks = parks
        self.at_once: bool = parks and not seconds
        self._allowed = FEWEST
        self._worth_it = False  # whether the wait of one ended with bytes in this round
        # -> the round in which it began to wait; the longest waiting is first
        self._waiting: dict[Lingerer, int] = {}
        self._round = 0
        self._begun = trio.Event()

    async def wait(self, one: Lingerer) -> None:
        """Wait until the descriptor of *one* can be read.

        Raises:
            Silent: it could not be read for long enough, or enough others wait.
            trio.ClosedResourceError: it was closed.
        """
        if not self._parks:
            await trio.lowlevel.wait_readable(one.fileno())
            return
        waiting = self._waiting
        if one.silenced:
            # Its handler swallowed the last `Silent`, and must not spin.
            await trio.lowlevel.checkpoint()
        if not self._seconds or len(waiting) >= self._allowed:
            one.silenced = True
            raise Silent
        if not waiting:
            self._begun.set()
        waiting[one] = self._round
        try:
            await trio.lowlevel.wait_readable(one.fileno())
        except trio.ClosedResourceError:
            if one.disturbed:
                one.silenced = True
                raise Silent from None
            raise
        finally:
            one.disturbed = False
            waiting.pop(one, None)
        self._worth_it = True
        self._allowed = min(self._allowed + 1, LINGERERS)

    async def run(self) -> NoReturn:
        """Send away each that has waited for a whole round, until cancelled."""
        while True:
            if not self._waiting:
                self._begun = trio.Event()
                await self._begun.wait()
            await trio.sleep(self._seconds)
            long = [one for one, since in self._waiting.items() if since < self._round]
            self._round += 1
            if not self._worth_it:
                self._allowed = FEWEST
            self._worth_it = False
            for one in long:
                self._disturb(one)

    def end(self) -> None:
        """Let no task wait from now on; those that wait meet `Silent`."""
        self._seconds = 0.0
        self.at_once = self._parks
        for one in list(self._waiting):
            self._disturb(one)

    def _disturb(self, one: Lingerer) -> None:
        # Its wait ends as if its descriptor had been closed; `wait` tells the two
        # apart.
        if self._waiting.pop(one, None) is not None and one.fileno() >= 0:
            one.disturbed = True
            trio.lowlevel.notify_closing(one.fileno())
