"""The loop behind `python -m reaper attach`: it drives a watch over a target until a
signal comes.

One rule: *the loop owns the time*. It is the only place of this room that sleeps. A
discovery, and a reading of many descriptors, is worked off in slices, so that a due
connection is not kept waiting by them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from ..config.running import stoppable
from ..config.settings import Attach
from ..errors import InvalidArgument
from ..journal.log import ConnectionLog, Journal, OpenStates
from ..journal.schema import peer_key
from .closing import Hands
from .cuts import said
from .judge import NONE, SLIDING, Limits
from .kernel import Refusal, grain
from .learn import to_ns
from .netlink import addresses_of
from .show import View
from .sockets import probes_capped
from .targets import Target
from .watch import SLICE, End, Event, Watch

LONGEST_PERIOD = 60.0
"""The most seconds between two discoveries; if it is less, half the shortest limit."""
SAME = (
    "idle",
    "first_byte",
    "max_age",
    "min_in_rate",
    "min_in_grace",
    "even_unanswered",
    "vanished",
)
"""The limits that have the same name in `[attach]` and in `Limits`."""
NOTABLE_SHARE = 0.05
"""A stall of this process is written to the journal if it is longer than this share of
a tick.
"""


def limits_of(config: Attach) -> Limits:
    """The limits that `[attach]` sets, with this kernel's grain.

    Raises:
        Refusal: no limit is set, or one that is shorter than the tick.
    """
    try:
        limits = Limits(
            **{name: getattr(config, name) for name in SAME},
            write=config.stalled_write,
            capped=probes_capped(),
            grain=grain(),
        )
    except InvalidArgument:  # Each value has been checked, so it can only be that none is on.
        raise Refusal(
            "no limit is on: give --idle 5m, --first-byte, --max-age, --stalled-write, "
            "--min-in-rate or --vanished"
        ) from None
    if config.tick > (shortest := limits.shortest()):
        raise Refusal(
            f"--tick {config.tick:g}s is longer than the shortest limit, {shortest:g}s: "
            "a quarter of it is fine"
        )
    return limits


class JournalBook:
    """Writes the events of a watch to a journal.

    It writes what was known, and when. A connection that was open before the watch
    began is opened at the latest instant that its stamps allow. An activity is an
    instant at which a dump or a look shows that its peer was heard, as the kernel's
    stamp has it. How often it spoke in between is not invented: dumps are so close that
    none of the silences in between was longer than the journal's threshold.

    Args:
        journal: Made with `clock_ns` on the monotonic clock, in `gaps` mode, with a
            threshold of two periods of the dumps. A shorter silence between two that a
            dump shows may have been none.
        config: The limits and the tick of the watch.
        closes: Whether the watch closes connections. If not, no timeout is in force,
            and an audit judges none.
        clock: Seconds, monotonic; it dates what is only known to have happened.
    Cost: about 350 bytes per open connection.
    """

    def __init__(
        self, journal: Journal, config: Attach, closes: bool, clock: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._logs: dict[bytes, ConnectionLog] = {}
        self._timeout_ms = round(config.idle * (1 + config.jitter) * 1e3) if closes else 0
        self._notable = config.tick * NOTABLE_SHARE
        self._clock = clock
        self._grain_ns = 2 * to_ns(grain())
        journal.witness(self._look)

    def _look(self, known: OpenStates) -> None:
        """A connection is looked at before it can have been silent for too long, so
        what the latest look and the latest dump showed holds until then.
        """
        known.update(
            {log: (log.last_ns, log.timeout_ms, log.n) for log in list(self._logs.values())}
        )

    def heard(self, ident: bytes, since: float, peers_turn: bool | None) -> None:
        """Write that the peer of a connection has been silent since *since*, at the
        earliest.

        While the server is at work no timeout is in force. Cost: 0.5 us.
        """
        if (log := self._logs.get(ident)) is None:
            return
        # Two snapshots of one stamp differ by their grain.
        if (t := to_ns(since)) > log.last_ns + self._grain_ns:
            log.touch(t)
        if peers_turn is not None:
            log.timeout_ms = self._timeout_ms if peers_turn else 0

    def note(self, event: Event) -> None:
        """Write *event*."""
        if event.kind == "found":
            local, remote = addresses_of(event.ident)
            opened = to_ns(event.opened)
            log = self._journal.open(opened, self._timeout_ms, str(local), peer_key(remote, local))
            if (since := to_ns(event.since)) > opened:
                # What was before the first look was nobody's timeout.
                log.timeout_ms = 0
                log.touch(since)
                log.timeout_ms = self._timeout_ms
            self._logs[event.ident] = log
            return
        log = self._logs[event.ident]
        if event.since != NONE:
            log.last_ns = max(log.last_ns, to_ns(event.since))
        if event.kind == "averted":
            log.averted(to_ns(event.at))
        elif event.kind == "unsure":  # Whoever may wait for an answer is under no timeout.
            log.timeout_ms = 0
        elif event.kind == "closed":
            log.timeout_ms = round(event.limit * 1e3)
            log.reap(
                to_ns(event.at),
                to_ns(event.due),
                event.reason,
                deadline=event.reason not in SLIDING,
            )
            del self._logs[event.ident]
        elif event.kind == "gone":
            if event.since == NONE:  # It was the server's turn, so no timeout was in force.
                log.timeout_ms = 0
            log.close_peer(max(to_ns(self._clock()), log.last_ns), "gone")
            del self._logs[event.ident]

    def began(self, now: float) -> None:
        """Write that the first discovery is complete, at *now*, seconds.

        Everything before is one stall: a connection that was late by then could not be
        closed in time.
        """
        earliest = min((log.last_ns for log in self._logs.values()), default=to_ns(now))
        self._journal.stall(to_ns(now), max(to_ns(now) - earliest, 0))

    def stalled(self, now: float, lag: float) -> None:
        """Write that the loop woke *lag* seconds late, at *now*, if that is worth a
        row.
        """
        if lag > self._notable:
            self._journal.stall(to_ns(now), to_ns(lag))


class Runner:
    """Watches *target* until told to stop.

    Args:
        target: Names the connections.
        config: The limits and the tick; the jitter, the bound and the way of the
            closes.
        view: Makes the view that shows the watch it is given.
        closes: Whether anything is closed at all.
        clock: Seconds, monotonic.
    Attributes:
        watch: What it watches.
        view: What shows it.
        period: Seconds between two discoveries.
    Raises:
        Refusal: no limit is set, or one shorter than the tick; or *closes*, and a right
            or a feature of the kernel is missing.
    """

    def __init__(
        self,
        target: Target,
        config: Attach,
        *,
        view: Callable[[Watch], View],
        closes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = limits_of(config)
        target.in_slices = True  # and `_loop` reads on
        hands = Hands(target, config.how == "destroy", clock)
        end: End | None = hands.end
        try:
            hands.check_rights()
        except Refusal:
            if closes:
                raise
            end = None
        self.watch: Watch = Watch(
            target.kernel.look,
            limits,
            glance=target.kernel.glance,
            tick=config.tick,
            end=end,
            ask=(lambda ident, inode: hands.ask(ident, inode, limits.asks)) if closes else None,
            closes=closes,
            jitter=config.jitter,
            reaps_per_second=config.reaps_per_second,
            on=self._note,
        )
        self.view: View = view(self.watch)
        self._target = target
        self._closes = closes
        self._config = config
        self._clock = clock
        self._book: JournalBook | None = None
        self.period: float = min(max(limits.shortest() / 2, config.tick), LONGEST_PERIOD)

    def keep(self, journal: Journal) -> None:
        """Write what happens from now on to *journal*."""
        self._book = JournalBook(journal, self._config, self._closes, self._clock)
        self.watch.heard = self._book.heard
        text = f"attach {self._target} close={self._closes} {self.watch.limits}"
        journal.config(int(self._clock() * 1e9), text)

    def run(self) -> int:
        """Watch until SIGINT or SIGTERM, or until the target is gone for good; the exit
        status.
        """
        with stoppable() as stop:
            self.view.start(str(self._target), self._closes)
            limits = self.watch.limits
            cut = said(limits.idle, limits.max_age, limits.even_unanswered)
            if self._closes and cut:
                self.view.say(cut)
            try:
                self._loop(stop)
            except Refusal as gone:
                self.view.say(str(gone))
            except BrokenPipeError:  # `attach | head` is as good as Ctrl-C.
                pass
            finally:
                with suppress(BrokenPipeError):
                    self.view.end()
        return 0

    def _loop(self, stop: threading.Event) -> None:
        """Work off what is due, then a slice of a discovery, and sleep until more is to
        be done.
        """
        next_dump = wake = self._clock()
        discovery: Iterator[None] | None = None
        pause = 0.0
        while not stop.wait(max(pause, 0.0)):
            now = self._clock()
            if self._book is not None:
                self._book.stalled(now, now - wake)
            looked = self.watch.advance(now)
            if discovery is None and now >= next_dump:
                discovery = self._discover()
                next_dump = now + self.period
            if discovery is not None and next(discovery, self) is self:
                discovery = None
            rest = self._target.read_on()
            shown = self.view.refresh(now)
            wake = self._clock()
            if looked >= SLICE or discovery is not None:
                pause = 0.0
                continue
            due = self.watch.next_wakeup(wake)
            go_on = None if rest is None else wake + rest
            wake = min(at for at in (next_dump, due, shown, go_on) if at is not None)
            pause = wake - self._clock()

    def _discover(self) -> Iterator[None]:
        """Make one discovery; each step is a slice of it."""
        first = not self.watch.counts.dumps
        before, dump = self._target.served, self._target.survey(self.watch.sighted)
        if self._target.served != before and self._target.tells_gaps:
            self.view.say(
                f"{self._target} " + ("is not served now; waiting" if before else "is served again")
            )
        yield from self.watch.discover(dump, self._target.wanted)
        for line in self._target.unread():
            self.view.say(line)
        if self._book is not None and first:
            self._book.began(self._clock())

    def _note(self, event: Event) -> None:
        if self._book is not None:
            self._book.note(event)
        self.view.note(event)
