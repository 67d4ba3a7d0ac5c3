"""The loop behind `python -m reaper attach`: a target, a watch, and what waits for signals in between.

One rule: *the loop owns the time*. It is the only place of this room that sleeps; a discovery is worked off in slices,
so that what is due is not kept waiting by a dump.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from ..config.running import stoppable
from ..config.settings import Attach
from ..journal.log import Journal
from .books import JournalBook
from .closing import Hands, check_destroy, check_shutdown
from .judge import Limits
from .kernel import Listener, Refusal, grain
from .show import View
from .sockets import probes_capped
from .targets import Network, Selection, Target, socket_of
from .watch import SLICE, Event, Watch

LONGEST_PERIOD = 60.0
"""Seconds between two discoveries, at most; otherwise half the shortest limit."""


def limits_of(config: Attach) -> Limits:
    """The limits that `[attach]` sets, with this kernel's grain.

    Raises:
        Refusal: it sets none, or one that is shorter than the tick.
    """
    times = (config.idle, config.first_byte, config.max_age, config.stalled_write, config.vanished)
    if not any(times) and not config.min_in_rate:
        raise Refusal(
            "no limit is on: give --idle 5m, --first-byte, --max-age, --stalled-write, --min-in-rate or --vanished"
        )
    shortest = min(value for value in (*times, config.min_in_grace) if value)
    if config.tick > shortest:
        raise Refusal(
            f"--tick {config.tick:g}s is longer than the shortest limit, {shortest:g}s: a quarter of it is fine"
        )
    return Limits(
        idle=config.idle,
        first_byte=config.first_byte,
        max_age=config.max_age,
        write=config.stalled_write,
        min_in_rate=config.min_in_rate,
        min_in_grace=config.min_in_grace,
        even_unanswered=config.even_unanswered,
        vanished=config.vanished,
        capped=probes_capped(),
        grain=grain(),
    )


class Runner:
    """Watches *target* until told to stop.

    Args:
        target: Whose connections.
        limits: What is not tolerated.
        config: Tick, jitter, bound and way of the closes.
        closes: Whether anything is closed at all.
        only, never: Networks of clients that are watched alone, and that are never watched.
        meant: Whether a listening socket is; None: each of the target's.
        view: Shows it; given the watch.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        target: Target,
        limits: Limits,
        config: Attach,
        *,
        view: Callable[[Watch], View],
        closes: bool = False,
        only: Sequence[Network] = (),
        never: Sequence[Network] = (),
        meant: Callable[[Listener], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target: Target = target
        self.closes: bool = closes
        self.tick: float = config.tick
        self._config = config
        self._clock = clock
        self._selection = Selection(target, only, never, meant, clock)
        kernel = target.kernel
        self._hands = Hands(target.owners, kernel.destroy if config.how == "destroy" else None, kernel.look, clock)
        self.watch: Watch = Watch(
            kernel.look,
            limits,
            tick=config.tick,
            end=self._hands.end,
            ask=(lambda ident, inode: self._hands.ask(ident, inode, limits.asks)) if closes else None,
            closes=closes,
            jitter=config.jitter,
            reaps_per_second=config.reaps_per_second,
            on=self._note,
        )
        self.view: View = view(self.watch)
        self._book: JournalBook | None = None
        self._period = min(max(limits.shortest() / 2, config.tick), LONGEST_PERIOD)
        self._served = True

    def check_rights(self) -> None:
        """Make sure, before anything is shown, that what was asked for can be done.

        Raises:
            Refusal: a right or a feature of the kernel is missing.
        """
        try:
            self._check_rights()
        except Refusal:
            if self.closes:
                raise
            self.watch.look_only()

    def _check_rights(self) -> None:
        if self._config.how == "destroy":
            check_destroy(self.target.kernel)
            return
        place = socket_of(self.target, self.target.listeners())
        if place is None:
            raise Refusal(
                f"closing connections of {self.target} needs CAP_SYS_PTRACE: no process whose descriptors may be read "
                "serves it; run as its user or as root; without --close nothing is needed"
            )
        check_shutdown(*place)

    def keep(self, journal: Journal) -> None:
        """Write what happens to *journal*."""
        self._book = JournalBook(journal, self.watch.limits, self.closes, self._config.jitter, self.tick, self._clock)
        text = f"attach {self.target} close={self.closes} {self.watch.limits}"
        journal.config(int(self._clock() * 1e9), text)

    def run(self) -> int:
        """Watch until SIGINT or SIGTERM, or until the target is gone for good. The exit status."""
        with stoppable() as stop:
            self.view.start(str(self.target), self.closes)
            try:
                self._loop(stop)
            except Refusal as gone:
                self.view.say(str(gone))
            except BrokenPipeError:  # `attach | head`: as good as Ctrl-C
                pass
            finally:
                with suppress(BrokenPipeError):
                    self.view.end()
        return 0

    def _loop(self, stop: threading.Event) -> None:
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
                next_dump = now + self._period
            if discovery is not None and next(discovery, self) is self:
                discovery = None
            shown = self.view.refresh(now)
            wake = self._clock()
            if looked >= SLICE or discovery is not None:
                pause = 0.0
                continue
            due = self.watch.next_wakeup(wake)
            wake = min(at for at in (next_dump, due, shown) if at is not None)
            pause = wake - self._clock()

    def _discover(self) -> Iterator[None]:
        """One discovery, a slice per step."""
        first = not self.watch.counts.dumps
        dump = self._selection.dump(first)
        if self._selection.served != self._served:
            self._served = self._selection.served
            self.view.say(f"{self.target} " + ("is served again" if self._served else "is not served now; waiting"))
        yield from self.watch.discover(dump, self._selection.wanted)
        if self._book is not None and first:
            self._book.began(self._clock())

    def _note(self, event: Event) -> None:
        if self._book is not None:
            self._book.note(event)
        self.view.note(event)
