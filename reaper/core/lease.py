"""What the core hands out: the lease on one connection, and the records that describe
it.

One rule: *a lease that has ended stays ended*. Whatever is called on it does nothing
and returns False.

A lease is four references wide, so that it and its garbage-collector header fit in one
cache line: uid, the epoch it was last touched in, and where it lies (chunk, position).
Everything else is shared: the timeout and the reason belong to the slot, the way to the
core belongs to the class (one lease class per core, see `bind`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..errors import HookErrors
from .slots import Slot
from .wheel import Timer

if TYPE_CHECKING:
    from .reaper import IdleReaper

Key = tuple[float | None, str]
"""What the leases of one slot have in common besides their epoch: (timeout in seconds,
None for none; reason). Where a core rounds, the timeout is the one asked for or up to a
quarter of a tick more.
"""

OPEN = float("inf")
"""`Epoch.closed` while the epoch is open: nothing touched in it can be due."""

MOST_KEYS = 1 << 14
"""Slots that an epoch finds by their keys: a dict of so many grows in half a
millisecond.
"""


class Epoch:
    """A stretch of time, one tick long when nothing stalls, with the instants at which
    it *really* began and ended.

    A touch stores the open epoch and nothing else. An epoch lives as long as a lease or
    a slot refers to it, so a month of ticks costs only what is still in use.
    """

    __slots__ = ("closed", "forgot", "opened", "serial", "slots")

    def __init__(self, opened: float, serial: int) -> None:
        self.opened: float = opened
        self.closed: float = OPEN
        self.serial: int = serial
        # Where the next lease with such a key goes. Not all slots: a dict of a million
        # takes 15 ms to grow. With `MOST_KEYS` in it another one is begun, and a key
        # that comes again then gets a second slot.
        self.slots: dict[Key, IdleSlot] = {}
        self.forgot: bool = False  # whether another one was begun

    @property
    def rank(self) -> tuple[float, int]:
        """Sorts epochs by age, the oldest first."""
        return self.closed, self.serial


class Never(Epoch):
    """The epoch that is never closed: suspended leases lie in its slots, which are all
    in `row`.
    """

    __slots__ = ("row",)

    def __init__(self) -> None:
        super().__init__(OPEN, -1)
        self.row: Row = Row()


class IdleSlot(Slot):
    """Leases that were touched in one epoch (or later, and not yet moved on) and share
    one timeout and reason.
    """

    __slots__ = ("after", "before", "epoch", "key", "timer")

    def __init__(self, epoch: Epoch, key: Key) -> None:
        super().__init__()
        self.epoch: Epoch = epoch
        self.key: Key = key
        self.timer: Timer[IdleSlot] | None = None  # while it waits in the wheel
        self.before: Any = None  # its neighbours in a `Row`; None while it is in none
        self.after: Any = None

    @property
    def in_books(self) -> bool:
        """Whether its epoch finds it, if it has forgotten none; for tests."""
        return self.epoch.forgot or self.epoch.slots.get(self.key) is self

    @property
    def due(self) -> float:
        """The instant, inclusive, from which its silent leases may be reaped; infinite
        while its epoch is open, and without a timeout.
        """
        timeout = self.key[0]
        return OPEN if timeout is None else self.epoch.closed + timeout


class Row:
    """Slots in the order in which they came. A circle of neighbours, of which the row
    is one: no addition takes longer than another, as one that makes a dict grow does.
    """

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: Any = self
        self.after: Any = self

    def __iter__(self) -> Iterator[IdleSlot]:
        slot = self.after
        while slot is not self:
            following = slot.after
            yield slot
            slot = following

    def add(self, slot: IdleSlot) -> None:
        """Put *slot*, which is in no row, last."""
        last = self.before
        slot.before, slot.after = last, self
        last.after = self.before = slot


def drop(slot: IdleSlot) -> None:
    """Take *slot* out of its row, and have its epoch find it no more."""
    before, after = slot.before, slot.after
    before.after, after.before = after, before
    slot.before = slot.after = None
    slots = slot.epoch.slots
    if slots.get(slot.key) is slot:
        del slots[slot.key]


class Lease:
    """The reaper's handle on one connection. Made by `IdleReaper.register`, never
    directly.

    Every method is safe at any time: on a lease that was reaped or released it does
    nothing and says so. A late touch never brings a connection back.
    """

    __slots__ = ("_chunk", "_epoch", "_pos", "uid")

    uid: Any
    _epoch: Epoch
    _chunk: Any  # Chunk | None
    _pos: int
    _core: ClassVar[IdleReaper]

    def touch(self) -> None:
        """Note activity now. One store: no clock is read, nothing moves. Cost: about an
        empty method call.
        """
        raise NotImplementedError  # each core's own lease class has the real one, see `bind`

    @property
    def alive(self) -> bool:
        """Whether the reaper still watches: neither reaped nor released."""
        return self._chunk is not None

    @property
    def suspended(self) -> bool:
        """Whether it is alive and cannot be reaped until `resume`."""
        return self._chunk is not None and self._chunk.slot.epoch is self._core._never

    @property
    def timeout(self) -> float | None:
        """Seconds of silence allowed, as they were asked for; None: no timeout, or not
        alive, which `alive` tells apart.
        """
        return None if self._chunk is None else self._core._asked_of(self, self._slot.key[0])

    @property
    def reason(self) -> str | None:
        """What a reap would give as its reason; None when not alive."""
        return None if self._chunk is None else self._slot.key[1]

    @property
    def active_from(self) -> float:
        """The last activity was not before this instant, seconds. Known after the end
        too.
        """
        return self._epoch.opened

    @property
    def active_until(self) -> float | None:
        """The last activity was not after this instant, seconds; None while that is
        now. Known after the end too.
        """
        return None if self._epoch.closed == OPEN else self._epoch.closed

    @property
    def _slot(self) -> IdleSlot:
        slot: IdleSlot = self._chunk.slot
        return slot

    def suspend(self) -> bool:
        """Exempt the connection: it cannot be reaped until `resume`. True if it was
        armed. O(1).
        """
        return self._core._suspend(self)

    def resume(self, now: float) -> bool:
        """End the exemption, counting as activity at *now*. True if it was suspended.
        O(1).

        Raises:
            InvalidArgument, ClockWentBackwards: as in `register`. State unchanged.
        """
        return self._core._resume(self, now)

    def retime(self, timeout: float | None, now: float, reason: str | None = None) -> bool:
        """Put another timeout in force, counted from the last activity (touch first to
        count from now). O(1).

        Args:
            timeout: Seconds, > 0. When that much silence has passed already, the lease
                is due at once. None: no timeout, it is never due.
            now: Seconds on the clock of every other `now`.
            reason: Another reason; None keeps the one in force.
        Returns:
            True if the lease is alive; False if there was nothing to retime.
        Raises:
            InvalidArgument, ClockWentBackwards: as in `register`. State unchanged.
        """
        return self._core._retime(self, timeout, now, reason)

    def release(self) -> bool:
        """Stop watching: the connection ended by itself. True exactly once, and never
        after a reap. O(1).
        """
        raise NotImplementedError  # as `touch`

    def __repr__(self) -> str:
        state = "ended" if not self.alive else "suspended" if self.suspended else "armed"
        return f"<Lease {self.uid!r} {state} timeout={self.timeout} reason={self.reason!r}>"


class Expiry(NamedTuple):
    """One reap. Times are seconds on the clock passed to the core."""

    uid: Any
    lease: Lease
    reason: str
    due: float
    """The instant from which it could be reaped: end of the epoch of its last
    activity + timeout.
    """
    now: float
    """The instant it was judged by, >= due."""
    lateness: float
    """now - due, >= 0."""
    timeout: float
    """The timeout that was asked for, seconds: due less the end of the epoch of its
    last activity, or up to a quarter of a tick less than that (`IdleReaper`, theory).
    """


Changed = Callable[[Lease], object]
Hook = Callable[[Expiry], object]
ErrorHook = Callable[[Exception, Expiry], object]


class Asked:
    """The hook of a lease that has no slot `asked`: it keeps the timeout that was asked
    for, where the key of its slot is another one. The hook that it had is called.
    """

    __slots__ = ("hook", "timeout")

    def __init__(self, timeout: float | None, hook: Hook | None) -> None:
        self.timeout: float | None = timeout
        self.hook: Hook | None = hook

    def __call__(self, expiry: Expiry) -> None:
        if self.hook is not None:
            self.hook(expiry)


def call_hooks(
    hooks: Sequence[Hook | None], expired: list[Expiry], on_error: ErrorHook | None
) -> None:
    """Call the hook of each of *expired*, whatever the others do. The books are closed:
    a hook may call anything.

    Args:
        hooks: One for each of *expired*, None where there is none.
        on_error: Called with (error, expiry) when a hook raises. None: see Raises.
    Raises:
        HookErrors: hooks raised and there is no *on_error*, or it raised too. All have
            run; `.expired` has the list.
        BaseException: the first one that is no Exception, with the list as its
            attribute `expired`. All have run.
    """
    errors: list[Exception] = []
    fatal: BaseException | None = None
    for hook, expiry in zip(hooks, expired, strict=True):
        if hook is None:
            continue
        try:
            try:
                hook(expiry)
            except Exception as error:
                if on_error is None:
                    raise
                on_error(error, expiry)
        except Exception as error:
            errors.append(error)
        except BaseException as error:
            fatal = fatal or error
    group = HookErrors("hooks raised while reaping", errors, expired) if errors else None
    if fatal is not None:
        fatal.expired = expired  # type: ignore[attr-defined]
        raise fatal from group
    if group is not None:
        raise group


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a connection is still here, or until when. Times are seconds on the clock
    passed to the core.
    """

    uid: Any
    timeout: float | None
    """As it was asked for, seconds; None: no timeout."""
    reason: str
    """What a reap would give as its reason."""
    suspended: bool
    active_from: float
    """The last activity was not before this instant..."""
    active_until: float | None
    """...nor after this one; None: its epoch is still open."""
    due: float | None
    """Reaped at the first wake at or after this instant if it stays silent. While the
    epoch is open this is where it will be if the epoch closes on time. None when
    suspended or without a timeout.
    """
    place: str
    """Where it lies: 'near', 'wheel level L slot S', 'no timeout', or 'suspended'."""

    def __str__(self) -> str:
        timeout = "no timeout" if self.timeout is None else f"timeout {self.timeout:g} s"
        if self.suspended:
            return f"{self.uid!r}: suspended (in use), cannot be reaped; {timeout} when it resumes"
        until = "now" if self.active_until is None else f"{self.active_until:.3f}"
        due = "never due" if self.due is None else f"due at {self.due:.3f}"
        place = self.place if self.place == "near" else f"in {self.place}"
        where = "" if self.due is None else f", {place}"
        return (
            f"{self.uid!r}: last active between {self.active_from:.3f} and {until}, "
            f"{due} ({self.reason}, {timeout}){where}"
        )


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of one core. Counts are since it was made; times are seconds."""

    registered: int
    """Leases alive now."""
    suspended: int
    """How many of those are exempt now."""
    slots: int
    """Slots that are due within `wheel_size` ticks, emptied ones included until they
    come up.
    """
    slots_in_wheel: int
    """Slots that are due later, and wait in the wheel."""
    epochs: int
    """Epochs closed."""
    expired: int
    """Leases reaped."""
    moved: int
    """Leases found in a due slot and moved on, because they had been touched."""
    averted: int
    """Leases spared at the final check."""
    released: int
    """Leases that ended without the reaper."""
    max_lateness: float
    """The largest Expiry.lateness."""


# Never set here: these are globals of each core's own copies of the functions below.
open_epoch: Epoch
edge: float
silence_ended: Callable[[Lease, Epoch], None]
core: IdleReaper
counts: Any
never: Epoch


REPORTING = ("log", "active_epochs", "worked_from")
"""What a lease has besides, whose touch compares. active_epochs: in how many epochs,
but for its first, a touch was the first; `log` (not set at first) and `worked_from`
(None at first) are those of whom it reports to.
"""


def _touch(self: Lease) -> None:
    self._epoch = open_epoch  # noqa: F821


def _reporting_touch(self: Any) -> None:
    found = self._epoch
    if found is open_epoch:  # noqa: F821
        return
    if found.closed < edge:  # noqa: F821
        silence_ended(self, open_epoch)  # noqa: F821
    self._epoch = open_epoch  # noqa: F821
    self.active_epochs += 1


def _begin_reporting(self: Any) -> None:
    self.active_epochs = 0
    self.worked_from = None


def _release(self: Lease) -> bool:
    chunk = self._chunk
    if chunk is None:
        return False
    # `slots.remove`, written out: with `register` this is what a connection costs that
    # says nothing.
    items = chunk.items
    items[self._pos] = None
    self._chunk = None
    chunk.dead = dead = chunk.dead + 1
    if dead + dead > len(items) or chunk.slot.epoch is never:  # noqa: F821
        core._left(chunk)  # noqa: F821
    try:
        found = core._leases.pop(self.uid, None)  # noqa: F821
    except Exception:  # of the uid's own __hash__ or __eq__
        found = None
    if found is not self:
        core._lost(self, found)  # noqa: F821
    if core._hooks:  # noqa: F821
        core._hooks.pop(self, None)  # noqa: F821
    counts.released += 1  # noqa: F821
    return True


def bind(
    base: type[Lease], namespace: dict[str, Any], *, reports: bool = False, rounds: bool = False
) -> type[Any]:
    """The lease class of one core, whose `touch` finds the open epoch in *namespace*,
    under that name, and whose `release` finds there the core, its counts, and its epoch
    that never closes.

    A name saves each lease a reference to its core, and each touch two attribute loads;
    with a fifth field a lease would straddle two cache lines, which costs more than
    both. A namespace of its own is the fastest place for the name (a variable closed
    over: 1.36x an empty call, this: 1.28x, hot).

    Args:
        reports: Give it the touch that calls `silence_ended` for epochs closed before
            `edge`, and the slots of `REPORTING`.
        rounds: Give it a slot `asked`, for a timeout that its slot's key is not.
    """
    # CPython keeps what it learnt about a store in the code object. Two cores must not
    # share one, or each would unlearn what the other taught (tests/core/test_reaper.py:
    # test_two_cores_do_not_share...).
    more = (REPORTING if reports else ()) + ("asked",) * rounds
    found: dict[str, Any] = {"__slots__": more}
    if reports:
        found["__init__"] = _begin_reporting
    for name, body in ("touch", _reporting_touch if reports else _touch), ("release", _release):
        found[name] = _defined(body.__code__.replace(co_name=name), namespace)
        found[name].__doc__ = getattr(Lease, name).__doc__
    return type("Lease", (base,), found)


def _defined(code: CodeType, namespace: dict[str, Any]) -> Any:
    """A function of *code* whose globals are *namespace*, made as a `def` there makes
    it: CPython 3.13 never specializes a call of one that `FunctionType` has made.
    """
    outer = _define.__code__
    consts = (code if isinstance(each, CodeType) else each for each in outer.co_consts)
    return FunctionType(outer.replace(co_consts=tuple(consts)), namespace)()


def _define() -> Any:
    return lambda: None
