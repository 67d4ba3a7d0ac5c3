"""What a touch costs in Netty's timer wheel, compared with `lease.touch()` in the same
rounds.

Each way of using the wheel runs in a JVM of its own, from a jar that comes with
pyspark, warmed up; a round makes each touch the same number of connections in random
order, with `lease.touch()` before and after. What counts is CPU time of the whole
process until all that the touches left to the timer's thread is done, and for us the
touch with its share of the ticks. Kafka's wheel is not compared: its jars do not come
with pyspark.
"""

from __future__ import annotations

import importlib.util
import json
import random
import select
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import reaper
from scripts.tools import Missing, tool

from ..common import (
    Note,
    Scale,
    by_scale,
    cool,
    figure,
    markdown,
    names,
    ratios,
    short,
    spread,
    times,
)

PROGRAM = Path(__file__).parent / "jvm" / "Bench.java"
LEASE = "lease.touch"
JDK = "openjdk-17-jdk-headless"
PEERS = {
    "netty-wheel": "Netty HashedWheelTimer: cancel + newTimeout",
    "netty-wheel-lazy": "Netty HashedWheelTimer, re-armed only when it fires",
}
PATIENCE = 180.0
"""Seconds for one answer; far more than any takes."""
TIMEOUT, TICK = 30.0, 1.0  # seconds, of the leases
TOUCHED_EVERY = 10  # ticks between two touches of a lease while ticks are counted in


class Size(NamedTuple):
    """How much is measured."""

    connections: int
    touches: int  # a round
    rounds: int
    warm_ms: int


def jar() -> Path:
    """Netty's. Raises Missing where pyspark or the jar is absent."""
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that would take a second
    if spec is None or spec.origin is None:
        raise Missing("pyspark is not installed; Netty comes with it: pip install pyspark")
    found = sorted((Path(spec.origin).parent / "jars").glob("netty-common-[0-9]*.jar"))
    if not found:
        raise Missing("netty-common-*.jar is not among pyspark's jars")
    return found[0]


class Jvm:
    """A running peer. What it says on stderr is kept in *log* for the day it fails."""

    def __init__(self, peer: str, connections: int, warm_ms: int, log: Path) -> None:
        self.peer, self.version = peer, ""
        self._log = log
        # Compiled by the launcher itself, before anything is measured.
        command = [
            tool("java", JDK),
            "-Xmx2g",
            "-cp",
            str(jar()),
            str(PROGRAM),
            peer,
            str(connections),
            str(warm_ms),
        ]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        # The kernel's number for "CPU clock of that process": all its threads, those
        # that have ended as well.
        self._clock = ~self._process.pid << 3 | 2

    def cpu_ns(self) -> int:
        """CPU nanoseconds of the whole process so far: every thread of its own, the
        collector and the compiler.
        """
        return time.clock_gettime_ns(self._clock)

    def ask(self, line: str = "") -> dict[str, Any]:
        """Send a line, if any; the next line of JSON that comes of it.

        Raises:
            RuntimeError: It ended, or said nothing for `PATIENCE` seconds; with the end
                of what it said on stderr.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if line:
            self._process.stdin.write(line.encode() + b"\n")
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        answer = self._process.stdout.readline() if ready else b""
        if not answer:
            words = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(
                f"the JVM with {self.peer} {'ended' if ready else 'does not answer'}: {words}"
            )
        return dict(json.loads(answer))

    def end(self) -> None:
        """Close its input, and wait; kill it if that does not help. Harmless if it has
        ended.
        """
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextmanager
def running(connections: int, warm_ms: int, folder: Path) -> Iterator[dict[str, Jvm]]:
    """A JVM for each of `PEERS`, when it has told that it is ready; all ended after the
    block.

    They start together, and so warm up side by side.
    """
    with ExitStack() as stack:
        started: dict[str, Jvm] = {}
        for peer in PEERS:
            started[peer] = Jvm(peer, connections, warm_ms, folder / f"{peer}.log")
            stack.callback(started[peer].end)
        for jvm in started.values():
            jvm.version = jvm.ask()["vm"]
        yield started


def touch_all(leases: Iterable[reaper.Lease]) -> None:
    """The loop that is measured, and nothing else: the interpreter specialises a
    function by what it has seen in it.
    """
    for lease in leases:
        lease.touch()


class Leases:
    """Our side: leases of one reaper, touched in random order, round after round."""

    def __init__(self, connections: int) -> None:
        self._core = reaper.IdleReaper(tick=TICK)
        self._now = 0.0
        order = [self._core.register(uid, timeout=TIMEOUT, now=0.0) for uid in names(connections)]
        random.Random(1).shuffle(order)
        self._each = max(1, connections // TOUCHED_EVERY)
        self._cohorts = cycle(
            [order[i : i + self._each] for i in range(0, connections, self._each)]
        )
        for _ in range(4 * TOUCHED_EVERY):  # until the ticks are in their stride
            self._tick()

    def touch_and_tick(self, touches: int) -> float:
        """CPU nanoseconds a touch with its share of the ticks, each lease touched once
        in `TOUCHED_EVERY` ticks.
        """
        cool()
        ticks = max(1, touches // self._each)
        return sum(self._tick() for _ in range(ticks)) / (ticks * self._each)

    def _tick(self) -> int:
        self._now += TICK
        cohort = next(self._cohorts)
        before = time.thread_time_ns()
        touch_all(cohort)
        expired = self._core.advance(self._now)
        spent = time.thread_time_ns() - before
        if expired:
            raise RuntimeError(
                f"{len(expired)} leases expired although each was touched every {TOUCHED_EVERY} s"
            )
        return spent


def run(scale: Scale, note: Note, sizes: Sequence[Size] | None = None) -> dict[str, Any]:
    """`results[peer][n]`: ns; `ratios[peer][n]`: ours / theirs. {"absent": why} without
    Java.

    Raises:
        RuntimeError: A JVM failed, or a timer does not fire when it should.
    """
    quick = [Size(1_000, 50_000, 3, 600), Size(10_000, 50_000, 3, 600)]
    full = [
        Size(1_000, 200_000, 11, 4_000),
        Size(100_000, 200_000, 11, 4_000),
        Size(1_000_000, 300_000, 9, 6_000),
    ]
    report: dict[str, Any] = {"results": {}, "ratios": {}}
    with tempfile.TemporaryDirectory(prefix="reaper-jvm-") as folder:
        try:
            tool("java", JDK), tool("javac", JDK), jar()
        except Missing as missing:
            return {"absent": str(missing)}
        for size in sizes or by_scale(scale, quick[:1], quick, full):
            note(f"{size.connections:,} connections: starting {', '.join(PEERS)}")
            leases = Leases(size.connections)
            with running(size.connections, size.warm_ms, Path(folder)) as jvms:
                _measure(size, jvms, leases, report, note)
                if "java" not in report:
                    for peer, jvm in jvms.items():
                        note(f"checking that {peer} fires, and only when it should")
                        check(peer, jvm.ask("check"))
                        report["java"] = jvm.version
            del leases
    return report


def _measure(
    size: Size, jvms: dict[str, Jvm], leases: Leases, report: dict[str, Any], note: Note
) -> None:
    """The rounds. Each peer's turn lies between two of ours, and is compared with their
    mean.
    """
    samples: dict[str, list[float]] = {LEASE: [], **{peer: [] for peer in jvms}}
    beside: dict[str, list[float]] = {peer: [] for peer in jvms}
    order = list(jvms)
    for turn in range(size.rounds):
        note(f"{size.connections:,} connections: round {turn + 1} of {size.rounds}")
        samples[LEASE].append(leases.touch_and_tick(size.touches))
        for peer in order:
            cool()
            cpu = jvms[peer].cpu_ns()
            jvms[peer].ask(f"round {size.touches}")
            samples[peer].append((jvms[peer].cpu_ns() - cpu) / size.touches)
            samples[LEASE].append(leases.touch_and_tick(size.touches))
            beside[peer].append(sum(samples[LEASE][-2:]) / 2)
        order.append(order.pop(0))
    for peer, taken in samples.items():
        report["results"].setdefault(peer, {})[str(size.connections)] = spread(taken)
        if peer != LEASE:
            report["ratios"].setdefault(peer, {})[str(size.connections)] = ratios(
                beside[peer], taken
            )


def check(peer: str, found: dict[str, int]) -> None:
    """Raises RuntimeError: it did not do its work. Being late is no wrong here, it is a
    figure.
    """
    right = {"silent": found["each"], "touched": found["each"], "twice": 0, "early": 0}
    if wrong := [f"{name}: {found[name]}" for name, count in right.items() if found[name] != count]:
        raise RuntimeError(
            f"{peer}, {found['each']} silent and {found['each']} touched: {', '.join(wrong)}"
        )


def table(found: dict[str, Any]) -> str:
    """A row per way of using the wheel, ours / theirs in each cell."""
    sizes = list(found["results"][LEASE])
    rows = []
    for peer, what in {**PEERS, LEASE: "**reaper: lease.touch()**"}.items():
        shown = [figure(found["results"][peer][size]["median"]) for size in sizes]
        ratio = found["ratios"].get(peer, {})
        rows.append(
            [
                what,
                *(
                    f"{cell}, {times(ratio[size])}" if ratio else cell
                    for cell, size in zip(shown, sizes, strict=True)
                ),
            ]
        )
    head = [
        "CPU ns per touch, ticks included; ours / theirs",
        *(f"{short(size)} open" for size in sizes),
    ]
    return markdown(head, rows) + f"\n\n{found['java']}. Kafka's wheel is not compared."
