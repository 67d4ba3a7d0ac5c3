"""Worker processes that share one port: replaced while they run, drained at the end.

One rule: *what was accepted is answered*, whichever worker dies, stalls or is told to
end.

A signal takes effect once. Signals go to a whole group of processes more often than not
(Ctrl-C, systemd's default, a terminal that hangs up), so the supervisor alone acts on
them, and its word reaches the workers through a pipe:

| signal | to the supervisor, or to its group | to one worker |
|---|---|---|
| SIGTERM | drain; more mean the same | a successor starts; then this worker drains |
| SIGINT (Ctrl-C) | drain; one more than a second later ends all at once | nothing |
| SIGHUP | read the configuration anew; nothing during a drain | nothing |

**The last to leave turns newcomers away.** A server that stops closes its listening
sockets, and the kernel resets each client that is between SYN and accept at that
moment. So each worker first has the kernel drop SYNs (`listening.turn_away`), but only
if nobody else accepts from the same sockets: otherwise it would turn clients away from
a server that goes on. Only the supervisor knows which of the two holds. Where the
kernel lets root alone filter a TCP socket, and the server is not root, a newcomer of
that moment is reset all the same.

That is why a worker does not drain by itself when it gets SIGTERM. It notes the instant
in memory that it shares with the supervisor (`told`), goes on serving, and waits for
the supervisor's word:

- *The group got the signal, and so did the supervisor.* Its word to all comes with its
  next look, `LOOK` seconds later at the most, and says whether they are the last.
- *This worker alone got it.* The supervisor has had no signal for `GROUP` seconds. It
  starts a successor in the worker's place, on the same sockets; as soon as that listens
  the old worker is told to drain. It closes its copies of the sockets, and so newcomers
  never wait for the end of its drain.
- *The supervisor does not answer* (it is stopped, or cannot fork). After `WORD` seconds
  the worker drains without a word: its newcomers wait in the backlog. If the supervisor
  has died, the pipe ends, and the worker drains at once.

Nobody is reset in any of the three, because the worker accepts until it has the word.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import math
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

import trio

from .listening import Listening
from .notify import Notify, say
from .status import Doors

log = logging.getLogger("server_example")

BEAT, FEW = 0.25, 8
"""Seconds between two signs of life of a worker, where there are up to so many; more of
them give signs less often.
"""

BEATS_OF_PATIENCE = 8
"""Signs of life, at least, in the time after which a worker counts as stalled."""

LOOK = 0.05
"""Seconds between two looks of the supervisor at its workers."""

GROUP = 0.1
"""Seconds after a worker's SIGTERM in which the supervisor may get its own, if the
group got it.
"""

WORD = 5.0
"""Seconds for which a worker that got SIGTERM waits for the supervisor's word. A
successor is there within a second, also on a busy machine.
"""

GRACE = 5.0
"""Seconds in which a stalled worker is replaced, before the server as a whole counts as
stalled.
"""

BURST = 1.0
"""Seconds in which repeated Ctrl-C counts as one: a finger, a shell and a wrapper may
each send it.
"""

DEATHS = 5
"""Deaths of one worker within `DEATHS_WITHIN` that are borne; one more ends the
server.
"""

DEATHS_WITHIN = 60.0  # seconds

FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0
"""Seconds until a worker that died again is replaced: doubled with each death, none for
the first.
"""

DRAIN, LAST, REPLACED, RELOAD, END = b"d", b"l", b"s", b"r", b"e"
"""The supervisor's words. LAST or REPLACED goes with DRAIN: no other server accepts
from the sockets, or a successor does.
"""


class Counters:
    """Numbers that one worker writes and the supervisor reads, in memory that they
    share.
    """

    SUMS = ("accepted", "reaped", "averted", "stalls", "reaper_cpu")
    NAMES = ("ready", "beat", "told", "open", "max_lag", *SUMS)

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, 8 * len(self.NAMES))).cast("d")

    def __getitem__(self, name: str) -> float:
        value: float = self._memory[self.NAMES.index(name)]
        return value

    def __setitem__(self, name: str, value: float) -> None:
        self._memory[self.NAMES.index(name)] = value

    def publish(self, figures: Mapping[str, float]) -> None:
        """Write what this worker has counted."""
        for name, value in figures.items():
            self[name] = value


def publish_nothing() -> None:
    """There is nothing to publish before a worker serves."""


@dataclass
class Worker:
    """What a worker process is given: its listening sockets, its counters, and the
    supervisor's word.

    Attributes:
        index: Which of the *workers* it is; its successor is the same.
        patience: Seconds without a sign of life after which it counts as stalled; 0:
            never.
        listening: Accept from all of them.
        counters: Read by the supervisor.
        doors: The sockets at which it and the other workers are asked how they are.
        orders: Descriptor of the pipe from the supervisor.
        publish: Writes the counters; called with every sign of life.
        reload: Reads the configuration anew; called when the supervisor says so.
        stop: Set when it is to accept no more, and to drain.
        last: Whether nobody accepts from *listening* after that.
        replaced: Whether a successor accepts from *listening*, and answers at its door.
    """

    index: int
    workers: int
    patience: float
    listening: list[socket.socket]
    counters: Counters
    doors: Doors
    orders: int
    publish: Callable[[], object] = publish_nothing
    reload: Callable[[], Awaitable[object]] | None = None
    stop: trio.Event = field(default_factory=trio.Event)
    last: bool = False
    replaced: bool = False

    @property
    def phase(self) -> float:
        """For its reaper's `driver.phase`, 0 <= phase < 1: workers wake at different
        instants.
        """
        return self.index / self.workers

    @property
    def beat(self) -> float:
        """Seconds between two signs of life."""
        return min(
            BEAT * max(self.workers / FEW, 1.0), self.patience / BEATS_OF_PATIENCE or math.inf
        )

    async def run(self, serve: Serve) -> None:
        """Run *serve* and give signs of life, until *serve* ends or the supervisor says
        so.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            nursery.start_soon(self._obey, nursery.cancel_scope)
            nursery.start_soon(self._terminated)
            await serve(self)
            nursery.cancel_scope.cancel()

    async def _beat(self) -> None:
        while True:
            self.publish()
            self.counters["beat"] = time.monotonic()
            await trio.sleep(self.beat)

    async def _obey(self, life: trio.CancelScope) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.orders)
            words = os.read(self.orders, 64)
            if END in words:
                life.cancel()
            self.last |= LAST in words
            self.replaced |= REPLACED in words
            if DRAIN in words or not words:
                self.stop.set()
            elif RELOAD in words:
                # Before it serves there is nothing to reload, but the file may have
                # changed since it was read.
                while self.reload is None:
                    await trio.sleep(self.beat)
                await self.reload()
            if not words:
                return  # the supervisor is gone, and has no further word

    async def _terminated(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                self.counters["told"] = time.monotonic()
                with trio.move_on_after(WORD):
                    await self.stop.wait()
                self.stop.set()


Serve = Callable[[Worker], Awaitable[None]]


@dataclass
class _Process:
    """A worker process, as the supervisor knows it.

    Attributes:
        index: Of its place.
        orders: Descriptor of the pipe to it.
        counters: What it shares with the supervisor.
        replaced: Whether it has been told that its successor listens.
    """

    index: int
    pid: int
    orders: int
    counters: Counters
    replaced: bool = False

    def tell(self, words: bytes) -> None:
        """Send it the supervisor's words, unless it has just ended."""
        with suppress(BrokenPipeError):
            os.write(self.orders, words)

    def __str__(self) -> str:
        return f"worker {self.index} (pid {self.pid})"


@dataclass
class _Slot:
    """The place of one worker.

    Attributes:
        process: The one that has the place; None: there is none.
        due: When the place is filled again, in seconds on the monotonic clock, while
            there is no process; infinite: never.
        deaths: When processes of this place died.
    """

    index: int
    process: _Process | None = None
    due: float = 0.0
    deaths: list[float] = field(default_factory=list)


class Supervisor:
    """Starts the workers, replaces those that die, stall or are told to end, and waits
    for all.

    It prints a line with figures when they change, once per second at most.

    Args:
        listening: The sockets that the workers accept from. They are closed when the
            drain begins.
        workers: How many.
        watchdog: Seconds without a sign of life after which a worker is killed and
            replaced; 0: it never is.
        doors: The sockets at which workers are asked how they are; None: workers ask
            each other only.
    """

    def __init__(
        self, listening: Listening, workers: int, watchdog: float = 30.0, doors: Doors | None = None
    ) -> None:
        self._listening = listening
        self._watchdog = watchdog
        self._doors = Doors(workers) if doors is None else doors
        self._slots = [_Slot(index) for index in range(workers)]
        self._leaving: list[_Process] = []  # they were told to end, and others have their places
        self._past = dict.fromkeys((*Counters.SUMS, "max_lag"), 0.0)  # of those that have ended
        self._asked: float | None = None  # when the drain was asked for
        self._reload = self._end = self._draining = False
        self._announced = False
        self._notify = Notify()
        self._status = 0

    def run(self, serve: Serve) -> int:
        """Run until stopped.

        Returns the exit status: 0 if every worker ended well in the end, 1 otherwise.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)
        for slot in self._slots:
            self._start(slot, serve)
        try:
            self._watch(serve)
        finally:
            self._listening.close()
            self._doors.close()
        say(f"stopped: {self._line()}", event="stopped", status=self._status, **self._figures())
        return self._status

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        elif self._asked is None:
            self._asked = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._asked >= BURST:
            self._end = True

    def _processes(self) -> list[_Process]:
        return [*filter(None, (slot.process for slot in self._slots)), *self._leaving]

    def _start(self, slot: _Slot, serve: Serve) -> None:
        sys.stdout.flush()
        ends: tuple[int, ...] = ()
        try:
            counters = Counters()
            counters["beat"] = time.monotonic()
            ends = read_end, write_end = os.pipe()
            pid = os.fork()
        except OSError as error:  # no descriptors, no memory, no room for one more process
            for end in ends:
                os.close(end)
            self._lost(
                slot, f"worker {slot.index} cannot be started: {error.strerror}", time.monotonic()
            )
            return
        if pid == 0:
            status = 1
            try:
                # Close what belongs to the supervisor alone. A worker that held the
                # pipe to another would keep that one from noticing that the supervisor
                # is gone.
                for other in self._processes():
                    os.close(other.orders)
                os.close(write_end)
                status = self._work(slot.index, counters, read_end, serve)
            finally:
                os._exit(status)
        os.close(read_end)
        slot.process = _Process(slot.index, pid, write_end, counters)

    def _work(self, index: int, counters: Counters, orders: int, serve: Serve) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR2)
        try:
            count = len(self._slots)
            mine = self._listening.share_of(index, count)
            self._listening.close(but=mine)
            # A connection is some 40 objects that the collector looks at. With its
            # usual thresholds it walks all of them again and again while connections
            # come; so it leaves alone what was there before, and looks less often.
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)
            patience = self._watchdog or self._notify.every
            worker = Worker(index, count, patience, mine, counters, self._doors, orders)
            trio.run(worker.run, serve)
        except BaseException:
            log.critical("worker %d failed", index, exc_info=True)
            return 1
        return 0

    def _watch(self, serve: Serve) -> None:
        said, next_line = "", 0.0
        looked = time.monotonic()
        while self._processes() or not self._draining:
            asking = [self._listening] if self._listening.fileno() >= 0 else []
            if select.select(asking, [], [], LOOK)[0]:
                self._listening.answer()
            now = time.monotonic()
            # A pause of the whole machine, or of the whole group, is no worker's fault.
            paused, looked = now - looked > 10 * LOOK, now
            for process in self._processes():
                self._look_at(process, now, paused)
            for slot in self._slots:
                self._replace(slot, now, serve)
                if slot.process or self._draining:
                    continue
                # When a drain has been asked for, too: the backlog of the place is
                # waiting.
                if now >= slot.due or (self._asked and slot.due < math.inf):
                    self._start(slot, serve)
            for process in self._leaving:
                self._relieve(process)
            if self._asked is not None and not self._draining:
                self._draining = True
                self._notify.send("STOPPING=1")
                last = self._listening.is_last()
                self._listening.close()  # the workers' copies are the last ones now
                self._tell(DRAIN + LAST if last else DRAIN)
            if self._reload and not self._draining:
                self._tell(RELOAD)
            self._reload = False
            if self._end:
                self._end = False
                say("interrupted again: ending at once")
                self._tell(END)
            if not self._announced and all(
                slot.process and slot.process.counters["ready"] for slot in self._slots
            ):
                self._announced = True
                self._notify.send("READY=1")
                host, port, count = self._listening.host, self._listening.port, len(self._slots)
                text = f"listening on {host}:{port} with {count} worker(s), pid {os.getpid()}"
                say(text, event="listening", host=host, port=port, workers=count)
            if self._all_alive(now):
                self._notify.alive()
            if self._announced and now >= next_line and (line := self._line()) != said:
                say(line, event="figures", **self._figures())
                self._notify.send(f"STATUS={line}")
                said, next_line = line, now + 1.0

    def _all_alive(self, now: float) -> bool:
        """Whether every loop turns, or a worker whose loop does not is about to be
        replaced.
        """
        patience = self._watchdog + GRACE if self._watchdog else self._notify.every
        complete = self._draining or all(slot.process for slot in self._slots)
        return complete and all(
            now - each.counters["beat"] <= patience for each in self._processes()
        )

    def _tell(self, words: bytes) -> None:
        for process in self._processes():
            process.tell(words)

    def _replace(self, slot: _Slot, now: float, serve: Serve) -> None:
        """Start a successor of the worker in *slot* if that one alone got SIGTERM."""
        process = slot.process
        if process is None or self._draining or self._asked is not None:
            return
        told = process.counters["told"]
        if told and now - told >= GROUP:
            say(f"{process} was told to end; starting its successor")
            self._leaving.append(process)
            slot.process = None
            self._start(slot, serve)

    def _relieve(self, process: _Process) -> None:
        """Tell a worker that is leaving to drain, once its successor listens."""
        successor = self._slots[process.index].process
        if not process.replaced and successor is not None and successor.counters["ready"]:
            process.replaced = True
            process.tell(DRAIN + REPLACED)

    def _look_at(self, process: _Process, now: float, paused: bool) -> None:
        done, code = os.waitpid(process.pid, os.WNOHANG)
        if done:
            self._ended(process, os.waitstatus_to_exitcode(code), now)
        elif paused:
            process.counters["beat"] = now
        elif self._watchdog and now - process.counters["beat"] > self._watchdog:
            say(f"{process} has stalled for {self._watchdog:g} s; killing it")
            os.kill(process.pid, signal.SIGUSR2)  # it writes where it stalled to stderr, if it can
            time.sleep(LOOK)
            os.kill(process.pid, signal.SIGKILL)
            process.counters["beat"] = math.inf

    def _ended(self, process: _Process, code: int, now: float) -> None:
        what = f"{process} ended with status {code}"
        for name in Counters.SUMS:
            self._past[name] += process.counters[name]
        self._past["max_lag"] = max(self._past["max_lag"], process.counters["max_lag"])
        os.close(process.orders)
        slot = self._slots[process.index]
        if process in self._leaving:
            self._leaving.remove(process)
            say(what)
            return
        slot.process = None
        if not self._draining:
            self._lost(slot, what, now)
        elif code:
            say(what)
            self._status = 1

    def _lost(self, slot: _Slot, what: str, now: float) -> None:
        """Have *slot*, which has no process, filled again unless that was tried too
        often.
        """
        slot.deaths = [then for then in slot.deaths if now - then < DEATHS_WITHIN] + [now]
        times = len(slot.deaths)
        if not self._announced or times > DEATHS:
            say(
                f"{what}; stopping"
                + (f", for it was the {times}th time in a minute" if self._announced else "")
            )
            self._status = 1
            self._asked = now
            slot.due = math.inf
            return
        delay = 0.0 if times == 1 else min(FIRST_DELAY * 2 ** (times - 2), LONGEST_DELAY)
        say(f"{what}; starting it again" + (f" in {delay:g} s" if delay else ""))
        slot.due = now + delay

    def _figures(self) -> dict[str, float]:
        """The sums of all workers; those that are gone are counted in."""
        counters = [process.counters for process in self._processes()]
        found = {
            name: self._past[name] + sum(each[name] for each in counters) for name in Counters.SUMS
        }
        found["max_lag"] = max(self._past["max_lag"], *(each["max_lag"] for each in counters), 0.0)
        return {"open": sum(each["open"] for each in counters), **found}

    def _line(self) -> str:
        total = self._figures()
        return (
            f"open {total['open']:.0f}, accepted {total['accepted']:.0f}, "
            f"reaped {total['reaped']:.0f}, averted {total['averted']:.0f}, "
            f"worst loop lag {total['max_lag'] * 1000:.0f} ms, "
            f"stalls {total['stalls']:.0f}, reaper task {total['reaper_cpu']:.2f} s CPU"
        )
