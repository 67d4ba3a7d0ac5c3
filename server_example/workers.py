"""Worker processes that share one port: replaced while they run, drained at the end.

One rule: *what was accepted is answered*, whichever worker dies, stalls or is told to end.

A signal takes effect once. Signals go to a whole group of processes more often than not (Ctrl-C,
systemd's default, a terminal that hangs up), so only the supervisor acts on them, and its word
reaches the workers through a pipe:

| signal to the supervisor or to its group | what it means |
|---|---|
| SIGTERM | drain; every further one means the same |
| SIGINT (Ctrl-C) | drain; one more than a second later ends at once, with what is in flight |
| SIGHUP | read the configuration anew; nothing during a drain |

SIGTERM to one worker alone drains that one, and it is replaced.
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
"""Seconds between two signs of life of a worker, where there are up to so many; more of them give
signs less often.
"""

BEATS_OF_PATIENCE = 8
"""Signs of life, at least, in the time after which a worker counts as stalled."""

LOOK = 0.05
"""Seconds between two looks of the supervisor at its workers."""

GRACE = 5.0
"""Seconds in which a stalled worker is replaced, before the server as a whole counts as stalled."""

BURST = 1.0
"""Seconds in which repeated Ctrl-C counts as one: a finger, a shell and a wrapper may each send it.
"""

DEATHS = 5
"""Deaths of one worker within `DEATHS_WITHIN` that are borne; one more ends the server."""

DEATHS_WITHIN = 60.0  # seconds

FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0
"""Seconds until a worker that died again is replaced: doubled with each death, none for the first.
"""

DRAIN, LAST, RELOAD, END = b"d", b"l", b"r", b"e"
"""The supervisor's words. The second goes with the first where no other server accepts on the port.
"""


class Counters:
    """Numbers that a worker writes and the supervisor reads, in memory they share; sums go on from
    worker to worker.
    """

    SUMS = ("accepted", "reaped", "averted", "stalls", "reaper_cpu")
    NAMES = ("ready", "beat", "open", "max_lag", *SUMS)

    def __init__(self, memory: memoryview[float]) -> None:
        self._memory = memory
        self.begin()

    def begin(self) -> None:
        """The place is another worker's now: what those before it have counted stays."""
        self["ready"] = self["beat"] = self["open"] = 0.0
        self._before = dict(zip(self.NAMES, self._memory, strict=True))

    def __getitem__(self, name: str) -> float:
        value: float = self._memory[self.NAMES.index(name)]
        return value

    def __setitem__(self, name: str, value: float) -> None:
        self._memory[self.NAMES.index(name)] = value

    def publish(self, figures: Mapping[str, float]) -> None:
        """Write what this worker has counted."""
        for name, value in figures.items():
            before = self._before[name]
            self[name] = value + before if name in self.SUMS else max(value, before)


@dataclass
class Worker:
    """What a worker process is given: its listening sockets, its counters, and the supervisor's
    word.

    Attributes:
        index: Which of the *workers* it is; its successor is the same.
        patience: Seconds without a sign of life after which it counts as stalled; 0: never.
        listening: Accept from all of them.
        counters: Read by the supervisor.
        doors: Where it and the other workers are asked how they are.
        orders: Descriptor of the pipe from the supervisor.
        publish: Writes the counters; called with every sign of life.
        reload: Reads the configuration anew; called when the supervisor says so.
        stop: Set when it is to accept no more, and to drain.
        last: Whether no one accepts from *listening* after that.
    """

    index: int
    workers: int
    patience: float
    listening: list[socket.socket]
    counters: Counters
    doors: Doors
    orders: int
    publish: Callable[[], object] = int
    reload: Callable[[], Awaitable[object]] | None = None
    stop: trio.Event = field(default_factory=trio.Event)
    last: bool = False

    @property
    def phase(self) -> float:
        """0..1: for its reaper's `driver.phase`, so that not all workers wake in the same instant."""
        return self.index / self.workers

    @property
    def beat(self) -> float:
        """Seconds between two signs of life."""
        return min(
            BEAT * max(self.workers / FEW, 1.0), self.patience / BEATS_OF_PATIENCE or math.inf
        )

    async def run(self, serve: Serve) -> None:
        """Run *serve*, and give signs of life meanwhile. Ends with it, or when the supervisor says
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
            if DRAIN in words or not words:
                self.stop.set()
            elif RELOAD in words:
                while (
                    self.reload is None
                ):  # what was read when the worker began may have changed since
                    await trio.sleep(self.beat)
                await self.reload()
            if not words:
                return  # the supervisor is gone, and has no further word

    async def _terminated(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                self.stop.set()


Serve = Callable[[Worker], Awaitable[None]]


@dataclass
class _Slot:
    """The place of one worker.

    Attributes:
        counters: Shared with whichever process has the place.
        pid: Of that process; 0: there is none.
        orders: Descriptor of the pipe to it.
        due: When the place is filled again, on the monotonic clock, while there is no process;
            infinite: never.
        deaths: When processes of this place died.
    """

    index: int
    counters: Counters
    pid: int = 0
    orders: int = -1
    due: float = 0.0
    deaths: list[float] = field(default_factory=list)


class Supervisor:
    """Starts the workers, replaces those that died or stalled, prints a line per second at most,
    waits for all of them.

    Args:
        listening: The sockets they accept from. Closed when the drain begins.
        workers: How many.
        watchdog: Seconds without a sign of life after which a worker is killed and replaced; 0: it
            is never.
        doors: Where they are asked how they are; None: they ask each other only.
    """

    def __init__(
        self, listening: Listening, workers: int, watchdog: float = 30.0, doors: Doors | None = None
    ) -> None:
        self._listening = listening
        self._watchdog = watchdog
        length = len(Counters.NAMES)
        shared = memoryview(mmap.mmap(-1, length * 8 * workers)).cast("d")
        self._doors = Doors(workers) if doors is None else doors
        self._slots = [
            _Slot(i, Counters(shared[i * length : (i + 1) * length])) for i in range(workers)
        ]
        self._asked: float | None = None  # when the drain was asked for
        self._reload = self._end = self._draining = False
        self._announced = False
        self._notify = Notify()
        self._status = 0

    def run(self, serve: Serve) -> int:
        """Run until stopped. Returns the exit status: 0 if every worker ended well in the end, 1
        otherwise.
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

    def _start(self, slot: _Slot, serve: Serve) -> None:
        slot.counters["beat"] = time.monotonic()
        sys.stdout.flush()
        ends: tuple[int, ...] = ()
        try:
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
                # What belongs to the supervisor alone. A worker that held another's pipe would keep
                # it from noticing that the supervisor is gone.
                for other in self._slots:
                    if other.orders >= 0:
                        os.close(other.orders)
                os.close(write_end)
                status = self._work(slot, read_end, serve)
            finally:
                os._exit(status)
        os.close(read_end)
        slot.pid, slot.orders = pid, write_end

    def _work(self, slot: _Slot, orders: int, serve: Serve) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR2)
        try:
            mine = self._listening.share_of(slot.index, len(self._slots))
            self._listening.close(but=mine)
            # A connection is some 40 objects the collector looks at. With its usual thresholds it
            # walks all of them again and again while connections come; so it leaves alone what was
            # there before, and looks less often.
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)
            patience = self._watchdog or self._notify.every
            worker = Worker(
                slot.index, len(self._slots), patience, mine, slot.counters, self._doors, orders
            )
            trio.run(worker.run, serve)
        except BaseException:
            log.critical("worker %d failed", slot.index, exc_info=True)
            return 1
        return 0

    def _watch(self, serve: Serve) -> None:
        said, next_line = "", 0.0
        looked = time.monotonic()
        while any(slot.pid or not self._draining for slot in self._slots):
            if select.select(
                [self._listening] if self._listening.fileno() >= 0 else [], [], [], LOOK
            )[0]:
                self._listening.answer()
            now = time.monotonic()
            # A pause of the whole machine, or of the whole group, is no worker's fault.
            paused, looked = now - looked > 10 * LOOK, now
            for slot in self._slots:
                if slot.pid:
                    self._look_at(slot, now, paused)
                elif not self._draining and (
                    now >= slot.due or (self._asked and slot.due < math.inf)
                ):
                    self._start(slot, serve)  # also for a drain: its backlog is waiting
            if self._asked is not None and not self._draining:
                self._draining = True
                self._notify.send("STOPPING=1")
                self._listening.close()  # the workers' copies are the last ones now
                self._tell(DRAIN + LAST if self._listening.alone else DRAIN)
            if self._reload and not self._draining:
                self._tell(RELOAD)
            self._reload = False
            if self._end:
                self._end = False
                say("interrupted again: ending at once")
                self._tell(END)
            if not self._announced and all(slot.counters["ready"] for slot in self._slots):
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
        """Whether every loop turns, as far as we do not see to that ourselves: a stalled worker is
        replaced in time.
        """
        patience = self._watchdog + GRACE if self._watchdog else self._notify.every
        running = [slot for slot in self._slots if slot.pid]
        complete = self._draining or len(running) == len(self._slots)
        return complete and all(now - slot.counters["beat"] <= patience for slot in running)

    def _tell(self, word: bytes) -> None:
        for slot in self._slots:
            if slot.pid:
                with suppress(BrokenPipeError):
                    os.write(slot.orders, word)

    def _look_at(self, slot: _Slot, now: float, paused: bool) -> None:
        done, code = os.waitpid(slot.pid, os.WNOHANG)
        if done:
            self._ended(slot, os.waitstatus_to_exitcode(code), now)
        elif paused:
            slot.counters["beat"] = now
        elif self._watchdog and now - slot.counters["beat"] > self._watchdog:
            say(
                f"worker {slot.index} (pid {slot.pid}) has stalled for {self._watchdog:g} s; killing it"
            )
            os.kill(slot.pid, signal.SIGUSR2)  # it writes where it stalled to stderr, if it can
            time.sleep(LOOK)
            os.kill(slot.pid, signal.SIGKILL)
            slot.counters["beat"] = math.inf

    def _ended(self, slot: _Slot, code: int, now: float) -> None:
        what = f"worker {slot.index} (pid {slot.pid}) ended with status {code}"
        slot.counters.begin()
        os.close(slot.orders)
        slot.pid, slot.orders = 0, -1
        if not self._draining:
            self._lost(slot, what, now)
        elif code:
            say(what)
            self._status = 1

    def _lost(self, slot: _Slot, what: str, now: float) -> None:
        """There is no process in *slot*: have it filled again, unless that has been tried too
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
        """Of all workers, those that are gone included."""
        found = {
            name: sum(slot.counters[name] for slot in self._slots)
            for name in ("open", *Counters.SUMS)
        }
        found["max_lag"] = max(slot.counters["max_lag"] for slot in self._slots)
        return found

    def _line(self) -> str:
        total = self._figures()
        return (
            f"open {total['open']:.0f}, accepted {total['accepted']:.0f}, reaped {total['reaped']:.0f}, "
            f"averted {total['averted']:.0f}, worst loop lag {total['max_lag'] * 1000:.0f} ms, "
            f"stalls {total['stalls']:.0f}, reaper task {total['reaper_cpu']:.2f} s CPU"
        )
