"""What a touch costs in the timers of the JVM, compared with `lease.touch()` in the same rounds.

    python -m benchmarks.peers.jvm [--quick] [--json FILE]

One rule: *each peer is used as its own documentation and its best-known user have it*, from the jars that come with
pyspark. Each runs in a JVM of its own, warmed up until it gets no faster; a round makes each of them touch the same
number of connections in random order, one after the other, with `lease.touch()` before and after.

Three figures a touch, in nanoseconds:

- `touch_ns`: CPU time of the thread that touches. What a timer leaves to a thread of its own is not in it.
- `process_cpu_ns`: CPU time of the whole process until all that the touches left to do is done: the timer's worker, and
  the garbage collector. For us: the touch with its share of the ticks, while every connection is touched each 10 s.
- `wall_ns`: what the clock on the wall says. On a machine that is shared, much of it is other people's work.

`bytes` is live heap a connection when armed (its name not counted), `bytes_after` after the rounds. `idle_cpu_us_per_s`
is CPU time while nothing happens, `expire` what it takes when all fall silent in one instant. `checks` shows that each
peer does what it is for: the silent fire, the touched do not.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reaper

from ..common import cool, loop_only, machine, names, ratios, spread
from .jvm_process import Jvm, Missing, compiled, running, versions

LEASE = "lease.touch"
PEERS = {
    "netty-wheel": "Netty HashedWheelTimer: cancel + newTimeout",
    "netty-wheel-lazy": "Netty HashedWheelTimer, one store per packet, re-armed only when it fires",
    "netty-idle-handler": "Netty IdleStateHandler in a pipeline, a read and a read-complete a packet",
    "netty-pipeline": "the same pipeline without it: the control",
    "zookeeper": "ZooKeeper ExpiryQueue.update, first of a tick",
    "zookeeper-again": "ZooKeeper ExpiryQueue.update, again in the same tick",
    "executor-remove": "ScheduledThreadPoolExecutor: cancel + schedule, cancelled ones removed",
    "executor-keep": "ScheduledThreadPoolExecutor: cancel + schedule, cancelled ones kept (its default)",
    "map-put": "ConcurrentHashMap.put by name: a floor",
    "field-store": "a field store: the floor",
}
REARMED = ("netty-wheel", "zookeeper", "executor-remove", "executor-keep")
"""The timers that move something at every packet: what a server without a reaper would use."""

CHANNELS = ("netty-idle-handler", "netty-pipeline")
"""These hold a whole channel each, a kilobyte and more, and their event loops are not driven: fewer, and no expiry."""
MOST_CHANNELS = 100_000

NOT_MEASURED = {
    "Kafka SystemTimer": "its jars do not come with pyspark",
    "netty-idle-handler at 1,000,000": "embedded channels would take gigabytes; a touch of 100,000 tells as much",
    "netty-idle-handler, expiry": "an embedded channel has no thread that could work it off",
}

TOGETHER = 5
"""JVMs that run at once; more of them with a million connections each would need much memory."""

TIMEOUT, TICK = 30.0, 1.0  # seconds, of the leases
TOUCHED_EVERY = 10  # ticks between two touches of a lease while ticks are counted in


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    connections: int
    touches: int  # a round
    rounds: int
    warm_ms: int  # at most
    idle_ms: int
    expire_ms: int  # the timeout when all fall silent at once; all have to be armed by then; 0: leave that out


QUICK = (Size(1_000, 50_000, 3, 600, 300, 0), Size(10_000, 50_000, 3, 600, 200, 400))
FULL = (
    Size(1_000, 200_000, 11, 4_000, 2_000, 0),
    Size(100_000, 200_000, 11, 4_000, 2_000, 2_000),
    Size(1_000_000, 300_000, 9, 6_000, 2_000, 5_000),
)


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
        traced = connections <= MOST_CHANNELS  # tracing a million takes a minute
        if traced:
            tracemalloc.start()
        self._order = [self._core.register(uid, timeout=TIMEOUT, now=0.0) for uid in uids]
        order_bytes = sys.getsizeof(self._order)
        self.bytes = (tracemalloc.get_traced_memory()[0] - order_bytes) / connections if traced else None
        if traced:
            tracemalloc.stop()
        random.Random(1).shuffle(self._order)
        self._position = 0
        for _ in range(4 * TOUCHED_EVERY):  # until the ticks are in their stride
            self._tick(connections // TOUCHED_EVERY)

    def touch(self, touches: int) -> tuple[float, float]:
        """CPU nanoseconds a touch, with the loop around it and net of it."""
        self._now += TICK
        self._core.close_epoch(self._now)
        self._cooled(touches)
        parts = self._take(touches)
        spent = self._touch(parts)
        before = time.thread_time_ns()
        for part in parts:
            loop_only(part)
        loop = time.thread_time_ns() - before
        return spent / touches, (spent - loop) / touches

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


def run(quick: bool, note: Callable[[str], None], *, sizes: Sequence[Size] | None = None) -> dict[str, Any]:
    """Measure every peer at every size; without Java, say so under `not_run` and return no results.

    Args:
        quick: Few and small: under half a minute. Otherwise about four minutes and, at most, 6 GiB.
        note: Told what is being done.
        sizes: Instead of those that *quick* chooses.
    Returns:
        machine, peers (name -> what it is), results, ratios, checks, not_measured, not_run. `ratios` are ours / theirs
        round by round: `touch` and `all_in` (the whole process; for us, with the ticks).
    """
    chosen = sizes or (QUICK if quick else FULL)
    report: dict[str, Any] = {"machine": machine(), "peers": PEERS, "rearmed": list(REARMED)}
    report |= {"results": {}, "ratios": {}, "checks": {}, "not_measured": NOT_MEASURED, "not_run": {}}
    with tempfile.TemporaryDirectory(prefix="reaper-jvm-") as folder:
        try:
            note("compiling the JVM peers")
            class_path = compiled(Path(folder))
        except Missing as missing:
            note(f"JVM peers NOT RUN: {missing}")
            report["not_run"] = dict.fromkeys(PEERS, str(missing))
            return report
        report["jars"] = versions()
        for index, size in enumerate(chosen):
            leases = Leases(size.connections)
            ours: dict[str, list[float]] = {"touch_ns": [], "net_ns": [], "process_cpu_ns": []}
            peers = [peer for peer in PEERS if peer not in CHANNELS or size.connections <= MOST_CHANNELS]
            for first in range(0, len(peers), TOGETHER):
                group = peers[first : first + TOGETHER]
                note(f"{size.connections:,} connections: starting {', '.join(group)}")
                all_of_them = dict.fromkeys(group, size.connections)
                with running(class_path, all_of_them, size.warm_ms, "2g", Path(folder)) as jvms:
                    _measure(size, jvms, leases, ours, report, note)
                    if index == 0:
                        _check({peer: jvm for peer, (jvm, _) in jvms.items() if peer != "netty-pipeline"}, report, note)
                    _idle(size, {peer: jvm for peer, (jvm, _) in jvms.items()}, report, note)
                    for peer, (jvm, ready) in jvms.items():
                        report.setdefault("java", f"{ready['vm']} {ready['java']}")
                        found = report["results"][peer][str(size.connections)]
                        found |= _memory(jvm, ready, size)
                        if size.expire_ms and peer not in CHANNELS:
                            note(f"{size.connections:,} connections: all of {peer} fall silent at once")
                            found["expire"] = _expire(jvm, size)
            result: dict[str, Any] = {name: spread(samples) for name, samples in ours.items()}
            report["results"].setdefault(LEASE, {})[str(size.connections)] = result | {"bytes": leases.bytes}
            del leases
    return report


def _measure(
    size: Size,
    jvms: dict[str, tuple[Jvm, dict[str, Any]]],
    leases: Leases,
    ours: dict[str, list[float]],
    report: dict[str, Any],
    note: Callable[[str], None],
) -> None:
    """The rounds. Each peer's turn lies between two of ours, and is compared with their mean."""
    figures: dict[str, dict[str, list[float]]] = {
        peer: {name: [] for name in ("touch_ns", "process_cpu_ns", "wall_ns")} for peer in jvms
    }
    quotients: dict[str, dict[str, tuple[list[float], list[float]]]] = {
        peer: {"touch": ([], []), "all_in": ([], [])} for peer in jvms
    }
    order = list(jvms)
    for turn in range(size.rounds):
        note(f"{size.connections:,} connections: round {turn + 1} of {size.rounds}")
        before = _our_turn(leases, size.touches, ours)
        for peer in order:
            jvm = jvms[peer][0]
            cool()
            cpu = jvm.cpu_ns()
            answer = jvm.ask(f"round {size.touches}")
            cpu = jvm.cpu_ns() - cpu
            mine = figures[peer]
            mine["touch_ns"].append(answer["cpu_ns"] / size.touches)
            mine["wall_ns"].append(answer["wall_ns"] / size.touches)
            mine["process_cpu_ns"].append(cpu / answer["all_touches"])
            after = _our_turn(leases, size.touches, ours)
            for (us, them), name, at in zip(
                quotients[peer].values(), ("touch_ns", "process_cpu_ns"), range(2), strict=True
            ):
                us.append((before[at] + after[at]) / 2)
                them.append(mine[name][-1])
            before = after
        order.append(order.pop(0))
    key = str(size.connections)
    for peer in jvms:
        report["results"].setdefault(peer, {})[key] = {name: spread(each) for name, each in figures[peer].items()}
        report["ratios"].setdefault(peer, {})[key] = {
            name: ratios(us, them) for name, (us, them) in quotients[peer].items()
        }


def _our_turn(leases: Leases, touches: int, ours: dict[str, list[float]]) -> tuple[float, float]:
    touch, net = leases.touch(touches)
    all_in = leases.touch_and_tick(touches)
    for name, value in (("touch_ns", touch), ("net_ns", net), ("process_cpu_ns", all_in)):
        ours[name].append(value)
    return touch, all_in


def _check(jvms: dict[str, Jvm], report: dict[str, Any], note: Callable[[str], None]) -> None:
    """Every peer at once: they sleep nearly all the time. A peer that does not do its work is an error."""
    note(f"checking that {', '.join(jvms)} fire, and only when they should")
    for jvm in jvms.values():
        jvm.tell("check")
    for peer, jvm in jvms.items():
        report["checks"][peer] = found = jvm.answer()
        each = found["each"]
        if wrong := wrong_with(found):
            raise RuntimeError(f"{peer}, {each} silent and {each} touched connections: {wrong}")


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


def _memory(jvm: Jvm, ready: dict[str, Any], size: Size) -> dict[str, Any]:
    """Live heap a connection, armed and after the rounds."""
    empty = ready["heap_before"]
    after = jvm.ask("memory")["heap"]
    return {
        "bytes": (ready["heap"] - empty) / size.connections,
        "bytes_after": (after - empty) / size.connections,
        "warm_touches": ready["warm_touches"],
    }


def _idle(size: Size, jvms: dict[str, Jvm], report: dict[str, Any], note: Callable[[str], None]) -> None:
    """CPU time of each while nothing happens: all at once, for they sleep nearly all the time."""
    note(f"{size.connections:,} connections: nothing happens")
    before = {}
    for peer, jvm in jvms.items():
        before[peer] = jvm.cpu_ns()
        jvm.tell(f"idle {size.idle_ms}")
    for peer, jvm in jvms.items():
        jvm.answer()
        used = (jvm.cpu_ns() - before[peer]) / size.idle_ms
        if peer not in CHANNELS:
            report["results"][peer][str(size.connections)]["idle_cpu_us_per_s"] = used


def _expire(jvm: Jvm, size: Size) -> dict[str, Any]:
    """All connections fall due in one instant: CPU time of each, and how late they were."""
    armed = jvm.ask(f"expire {size.expire_ms}")
    cpu = jvm.cpu_ns()
    expire = jvm.answer()
    if expire["fired"] != size.connections:
        raise RuntimeError(f"{jvm.peer}: {expire['fired']} of {size.connections} silent connections fired")
    expire["cpu_ns"] = None if armed["fired_already"] else (jvm.cpu_ns() - cpu) / size.connections
    return expire


def table(report: dict[str, Any]) -> str:
    """The medians, one line for a peer and a size."""
    widths = {"touch ns": 10, "process ns": 12, "bytes": 8, "after": 8, "idle us/s": 11, "expiry ns": 11}
    widths |= {"ours/theirs": 13, "all in": 8}
    lines = [" " * 28 + "".join(f"{name:>{width}}" for name, width in widths.items())]
    for peer, by_size in report["results"].items():
        for connections, found in by_size.items():
            ratio = report["ratios"].get(peer, {}).get(connections)
            cells = {
                "touch ns": (found["touch_ns"]["median"], ".1f"),
                "process ns": (found["process_cpu_ns"]["median"], ".1f"),
                "bytes": (found.get("bytes"), ".0f"),
                "after": (found.get("bytes_after"), ".0f"),
                "idle us/s": (found.get("idle_cpu_us_per_s"), ".0f"),
                "expiry ns": (found.get("expire", {}).get("cpu_ns"), ".0f"),
                "ours/theirs": (ratio and ratio["touch"]["median"], ".3f"),
                "all in": (ratio and ratio["all_in"]["median"], ".3f"),
            }
            shown = (f"{'-' if v is None else format(v, form):>{widths[name]}}" for name, (v, form) in cells.items())
            lines.append(f"{peer:18}{int(connections):>10,}{''.join(shown)}")
    lines += [f"NOT RUN: {peer}: {why}" for peer, why in report["not_run"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the medians, write everything if asked. Exit status 1: nothing could be run; 130: Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.jvm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few and small: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    options = parser.parse_args(arguments)

    def note(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        report = run(options.quick, note)
    except KeyboardInterrupt:
        note("")
        return 130
    note("")
    print(table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["not_run"] else 0


if __name__ == "__main__":
    sys.exit(main())
