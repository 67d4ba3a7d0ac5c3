"""What a touch costs in Netty's timer wheel, compared with `lease.touch()` in the same rounds.

Each way of using the wheel runs in a JVM of its own, from the jars that come with pyspark, warmed up until it gets no
faster; a round makes each touch the same number of connections in random order, with `lease.touch()` before and after.
`touch_ns` is CPU time of the thread that touches; `process_cpu_ns` that of the whole process until all that the touches
left to the timer's thread is done, and for us the touch with its share of the ticks. Kafka's wheel is not compared: its
jars do not come with pyspark.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import reaper

from ..common import Note, Scale, by_scale, cool, figure, markdown, names, ratios, short, spread, times

SOURCES = Path(__file__).parent / "jvm"
LEASE = "lease.touch"
PEERS = {
    "netty-wheel": "Netty HashedWheelTimer: cancel + newTimeout",
    "netty-wheel-lazy": "Netty HashedWheelTimer, one store per packet, re-armed only when it fires",
}
PATIENCE = 180.0
"""Seconds for one answer; far more than any takes."""
TIMEOUT, TICK = 30.0, 1.0  # seconds, of the leases
TOUCHED_EVERY = 10  # ticks between two touches of a lease while ticks are counted in


class Missing(Exception):
    """What the JVM needs is not installed. The message says what, and what would bring it."""


class Size(NamedTuple):
    """How much is measured."""

    connections: int
    touches: int  # a round
    rounds: int
    warm_ms: int  # at most


def tool(name: str) -> str:
    """Where the JDK's *name* is. Raises Missing if neither JAVA_HOME nor the PATH has it."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=os.path.join(home, "bin")) if home else None
    found = found or shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed (Debian package openjdk-17-jdk-headless)")
    return found


def jar() -> Path:
    """Netty's. Raises Missing where pyspark or the jar is absent."""
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that would take a second
    if spec is None or spec.origin is None:
        raise Missing("pyspark is not installed; Netty comes with it: pip install pyspark")
    found = sorted((Path(spec.origin).parent / "jars").glob("netty-common-[0-9]*.jar"))
    if not found:
        raise Missing("netty-common-*.jar is not among pyspark's jars")
    return found[0]


def compiled(into: Path) -> str:
    """Compile what is in `SOURCES` into the folder *into* and return the class path to run them with. About 3 s.

    Raises:
        Missing: No compiler, no jars.
        RuntimeError: The compiler refused; with its words.
    """
    path = str(jar())
    sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
    command = [tool("javac"), "-Xlint:all", "-Werror", "-proc:none", "-cp", path, "-d", str(into), *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"javac: {done.stderr or done.stdout}")
    return os.pathsep.join([path, str(into)])


class Jvm:
    """A running peer. What it says on stderr is kept in *log* for the day it fails."""

    def __init__(self, class_path: str, peer: str, connections: int, warm_ms: int, heap: str, log: Path) -> None:
        self.peer = peer
        self._log = log
        command = [tool("java"), f"-Xmx{heap}", "-cp", class_path, "Bench", peer, str(connections), str(warm_ms)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        # The kernel's number for "CPU clock of that process": all its threads, those that have ended as well.
        self._clock = ~self._process.pid << 3 | 2

    def cpu_ns(self) -> int:
        """CPU nanoseconds of the whole process so far: every thread of its own, the collector and the compiler."""
        return time.clock_gettime_ns(self._clock)

    def tell(self, line: str) -> None:
        """Send a line; `answer` gives what comes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """The next line of JSON it says.

        Raises:
            RuntimeError: It ended, or said nothing for `PATIENCE` seconds; with the end of what it said on stderr.
        """
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            words = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the JVM with {self.peer} {'ended' if ready else 'does not answer'}: {words}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str) -> dict[str, Any]:
        """`tell`, then `answer`."""
        self.tell(line)
        return self.answer()

    def end(self) -> None:
        """Close its input, and wait; kill it if that does not help. Harmless if it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def running(
    class_path: str, peers: dict[str, int], warm_ms: int, heap: str, folder: Path
) -> Iterator[dict[str, tuple[Jvm, dict[str, Any]]]]:
    """A JVM for each of *peers* (name -> connections), with what it said when it was ready; all ended after the block.

    They start together, and so warm up side by side.
    """
    started: dict[str, Jvm] = {}
    try:
        for peer, connections in peers.items():
            log = folder / f"{peer}.log"
            started[peer] = Jvm(class_path, peer, connections, warm_ms, heap, log)
        yield {peer: (jvm, jvm.answer()) for peer, jvm in started.items()}
    finally:
        for jvm in started.values():
            jvm.end()


def touch_all(leases: Iterable[reaper.Lease]) -> None:
    """The loop that is measured, and nothing else: the interpreter specialises a function by what it has seen in it."""
    for lease in leases:
        lease.touch()


class Leases:
    """Our side: leases of one reaper, touched in random order, round after round."""

    def __init__(self, connections: int) -> None:
        self._core = reaper.IdleReaper(tick=TICK)
        self._now = 0.0
        uids = names(connections)
        self._order = [self._core.register(uid, timeout=TIMEOUT, now=0.0) for uid in uids]
        random.Random(1).shuffle(self._order)
        self._position = 0
        for _ in range(4 * TOUCHED_EVERY):  # until the ticks are in their stride
            self._tick(connections // TOUCHED_EVERY)

    def touch(self, touches: int) -> float:
        """CPU nanoseconds a touch, with the loop around it: the JVM's has one as well."""
        self._now += TICK
        self._core.close_epoch(self._now)
        self._cooled(touches)
        return self._touch(self._take(touches)) / touches

    def touch_and_tick(self, touches: int) -> float:
        """CPU nanoseconds a touch with its share of the ticks, each lease touched once in `TOUCHED_EVERY` ticks."""
        self._cooled(touches)
        each = max(1, len(self._order) // TOUCHED_EVERY)
        ticks = max(1, touches // each)
        return sum(self._tick(each) for _ in range(ticks)) / (ticks * each)

    def _cooled(self, touches: int) -> None:
        """Empty the caches, then some touches that are not counted: what every JVM's turn begins with as well."""
        cool()
        self._touch(self._take(touches // 4))

    def _tick(self, touches: int) -> int:
        spent = self._touch(self._take(touches))
        self._now += TICK
        before = time.thread_time_ns()
        expired = self._core.advance(self._now)
        spent += time.thread_time_ns() - before
        if expired:
            raise RuntimeError(f"{len(expired)} leases expired although each was touched every {TOUCHED_EVERY} s")
        return spent

    @staticmethod
    def _touch(parts: Sequence[Sequence[reaper.Lease]]) -> int:
        before = time.thread_time_ns()
        for part in parts:
            touch_all(part)
        return time.thread_time_ns() - before

    def _take(self, touches: int) -> list[list[reaper.Lease]]:
        """The next *touches* leases of the random order, from the beginning again after the last."""
        parts = []
        while touches > 0:
            part = self._order[self._position : self._position + touches]
            parts.append(part)
            touches -= len(part)
            self._position = (self._position + len(part)) % len(self._order)
        return parts


def run(scale: Scale, note: Note, sizes: Sequence[Size] | None = None) -> dict[str, Any]:
    """`results[peer][n]`, `ratios[peer][n]`: ours / theirs, `touch` and `all_in`; `checks`.

    {"absent": why} without Java.
    """
    quick = [Size(1_000, 50_000, 3, 600), Size(10_000, 50_000, 3, 600)]
    full = [Size(1_000, 200_000, 11, 4_000), Size(100_000, 200_000, 11, 4_000), Size(1_000_000, 300_000, 9, 6_000)]
    report: dict[str, Any] = {"results": {LEASE: {}}, "ratios": {}, "checks": {}}
    with tempfile.TemporaryDirectory(prefix="reaper-jvm-") as folder:
        try:
            tool("java")
            class_path = compiled(Path(folder))
        except Missing as missing:
            return {"absent": str(missing)}
        report["jars"] = [jar().name]
        for size in sizes or by_scale(scale, quick[:1], quick, full):
            note(f"{size.connections:,} connections: starting {', '.join(PEERS)}")
            leases = Leases(size.connections)
            with running(class_path, dict.fromkeys(PEERS, size.connections), size.warm_ms, "2g", Path(folder)) as jvms:
                _measure(size, jvms, leases, report, note)
                if not report["checks"]:
                    _check({peer: jvm for peer, (jvm, _) in jvms.items()}, report, note)
                for peer, (jvm, ready) in jvms.items():
                    report["java"] = f"{ready['vm']} {ready['java']}"
                    found = report["results"][peer][str(size.connections)]
                    found["bytes"] = (ready["heap"] - ready["heap_before"]) / size.connections
                    found["bytes_after"] = (jvm.ask("memory")["heap"] - ready["heap_before"]) / size.connections
            del leases
    return report


def _measure(
    size: Size, jvms: dict[str, tuple[Jvm, dict[str, Any]]], leases: Leases, report: dict[str, Any], note: Note
) -> None:
    """The rounds. Each peer's turn lies between two of ours, and is compared with their mean."""
    ours: list[tuple[float, float]] = []
    theirs: dict[str, list[tuple[float, float]]] = {peer: [] for peer in jvms}
    beside: dict[str, list[tuple[float, float]]] = {peer: [] for peer in jvms}
    order = list(jvms)

    def our_turn() -> tuple[float, float]:
        ours.append((leases.touch(size.touches), leases.touch_and_tick(size.touches)))
        return ours[-1]

    for turn in range(size.rounds):
        note(f"{size.connections:,} connections: round {turn + 1} of {size.rounds}")
        before = our_turn()
        for peer in order:
            jvm = jvms[peer][0]
            cool()
            cpu = jvm.cpu_ns()
            answer = jvm.ask(f"round {size.touches}")
            cpu = jvm.cpu_ns() - cpu
            theirs[peer].append((answer["cpu_ns"] / size.touches, cpu / answer["all_touches"]))
            after = our_turn()
            beside[peer].append(((before[0] + after[0]) / 2, (before[1] + after[1]) / 2))
            before = after
        order.append(order.pop(0))
    key = str(size.connections)
    for peer, samples in {LEASE: ours, **theirs}.items():
        columns = list(zip(*samples, strict=True))
        figures = {name: spread(column) for name, column in zip(("touch_ns", "process_cpu_ns"), columns, strict=True)}
        report["results"].setdefault(peer, {})[key] = figures
        if peer != LEASE:
            mine = zip(*beside[peer], strict=True)
            pairs = zip(("touch", "all_in"), mine, columns, strict=True)
            report["ratios"].setdefault(peer, {})[key] = {name: ratios(us, them) for name, us, them in pairs}


def _check(jvms: dict[str, Jvm], report: dict[str, Any], note: Note) -> None:
    """All at once: they sleep nearly all the time. One that does not do its work is an error."""
    note(f"checking that {', '.join(jvms)} fire, and only when they should")
    for jvm in jvms.values():
        jvm.tell("check")
    for peer, jvm in jvms.items():
        report["checks"][peer] = found = jvm.answer()
        if wrong := wrong_with(found):
            raise RuntimeError(f"{peer}, {found['each']} silent and {found['each']} touched connections: {wrong}")


def wrong_with(found: dict[str, Any]) -> str | None:
    """What a peer did wrong in its check; None if nothing. Being late is no wrong here, it is a figure."""
    for name in ("silent", "touched"):
        group = found[name]
        if group["fired"] != found["each"]:
            return f"of the {name}, {group['fired']} fired"
        if group["twice"]:
            return f"of the {name}, {group['twice']} fired more than once"
        if group["late_ms_least"] < 0:
            return f"of the {name}, one fired {-group['late_ms_least']} ms early"
    # A timer that fired while touched was not early: this machine did not let the touches through for a whole timeout.
    return None


def table(found: dict[str, Any]) -> str:
    """A row per way of using the wheel, ours / theirs in each cell."""
    sizes = list(found["results"][LEASE])
    rows = []
    for peer, what in {**PEERS, LEASE: "**reaper: lease.touch()**"}.items():
        cells = []
        for figure_of, ratio_of in (("touch_ns", "touch"), ("process_cpu_ns", "all_in")):
            for size in sizes:
                shown = figure(found["results"][peer][size][figure_of]["median"])
                ratio = found["ratios"].get(peer, {}).get(size)
                cells.append(shown if ratio is None else f"{shown}; ours {times(ratio[ratio_of])} of it")
        rows.append([what, *cells])
    columns = [f"{short(size)}, {which}" for which in ("thread", "process") for size in sizes]
    return markdown(["CPU ns per touch", *columns], rows) + (
        f"\n\n{found['java']}. *Process*: until the work that was put off for the timer's thread is done; for us, with "
        "a share of the ticks. Kafka's wheel is not compared: its jars do not come with pyspark."
    )
