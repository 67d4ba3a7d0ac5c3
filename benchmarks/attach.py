"""What `attach` costs compared with a full dump per tick, which `ss -K` in a loop and tcp_closer do: in one run.

    python -m benchmarks.attach --connections 100000 --idle 60 --seconds 120 --json out/attach.json

Holder processes keep the connections, both ends, and have each of them exchange a byte once per three quarters of the
timeout: nothing is due, everything has to be watched. Measured of `attach`: CPU time and resident memory by /proc. Of
the dump: CPU time of one with `tcp_info` and its parsing here, and of `ss -tni` (C), each once per tick.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from reaper.attach.kernel import Linux

PAIRS = 9500
"""Connections per holder: both ends are descriptors of one process, of which it may have 20,000."""
ROOT = Path(__file__).resolve().parent.parent


def hold(count: int, period: float, number: int) -> None:
    """Keep *count* connections, and exchange a byte on each once per *period* seconds, until standard input ends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
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


def usage(pid: int) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of *pid*."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return cpu, int(fields[21]) * resource.getpagesize()


def timed(call: Callable[[], object], times: int) -> float:
    """CPU seconds of one *call*, children included: the median of *times*."""
    found = []
    for _ in range(times):
        before = os.times()
        call()
        after = os.times()
        found.append(sum(after[:4]) - sum(before[:4]))
    return statistics.median(found)


def attached(parent: int, idle: float, seconds: float, close: bool) -> tuple[float, int, int]:
    """(share of a core, resident bytes at the start, and with all connections) of `attach` on *parent*'s children."""
    command = [sys.executable, "-m", "reaper", "attach", "--pid", str(parent), "--idle", f"{idle:g}s", "--tick", "1s"]
    with subprocess.Popen(command + ["--close"] * close, cwd=ROOT, stdout=subprocess.PIPE, text=True) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        empty = usage(guard.pid)[1]
        time.sleep(idle)  # the first discovery, and every connection armed
        cpu, _ = usage(guard.pid)
        begun = time.monotonic()
        time.sleep(seconds)
        spent, full = usage(guard.pid)
        share = (spent - cpu) / (time.monotonic() - begun)
        guard.send_signal(2)
        print("   " + guard.stdout.read().splitlines()[-1])
    return share, empty, full


def main() -> int:
    """Run it; print, and write JSON on demand."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attach", description=__doc__)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--idle", type=float, default=60.0, help="the timeout, seconds")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long attach is measured")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hold", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(options.hold[0], options.idle * 0.75, options.hold[1])
        return 0
    counts = [PAIRS] * (options.connections // PAIRS) + [options.connections % PAIRS] * bool(
        options.connections % PAIRS
    )
    me = [sys.executable, "-m", "benchmarks.attach", "--idle", str(options.idle), "--hold"]
    holders = []
    try:
        for number, count in enumerate(counts):
            holders.append(subprocess.Popen([*me, str(count), str(number)], cwd=ROOT, stdout=subprocess.PIPE))
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
        print(f"{options.connections:,} connections in {len(holders)} processes, timeout {options.idle:g} s, tick 1 s")
        share, empty, full = attached(os.getpid(), options.idle, options.seconds, close=True)
        with closing(Linux()) as kernel:
            pids = {holder.pid for holder in holders}
            listeners = [one for one in kernel.listeners() if one.address.host.startswith("127.0.2.")]
            assert len(listeners) == len(pids)

            def dump() -> None:
                seen = sum(found.snapshot is not None for found in kernel.dump(listeners, True))
                assert seen == options.connections

            full_dump = timed(dump, 5)
        ss = shutil.which("ss")
        by_ss = (
            timed(lambda: subprocess.run([str(ss), "-tniH", "src", "127.0.2.0/24"], stdout=-3, check=True), 5)
            if ss
            else None
        )
    finally:
        for holder in holders:
            holder.terminate()
        for holder in holders:
            holder.wait()
    result = {
        "connections": options.connections,
        "idle_s": options.idle,
        "attach_core_share": round(share, 4),
        "attach_bytes_per_connection": round((full - empty) / options.connections),
        "dump_per_tick_core_share": round(full_dump, 3),
        "ss_per_tick_core_share": None if by_ss is None else round(by_ss, 3),
        "ratio_to_dump": round(full_dump / share, 1),
        "ratio_to_ss": None if by_ss is None else round(by_ss / share, 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
