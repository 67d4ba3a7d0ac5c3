"""A connection of uvicorn's that is guarded: which phase it is in, and how it ends.

The rule of this module: *its phase is derived from what uvicorn knows, never kept beside it*. So it cannot be wrong
about a request that an eager task has answered already, a body that the application does not read, or a response that
waits behind another.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..asyncio import closing, transports
from ..core.lease import Expiry, Lease
from ..driver.watched import Probe, Reapable
from ..policy import NOT_TAKEN, Phase
from .waiting import Age, Shared, Waiting

DRAIN = "drain"
"""The reason of a connection that ended because the server stops."""

DRAIN_DEADLINE = "drain_deadline"
"""The reason of one that was cut in use, when `timeouts.drain` was over."""


class Fresh:
    """In the place of a `Waiting`: nothing has been received yet. One for all."""

    __slots__ = ()

    def bytes_in(self, count: int) -> None:
        """The phase is about to end; until then its timeout is absolute."""

    def close(self) -> None:
        """There is nothing to close."""


FRESH = Fresh()


class Guarded(Reapable):
    """What every guarded protocol of uvicorn's adds to it, HTTP or WebSocket. Its fields are slots: CPython shares the
    keys of instance dicts only up to 30 of them, and uvicorn's protocols have nearly as many.

    Attributes:
        shared: Of its server.
        lease: The lease in force.
        waiting: While its peer has to be waited for; otherwise None.
    """

    __slots__ = ("_age", "_leaving", "_over", "lease", "shared", "waiting")

    RESTS: ClassVar[Phase]
    """The phase in which it has no policy and nothing is in flight."""

    shared: Shared
    lease: Lease
    transport: Any
    probe: Probe | None = None
    waiting: Waiting | Fresh | None

    def _begin(self, timeout: float | None, reason: str, before: Guarded | None = None) -> None:
        """Watch it from now on; in the place of *before*, whose silence goes on, and which has to `hand_over` then."""
        shared = self.shared
        self._over = False
        self._leaving: str | None = None
        self.waiting = None
        since = None if before is None else before.lease
        self.lease = shared.driver.register(self, timeout, reason=reason, since=since)
        if shared.driver.books.journaled:
            if since is None:
                shared.driver.books.opened(self.lease, transports.socket_of(self.transport))
            else:
                shared.driver.books.moved(since, self.lease)
        self._age: Age | None = None

    @property
    def descriptor(self) -> int:
        """Of its socket; -1 if there is none, or it does not count whether bytes are unread."""
        return -1 if self._deaf() else transports.descriptor_of(self.transport)

    @property
    def link(self) -> int:
        """Of its socket, whatever it waits for; -1 if it is closed."""
        return transports.descriptor_of(self.transport)

    @property
    def busy(self) -> bool:
        return self.phase() not in (Phase.FIRST_BYTE, Phase.KEEP_ALIVE)

    def phase(self) -> Phase:
        raise NotImplementedError

    def _deaf(self) -> bool:
        """Whether it would not read bytes that came, because it waits for the peer to take some."""
        waiting = self.waiting
        return isinstance(waiting, Waiting) and waiting.policy.phase in (Phase.WRITE, Phase.HALF_CLOSED)

    def look(self) -> None:
        """Find out what it waits for, and have the right timeout in force."""
        if self._over:
            return
        phase, waiting = self.phase(), self.waiting
        if self._leaving is None and self._rests_in(phase):
            if isinstance(waiting, Waiting):
                waiting.end(self.RESTS)
            elif waiting is FRESH:
                self._rest()
            self.waiting = None
        elif isinstance(waiting, Waiting):
            waiting.enter(phase)
        else:
            self.waiting = Waiting(self.shared, self, phase)

    def _rest(self) -> None:
        """It has no policy any more, and its lease says what holds then: for what never has one, nothing."""

    def _rests_in(self, phase: Phase) -> bool:
        """Whether no policy is needed in *phase*: the lease alone does, or the final check finds it in use."""
        raise NotImplementedError

    def pardon(self, lease: Lease) -> bool:
        """At the final check: whether it waits for something else than its lease says, so that it is not due."""
        if lease is not self.lease or self.phase() is self._believed():
            return False
        self.shared.reaper.loop.call_soon(self.look)
        return True

    def _believed(self) -> Phase:
        """The phase that its lease is for."""
        waiting = self.waiting
        if isinstance(waiting, Waiting):
            return waiting.policy.phase
        return Phase.FIRST_BYTE if waiting is FRESH else self.RESTS

    def leave(self, reason: str) -> None:
        """Let it go: soon if nothing has been asked for, otherwise after the response.

        A drain has an end besides, and may come to what is leaving for another reason. Only the first says why.
        """
        if self._over or self._leaving in (reason, DRAIN):
            return
        first, self._leaving = self._leaving is None, reason
        waiting = self.waiting
        if not isinstance(waiting, Waiting):
            waiting = self.waiting = Waiting(self.shared, self, self.phase())
        if first:
            waiting.retire(reason)
        if reason == DRAIN:
            waiting.cut(self.shared.left_to_drain(), DRAIN_DEADLINE)

    def shut(self) -> None:
        """Its peer may send the next request at any moment."""
        if not self._over and self._believed() is Phase.KEEP_ALIVE:
            closing.shut(self.transport)

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End it for *reason*; nothing if it has ended."""
        if self._over:
            return
        self.shared.driver.books.reaped(self.lease, self, reason, expiry)
        self._let_go()
        self._cut(reason)

    def _cut(self, reason: str) -> None:
        if reason in NOT_TAKEN or self.transport.is_closing():
            closing.reset(self.transport)
        else:
            closing.close(self.shared.reaper, self.transport, self._farewell(reason))

    def _farewell(self, reason: str) -> bytes:
        """What is sent before the close."""
        return b""

    def hand_over(self, to: Guarded) -> None:
        """*to* watches the connection from now on. What is counted from its opening goes on there."""
        to._age, self._age = self._age, None
        if to._age is not None:
            to._age.whose = to
        self._let_go()
        self.lease = to.lease  # its own refers to it: the two would wait for the collector

    def grew_old(self) -> None:
        raise NotImplementedError

    def _left(self, *, by_peer: bool) -> None:
        if not self._over:
            if self.shared.driver.books.journaled:
                self.shared.driver.books.left(self.lease, by_peer=by_peer)
            self._let_go()

    def _let_go(self) -> None:
        self._over = True
        self.end_lease()
        if self.waiting is not None:
            self.waiting.close()
            self.waiting = None
        if self._age is not None:
            self._age.release()
            self._age = None
