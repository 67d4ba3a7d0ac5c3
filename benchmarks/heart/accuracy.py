"""How late a reap is, and that none is early: the core in virtual time, the load generator's simulation, real sockets.

One rule: lateness is counted from the last byte plus the timeout, by code that does not ask the reaper.
"""

from __future__ import annotations

import heapq
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import reaper
from scripts.serving import example, serving

from ..common import ROOT, Note, Scale, by_scale, spread

TICK, TIMEOUT, GAP = 1.0, 30.0, 10.0
JITTER = 0.003
LONGEST_STALL = 5.0


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`core[case]` and `simulated`, `real`: early, late beyond what the law allows, and the lateness in seconds."""
    n, seconds = by_scale(scale, (100, 120), (1_000, 300), (10_000, 900))
    core = {}
    for case, stalls in (("steady wakes", 0), ("stalls of up to 5 s", max(3, seconds // 30))):
        note(f"{n:,} connections in virtual time, {case}")
        core[case] = simulate(n, seconds, stalls)
    note("python -m loadgen simulate")
    simulated = loadgen_simulate(*by_scale(scale, (200, "3m"), (2_000, "10m"), (50_000, "30m")))
    note("python -m loadgen run against python -m server_example echo")
    real = loadgen_run(*by_scale(scale, (40, "1s", "3s"), (200, "2s", "6s"), (3_000, "3s", "15s")))
    return {
        "core": core, "simulated": simulated, "real": real,
        "n": n, "seconds": seconds, "tick_s": TICK, "timeout_s": TIMEOUT, "jitter_s": JITTER,
    }  # fmt: skip


def simulate(n: int, seconds: int, stalls: int) -> dict[str, Any]:
    """Clients speak by chance and fall silent for good after a while; the loop wakes a little late, at times much."""
    rng = random.Random(6)
    stalled = sorted((rng.uniform(10, seconds), rng.uniform(0.5, LONGEST_STALL)) for _ in range(stalls))
    core = reaper.IdleReaper(tick=TICK)
    leases, last = {}, {}
    events: list[tuple[float, int]] = []  # (when a client speaks, which)
    for uid in range(n):
        start = rng.uniform(0, TIMEOUT)
        heapq.heappush(events, (start, uid))
    over_law, lateness, early = [], [], 0

    def speaks(at: float, uid: int, seen: float) -> None:
        """A byte sent *at* is read at *seen*."""
        if uid not in leases:
            leases[uid] = core.register(uid, TIMEOUT, seen)
        leases[uid].touch()
        last[uid] = at
        if rng.random() < 0.85:
            heapq.heappush(events, (at + min(rng.expovariate(1 / GAP), TIMEOUT * 0.99), uid))

    now = 0.0
    while (events or leases) and now < seconds + 100 * TIMEOUT:  # to the end of the last one, who is lucky for long
        wakeup = core.next_wakeup()
        woken = max(now, wakeup if wakeup is not None else now + TICK) + rng.uniform(0, JITTER)
        stall = 0.0
        while stalled and stalled[0][0] <= woken:
            began, length = stalled.pop(0)
            stall = max(stall, began + length - woken)
        while events and events[0][0] <= woken:  # the loop is free: what comes is read as it comes
            at, uid = heapq.heappop(events)
            speaks(at, uid, max(at, now))
        now = woken + max(0.0, stall)
        core.close_epoch(now, at_least=core.epoch_length / 2)
        while events and events[0][0] <= now:  # what came during a stall is read before any is judged
            at, uid = heapq.heappop(events)
            speaks(at, uid, now)
        for expiry in core.expire(now):
            late = now - last[expiry.uid] - TIMEOUT
            early += late < 0
            lateness.append(late)
            over_law.append(late - TICK)
            del leases[expiry.uid]
    beyond = [value for value in over_law if value > 2 * JITTER]
    return {
        "reaps": len(lateness), "early": early, "left": len(leases), "stalls": stalls,
        "beyond_a_tick": len(beyond), "worst_beyond_a_tick_s": max(over_law, default=0.0),
        "lateness_s": {**spread(lateness), "samples": _histogram(lateness)},
    }  # fmt: skip


def _histogram(values: list[float]) -> list[float]:
    """Every hundredth of the sorted values: enough to draw, and not ten thousand figures."""
    ordered = sorted(values)
    return [round(ordered[round((len(ordered) - 1) * i / 100)], 4) for i in range(101)]


def _report(command: list[str], path: Path) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not path.exists():
        raise RuntimeError(f"{' '.join(command)} left no report, exit status {done.returncode}: {done.stderr[-500:]}")
    report: dict[str, Any] = json.loads(path.read_text())
    wanted = ("connections", "reaps", "lateness_s", "stuck_s", "verdict", "loadgen", "elapsed_s")
    return {name: report[name] for name in wanted if name in report}


def loadgen_simulate(connections: int, duration: str) -> dict[str, Any]:
    """The load generator's plan against the core, its own judge."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        command = [sys.executable, "-m", "loadgen", "simulate", "--connections", str(connections), "--quiet"]
        command += ["--duration", duration, "--timeout", "30s", "--seed", "1", "--stalls", "10", "--report", str(path)]
        return {"duration": duration, **_report(command, path)}


def loadgen_run(connections: int, timeout: str, duration: str) -> dict[str, Any]:
    """Real connections against the echo server."""
    with tempfile.TemporaryDirectory() as folder:
        server = example("echo", "--idle", timeout, "--workers", "1")
        with serving(server, Path(folder, "server.log")) as started:
            path = Path(folder, "report.json")
            command = [sys.executable, "-m", "loadgen", "run", "--target", started.target]
            command += ["--connections", str(connections), "--timeout", timeout, "--duration", duration]
            command += ["--quiet", "--seed", "1", "--report", str(path)]
            return {"timeout": timeout, "duration": duration, **_report(command, path)}
