"""Worker processes that share one port: planned before the start, counted while they run, drained at the end.

One rule: *what cannot fit is refused before the first connection, not with EMFILE at the worst moment*. A process has a
limited number of descriptors, so many connections need several processes. Each worker listens on a socket of its own
with SO_REUSEPORT, and the kernel spreads the connections evenly by hash.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType

import trio

import reaper.trio

RESERVED_DESCRIPTORS = 256
"""Of each worker's descriptors: the loop's own, the standard streams, imports, log files."""

SPREAD = 0.95
"""Share of a worker's descriptors to plan with: the kernel's hash fills some workers a little more than others."""

BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn


ACCEPTS_PER_PASS = 64

OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class CannotFit(Exception):
    """The connections asked for do not fit in the processes asked for."""


def descriptors() -> int:
    """Raise this process's soft limit of descriptors to the hard one and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def plan(workers: int | str, connections: int | None, limit: int) -> int:
    """How many worker processes to start.

    Args:
        workers: A number, or "auto": as many as there are processors, more if the connections need more.
        connections: How many must be able to be open at once; None: as many as fit.
        limit: Descriptors a process.
    Raises:
        CannotFit: with one line that says what would be needed.
    """
    each = int((limit - RESERVED_DESCRIPTORS) * SPREAD)
    if each < 1:
        raise CannotFit(f"{limit} descriptors a process leave none for connections; raise `ulimit -n` above 300")
    needed = -(-connections // each) if connections else 1
    if workers == "auto":
        return max(needed, len(os.sched_getaffinity(0)))
    count = int(workers)
    if needed > count:
        raise CannotFit(
            f"{connections} connections do not fit in {count} worker(s) of {limit} descriptors each "
            f"({each} connections a worker); take --workers {needed} or auto"
        )
    return count


class Counters:
    """Numbers that a worker writes and the supervisor reads, in memory they share."""

    NAMES = ("ready", "open", "accepted", "reaped", "averted", "lag", "max_lag", "stalls", "reaper_cpu")

    def __init__(self, memory: memoryview[float]) -> None:
        self._memory = memory

    def __getitem__(self, name: str) -> float:
        value: float = self._memory[self.NAMES.index(name)]
        return value

    def __setitem__(self, name: str, value: float) -> None:
        self._memory[self.NAMES.index(name)] = value

    def note(self, statistics: reaper.trio.LoopStatistics) -> None:
        """Write what the worker's reaper says of itself and of its loop."""
        self["averted"] = statistics.core.averted
        self["lag"] = statistics.lag
        self["max_lag"] = statistics.max_lag
        self["stalls"] = statistics.stalls
        self["reaper_cpu"] = statistics.cpu


class Worker:
    """What a worker process is given: its listening socket, its counters, and the word to stop."""

    def __init__(self, index: int, listening: socket.socket, counters: Counters, lifeline: int) -> None:
        self.index = index
        self.listening = listening
        self.listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        self.counters = counters
        self._lifeline = lifeline

    async def serve(
        self,
        handler: Callable[[trio.SocketStream], Awaitable[object]],
        nursery: trio.Nursery,
        welcome: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Accept until cancelled; *nursery* runs *handler* on each connection and the connection is closed after it.

        Accepts in bursts. One connection a scheduling pass, as `trio.serve_listeners` does it, starves newcomers when
        thousands of others keep each pass busy. Before each burst *welcome* is awaited: it may keep the door shut.
        """

        async def handle(stream: trio.SocketStream) -> None:
            try:
                await handler(stream)
            finally:
                await trio.aclose_forcefully(stream)

        self.listening.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(self.listening)
            await welcome()
            for _ in range(ACCEPTS_PER_PASS):
                try:
                    accepted, _ = self.listening.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno not in OUT_OF_DESCRIPTORS:
                        raise
                    await trio.sleep(0.1)  # the backlog holds them until some connection has ended
                    break
                nursery.start_soon(handle, trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))

    async def stop_requested(self) -> None:
        """Return when SIGTERM or SIGINT has come, or the supervisor is gone."""
        async with trio.open_nursery() as nursery:

            async def orphaned() -> None:
                await trio.lowlevel.wait_readable(self._lifeline)
                nursery.cancel_scope.cancel()

            nursery.start_soon(orphaned)
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    break
            nursery.cancel_scope.cancel()


Serve = Callable[[Worker], Awaitable[None]]


class Supervisor:
    """Starts the workers, prints a line a second at most, passes signals on, and waits for all of them.

    Attributes:
        port: The port they share, chosen by the kernel if 0 was asked for.
    """

    def __init__(self, host: str, port: int, workers: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Bound but never listening: it only keeps the port for the workers' own sockets.
        self._placeholder = _bound(family, host, port)
        self.host = host
        self.port: int = self._placeholder.getsockname()[1]
        self._family = family
        self._workers = workers
        size = len(Counters.NAMES) * 8
        self._shared = memoryview(mmap.mmap(-1, size * workers)).cast("d")
        self.counters = [
            Counters(self._shared[i * len(Counters.NAMES) : (i + 1) * len(Counters.NAMES)]) for i in range(workers)
        ]
        self._pids: dict[int, int] = {}
        self._stopping = False

    def run(self, serve: Serve) -> int:
        """Run until stopped. Returns the exit status: 0 if every worker ended well, 1 otherwise."""
        read_end, write_end = os.pipe()
        for index in range(self._workers):
            pid = os.fork()
            if pid == 0:
                os.close(write_end)
                os._exit(self._work(index, read_end, serve))
            self._pids[pid] = index
        os.close(read_end)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        status = self._watch()
        os.close(write_end)
        return status

    def _work(self, index: int, lifeline: int, serve: Serve) -> int:
        try:
            listening = _bound(self._family, self.host, self.port)
            listening.listen(BACKLOG)
            self._placeholder.close()
            worker = Worker(index, listening, self.counters[index], lifeline)
            # A connection is some 40 objects the collector looks at. With its usual thresholds it walks all of them
            # again and again while connections come; so it leaves alone what was there before, and looks less often.
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)
            trio.run(serve, worker)
        except KeyboardInterrupt:
            return 0
        except BaseException:
            traceback.print_exc()
            return 1
        return 0

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._stopping = self._stopping or number != signal.SIGHUP
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    def _watch(self) -> int:
        status = 0
        said = ""
        announced = False
        next_line = time.monotonic()
        while self._pids:
            time.sleep(0.05)
            for pid in list(self._pids):
                done, code = os.waitpid(pid, os.WNOHANG)
                if done:
                    index = self._pids.pop(pid)
                    if code or not self._stopping:
                        say(f"worker {index} (pid {pid}) ended with status {os.waitstatus_to_exitcode(code)}; stopping")
                        status = 1
                        if not self._stopping:
                            self._pass_on(signal.SIGTERM, None)
            if not announced and all(counters["ready"] for counters in self.counters):
                announced = True
                say(f"listening on {self.host}:{self.port} with {self._workers} worker(s), pid {os.getpid()}")
            if announced and time.monotonic() >= next_line:
                line = self._line()
                if line != said:
                    say(line)
                    said = line
                    next_line = time.monotonic() + 1.0
        say(f"stopped: {self._line()}")
        return status

    def _line(self) -> str:
        total = {name: sum(counters[name] for counters in self.counters) for name in Counters.NAMES}
        worst = max(counters["max_lag"] for counters in self.counters)
        return (
            f"open {total['open']:.0f}, accepted {total['accepted']:.0f}, reaped {total['reaped']:.0f}, "
            f"averted {total['averted']:.0f}, worst loop lag {worst * 1000:.0f} ms, stalls {total['stalls']:.0f}, "
            f"reaper task {total['reaper_cpu']:.2f} s CPU"
        )


def say(line: str) -> None:
    """Print *line* at once, also into a pipe."""
    print(line, flush=True, file=sys.stdout)


def _bound(family: int, host: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    return bound
