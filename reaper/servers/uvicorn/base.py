"""What uvicorn's guarded connections have in common, whichever protocol is in force:
their phases, and how they end.

The rule of this module: *the phase is derived from what uvicorn knows, and never kept
beside it; only waiting costs*. So the phase cannot be wrong about a request that an
eager task has answered already, about a body that the application does not read, or
about a response that waits behind another. A connection whose requests come whole has
one lease and no policy: the lease is touched when a response is complete, and a request
in flight is found at the final check.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from ...asyncio import closing, transports
from ...core.lease import Expiry, Lease
from ...driver.watched import Probe, Reapable, release, with_one_more
from ...policy import NOT_TAKEN, IdlePolicy, Phase
from ...policy.min_rate import NoSweep
from ...policy.phases import ABSOLUTE
from ...policy.reasons import DRAIN, DRAIN_DEADLINE, MAX_AGE
from .shared import Shared

QUEUED_BYTES = 65536
"""While more bytes than this are unacknowledged, a response still counts as being
written, also between two requests.
"""

NO_SWEEP = NoSweep()


class Age:
    """The time until a connection has reached its maximum age. One protocol of the
    connection hands it to the next.

    Attributes:
        whose: The protocol that is in force now.
    """

    __slots__ = ("lease", "whose")

    lease: Lease

    def __init__(self, whose: Guarded) -> None:
        self.whose: Guarded = whose

    def reached(self, expiry: Expiry) -> None:
        """The lease is due: tell the connection."""
        self.whose.grew_old()

    def release(self) -> None:
        """The connection has ended earlier. Release the lease, which refers back: the
        two would be a circle.
        """
        self.lease.release()
        del self.lease


def age_of(connection: Guarded) -> Age | None:
    """Have *connection*, which has just been made, told when it has reached its
    `max_age`; None if it has none.
    """
    shared = connection.shared
    seconds = shared.lifespan()
    if not seconds:
        return None
    age, driver = Age(connection), shared.driver
    age.lease = driver.register(("age", driver.next_number()), seconds, age.reached, reason=MAX_AGE)
    return age


class Waiting:
    """The time in which the server waits for the client of one connection.

    Args:
        shared: Of the server.
        connection: The connection.
        phase: What it waits for to begin with.
    Attributes:
        policy: Knows which timeout is in force; it is told of every byte.
    """

    __slots__ = ("_connection", "_deadlines", "_progress", "_shared", "policy")

    def __init__(self, shared: Shared, connection: Guarded, phase: Phase) -> None:
        self._shared = shared
        self._connection = connection
        self._deadlines: list[Lease] = []
        self._progress: transports.Progress | None = None
        # The policy is in no sweep: this object is in the sweep, and charges it.
        self.policy: IdlePolicy = IdlePolicy(
            shared.config,
            self,
            shared.driver.now(),
            NO_SWEEP,
            self._taken,
            phase,
            hides=self._hidden,
        )
        shared.sweep.add(self)

    def enter(self, phase: Phase) -> None:
        """The connection waits for *phase* from now on."""
        self.policy.enter(phase, self._shared.driver.now())

    def bytes_in(self, count: int) -> None:
        """*count* bytes came."""
        self.policy.bytes_in(count, self._shared.driver.now())

    def end(self, phase: Phase) -> None:
        """Stop waiting for the client; the timeout of *phase* applies from now."""
        now = self._shared.driver.now()
        self.policy.request(now)  # nothing is held against the client any longer
        self.policy.enter(phase, now)
        self.close()

    def close(self) -> None:
        """The waiting or the connection is over. Let go of the policy, which refers
        back: the two would be a circle.
        """
        self._shared.sweep.discard(self)
        release(self._deadlines)
        self._deadlines.clear()
        del self.policy

    def _taken(self) -> int:
        """Bytes that the client has taken since this was last asked; 0 the first
        time.
        """
        if self._progress is None:
            self._hidden()
            return 0
        return self._progress.taken()

    def _hidden(self) -> int:
        """Bytes that the client may have read without our seeing it."""
        if self._progress is None:
            self._progress = transports.Progress(self._connection.transport)
        return self._progress.hidden

    # ---- as a member of the sweep

    def charge(self, now: float) -> None:
        """Look whether the client is still waited for, and whether it keeps the least
        rate.
        """
        policy = self.policy  # `look` may find that the waiting is over, and drop it
        self._connection.look()
        policy.charge(now)

    # ---- as the policy's watch

    def touch(self) -> None:
        self._connection.lease.touch()

    def suspend(self) -> bool:
        return self._connection.lease.suspend()

    def resume(self) -> bool:
        return self._shared.driver.resume(self._connection.lease)

    def retime(self, idle: float, reason: str | None = None) -> bool:
        return self._shared.driver.retime(self._connection.lease, idle, reason)

    def cut(self, seconds: float, reason: str) -> None:
        """End the connection in *seconds*, in use or not."""
        driver = self._shared.driver
        connection = self._connection
        key = ("cut", driver.next_number())
        made = driver.register(key, seconds, lambda expiry: connection.reap(reason), reason=reason)
        self._deadlines = with_one_more(self._deadlines, made)

    def deadline(self, seconds: float, reason: str) -> Lease:
        lease = self._shared.driver.deadline(self._connection, seconds, reason)
        self._deadlines = with_one_more(self._deadlines, lease)
        return lease


class Guarded(Reapable):
    """What every protocol of a guarded connection has: idle, HTTP or WebSocket. Its
    fields are slots: CPython shares the keys of instance dicts only up to 30 of them,
    and uvicorn's protocols have nearly as many.

    Attributes:
        shared: Of the server.
        lease: The lease in force.
        waiting: A `Waiting` while the server waits for the client; otherwise None.
    """

    __slots__ = ("_age", "_leaving", "_over", "lease", "shared", "waiting")

    RESTS: ClassVar[Phase]
    """The phase in which the connection has no policy and nothing is in flight."""

    shared: Shared
    lease: Lease
    transport: Any
    probe: Probe | None = None
    waiting: Waiting | None

    def _begin(self, timeout: float | None, reason: str, before: Guarded | None = None) -> None:
        """Watch the connection from now on with *timeout* seconds.

        Args:
            before: The protocol whose place this one takes. Its silence goes on. The
                caller then calls its `hand_over`.
        """
        shared = self.shared
        self._over = False
        self._leaving: str | None = None
        self.waiting = None
        since = None if before is None else before.lease
        self.lease = shared.driver.register(self, timeout, reason=reason, since=since)
        if shared.driver.books.journal is not None:
            if since is None:
                shared.driver.books.opened(self.lease, transports.socket_of(self.transport))
            else:
                shared.driver.books.moved(since, self.lease)
        self._age: Age | None = None

    @property
    def descriptor(self) -> int:
        """The socket's descriptor; -1 if there is none, or if unread bytes are no sign
        of life.
        """
        return -1 if self._deaf() else transports.descriptor_of(self.transport)

    @property
    def link(self) -> int:
        """The socket's descriptor, whatever the connection waits for; -1 if it is
        closed.
        """
        return transports.descriptor_of(self.transport)

    @property
    def busy(self) -> bool:
        return self.phase() not in (Phase.FIRST_BYTE, Phase.KEEP_ALIVE)

    @property
    def stays_due(self) -> bool:
        """See the base class: a byte does not extend what is waited for as a whole. A
        request in flight is found at the final check, once in each `keep_alive`.
        """
        believed = self._believed()
        return believed.value in ABSOLUTE and self.phase() is believed

    def phase(self) -> Phase:
        """What the connection waits for now."""
        raise NotImplementedError

    def _deaf(self) -> bool:
        """Whether bytes that come would stay unread until the client has taken some."""
        return self.waiting is not None and self._believed() in (Phase.WRITE, Phase.HALF_CLOSED)

    def look(self) -> None:
        """Find out what the connection waits for, and put the right timeout in
        force.
        """
        if self._over:
            return
        phase, waiting = self.phase(), self.waiting
        if self._leaving is None and self._rests_in(phase):
            if waiting is not None:
                waiting.end(self.RESTS)
            elif self._believed() is not self.RESTS:
                self._rest()
            self.waiting = None
        elif waiting is not None:
            waiting.enter(phase)
        else:
            self.waiting = Waiting(self.shared, self, phase)

    def _rest(self) -> None:
        """The connection is idle from now on, and never had a policy: have the lease
        say so. Does nothing where a connection always begins with the timeout of
        `RESTS`.
        """

    def _rests_in(self, phase: Phase) -> bool:
        """Whether *phase* needs no policy: the lease is enough, or the final check
        finds the connection in use.
        """
        raise NotImplementedError

    def pardon(self, lease: Lease) -> bool:
        """At the final check: whether the connection waits for something else than its
        lease says. Then it is not due.
        """
        if lease is not self.lease or self.phase() is self._believed():
            return False
        self.shared.reaper.loop.call_soon(self.look)
        return True

    def _believed(self) -> Phase:
        """The phase that the lease is for."""
        if self.waiting is not None:
            return self.waiting.policy.phase
        return Phase.FIRST_BYTE if self.lease.reason == Phase.FIRST_BYTE.value else self.RESTS

    def leave(self, reason: str) -> None:
        """Let the connection go: soon if no request is in flight, otherwise after the
        response.

        A drain also has a deadline. If it finds a connection that is leaving already,
        the first reason stays.
        """
        if self._over or self._leaving in (reason, DRAIN):
            return
        first, self._leaving = self._leaving is None, reason
        waiting = self.waiting
        if waiting is None:
            waiting = self.waiting = Waiting(self.shared, self, self.phase())
        if first:
            waiting.policy.retire(reason, self.shared.driver.now())
        if reason == DRAIN:
            waiting.cut(self.shared.left_to_drain(), DRAIN_DEADLINE)

    def stop_in_turn(self) -> None:
        """The server stops. Tell the connection at once if it is in use, otherwise when
        its turn has come in `timeouts.drain_window`. Until then it is served.
        """
        self.shared.left_to_drain()  # which begins the drain
        seconds = self.shared.goes_in()
        if seconds and not self.busy:
            self.shared.reaper.loop.call_later(seconds, _tell, self.transport)
        elif self.busy:
            self.told()
        else:
            self.shared.tell(partial(_tell, self.transport))

    def told(self) -> None:
        """The server stops, and this connection is to end."""
        raise NotImplementedError

    def shut(self) -> None:
        """Between two requests: tell the client at once that nothing more is read, for
        it may send the next request at any moment.
        """
        if not self._over and self._believed() is Phase.KEEP_ALIVE:
            closing.shut(self.transport)

    def reap(self, reason: str, expiry: Expiry | None = None) -> None:
        """End the connection for *reason*; nothing if it has ended."""
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
        """The bytes to send before the close."""
        return b""

    def hand_over(self, to: Guarded) -> None:
        """*to* watches the connection from now on; its age goes on there."""
        to._age, self._age = self._age, None
        if to._age is not None:
            to._age.whose = to
        self._let_go()
        self.lease = to.lease  # the old lease refers to this object: a circle otherwise

    def grew_old(self) -> None:
        """The connection has reached its maximum age."""
        raise NotImplementedError

    def _left(self, *, by_peer: bool) -> None:
        """The connection is lost; *by_peer*: the client ended it."""
        if not self._over:
            if self.shared.driver.books.journal is not None:
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


def _tell(transport: Any) -> None:
    """Tell the connection of *transport*, whichever protocol is in force by now. It may
    have ended in between.
    """
    protocol = transports.protocol_of(transport)
    if isinstance(protocol, Guarded):
        protocol.told()
