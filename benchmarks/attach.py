"""What `attach` costs compared with a full dump per tick, which `ss -K` in a loop and
tcp_closer do.

Holder processes keep the connections, both ends, and have each of them exchange a byte
once per three quarters of the timeout: nothing is due, everything has to be watched.
Measured of `attach`: CPU time and resident memory by psutil; of `ss -tni`, once per
tick of 1 s, its CPU time. Two of it run at once, with `--vanished` and without. A third
one reads the same list of sockets and watches none of their connections: its memory is
taken off. The list is freed and read anew now and then, so memory is the median of a
reading each second.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from loadgen.plan.capacity import raise_descriptor_limit
from scripts.serving import serving

from .common import Note, Scale, by_scale, figure, markdown

PAIRS = 9500
"""Connections per holder: both ends are descriptors of one process, of which it may
have 20,000.
"""

WAYS = {"attach": (), "vanished": ("--vanished", "60s")}
"""By name: the flags besides."""
NONE_WATCHED = ("--only", "203.0.113.0/24")
"""The flags of the one that watches nobody: a network that no machine has."""


def hold(count: int, period: float, number: int) -> None:
    """Keep *count* connections, and exchange a byte on each once per *period* seconds,
    until the parent ends.
    """
    raise_descriptor_limit()
    listener = socket.create_server((f"127.0.2.{number + 1}", 0), backlog=4096)
    pairs = []
    for _ in range(count):
        client = socket.create_connection(listener.getsockname())
        pairs.append((client, listener.accept()[0]))
    print("ready", flush=True)
    begun, done = time.monotonic(), 0
    parent = os.getppid()
    while os.getppid() == parent:
        for client, server in pairs:
            client.send(b"x")
            server.recv(1)
            server.send(b"y")
            client.recv(1)
            done += 1
            if done % 50 == 0:
                time.sleep(max(begun + done * period / count - time.monotonic(), 0.0))


def by_ss(ss: str) -> float:
    """CPU seconds of one `ss -tni`: the median of five."""
    found = []
    for _ in range(5):
        before = os.times()
        subprocess.run([ss, "-tniH", "src", "127.0.2.0/24"], stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        found.append(sum(after[2:4]) - sum(before[2:4]))
    return statistics.median(found)


def attached(
    parent: int, idle: float, seconds: float, folder: Path
) -> dict[str, tuple[float, int]]:
    """(share of a core, bytes for the connections) of each `attach` on *parent*'s
    children.
    """
    command = [sys.executable, "-m", "reaper", "attach", "--pid", str(parent), "--close"]
    command += ["--idle", f"{idle:g}s", "--tick", "1s"]
    with ExitStack() as stack:
        processes = {}
        for name, flags in {**WAYS, "none": NONE_WATCHED}.items():
            guard = stack.enter_context(
                serving(
                    [*command, *flags], folder / name, says=re.compile("watching"), patience=600.0
                )
            )
            processes[name] = psutil.Process(guard.pid)
        time.sleep(idle)  # the first discovery, and every connection armed
        begun = time.monotonic()
        before = {name: process.cpu_times() for name, process in processes.items()}
        resident: dict[str, list[int]] = {name: [] for name in processes}
        while (lasted := time.monotonic() - begun) < seconds:
            time.sleep(min(seconds - lasted, 1.0))
            for name, process in processes.items():
                resident[name].append(process.memory_info().rss)
        lasted, found = time.monotonic() - begun, {}
        typical = {name: statistics.median_low(each) for name, each in resident.items()}
        for name in WAYS:
            after = processes[name].cpu_times()
            used = after.user + after.system - before[name].user - before[name].system
            found[name] = used / lasted, typical[name] - typical["none"]
        return found


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """Shares of a core: `attach`, and `ss` per tick (None: not installed); bytes per
    connection.
    """
    connections, idle, seconds = by_scale(
        scale, (200, 2.0, 2.0), (10_000, 20.0, 30.0), (100_000, 60.0, 120.0)
    )
    full_holders, rest = divmod(connections, PAIRS)
    counts = [PAIRS] * full_holders + [rest] * (rest > 0)
    ss = shutil.which("ss")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        note(
            f"{connections:,} connections in {len(counts)} processes, timeout {idle:g} s, tick 1 s"
        )
        for number, count in enumerate(counts):
            me = [
                sys.executable,
                "-m",
                "benchmarks.attach",
                str(count),
                str(idle * 0.75),
                str(number),
            ]
            stack.enter_context(serving(me, folder / f"holder-{number}", says=re.compile("ready")))
        found = attached(os.getpid(), idle, seconds, folder)
        cores = {
            **{name: share for name, (share, _) in found.items()},
            "ss": by_ss(ss) if ss else None,
        }
    return {
        "connections": connections,
        "idle_s": idle,
        "cores": cores,
        "beside": "none watched",
        "bytes": found["attach"][1] / connections,
        "bytes_vanished": found["vanished"][1] / connections,
    }


def table(found: dict[str, Any]) -> str:
    """Shares of a core, and what the others are of ours."""
    ours = found["cores"]["attach"]
    rows = []
    for name, what in (
        ("attach", "**`reaper attach`**"),
        ("vanished", "**the same, `--vanished 60s`**"),
        ("ss", "`ss -tni`"),
    ):
        share = found["cores"].get(name)
        rows.append(
            [what, "-", "-"]
            if share is None
            else [what, f"{share:.1%}", f"{share / max(ours, 1e-4):.1f}x"]
        )
    head = [f"{found['connections']:,} connections, none due, tick 1 s", "of a core", "x attach"]
    # Until November 2026 the growth since the start was taken, with the list of sockets
    # in it or not.
    beside = (
        "an `attach` that watches none of them is taken off"
        if found.get("beside") == "none watched"
        else "the list of sockets was there before"
    )
    grown = (
        f"{figure(found['bytes'])} bytes more resident per connection, "
        f"{figure(found.get('bytes_vanished'))} with `--vanished`; {beside}."
    )
    return markdown(head, rows) + f"\n\n{grown}"


if __name__ == "__main__":
    hold(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
