"""What the load generator costs: memory per connection, CPU per action, its own lag, at a given load.

    python -m benchmarks run --only loadgen
    python -m benchmarks.servers.loadgen_cost --connections 100000 --rate 20000

The server is the least there can be - a few processes on one port that send back what they read, with no timeouts - so
that what is measured is the generator, sharing the machine with it. All clients are chatty, with gaps that add up to
the wanted rate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..common import ROOT, Note, Scale, by_scale, machine

DESCRIPTORS_SPARE = 200
MEAN_GAP = 0.35
"""Of the timeout: the mean of a chatty client's gaps, drawn between 0.2 and 0.5 of it."""


def echo_for_ever(port: int) -> None:
    """One server process: epoll, read, write."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = listen(port)
    poller = select.epoll()
    poller.register(listener.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poller.poll(-1, 4096):
            if fd == listener.fileno():
                accept_all(listener, poller)
                continue
            try:
                data = os.read(fd, 65536)
                if data:
                    os.write(fd, data)
                    continue
            except OSError:
                pass
            os.close(fd)


def accept_all(listener: socket.socket, poller: select.epoll) -> None:
    """Accept what waits, a few at a time."""
    for _ in range(64):
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        poller.register(sock.detach(), select.EPOLLIN)


def listen(port: int) -> socket.socket:
    """A listener that shares its port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    listener.setblocking(False)
    return listener


def measure(connections: int, rate: float, seconds: float, output: int | None = None) -> dict[str, object]:
    """Run the load, its words to *output*; returns the load generator's report."""
    timeout = connections / rate / MEAN_GAP
    seconds = max(seconds, 1.2 * timeout + 1)
    with socket.socket() as reserve:
        reserve.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserve.bind(("127.0.0.1", 0))
        port = reserve.getsockname()[1]
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # The kernel spreads connections over the listeners by hash, not evenly: a tenth more than would just do.
        count = -(-connections * 11 // 10 // (hard - DESCRIPTORS_SPARE)) if connections > 5000 else 1
        servers = [multiprocessing.Process(target=echo_for_ever, args=(port,), daemon=True) for _ in range(count)]
        for server in servers:
            server.start()
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "report.json"
                command = [
                    sys.executable, "-m", "loadgen", "run", "--target", f"127.0.0.1:{port}", "--mix", "chatty",
                    "--connections", str(connections), "--timeout", f"{timeout:.3f}s", "--tick", "1s",
                    "--duration", f"{seconds:.0f}s", "--report", str(path), "--quiet",
                ]  # fmt: skip
                subprocess.run(command, cwd=ROOT, stdout=output, check=True)
                report: dict[str, object] = json.loads(path.read_text())
                return report
        finally:
            for server in servers:
                server.terminate()


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`report`: what of the load generator's report tells about itself."""
    connections, rate, seconds = by_scale(scale, (50, 100, 1), (500, 2_000, 3), (10_000, 10_000, 10))
    note(f"{connections:,} clients, {rate:,} actions a second, for {seconds} s or more")
    report = measure(connections, rate, seconds, subprocess.DEVNULL)
    wanted = ("connections", "actions", "loadgen", "latency_s", "verdict", "elapsed_s")
    return {"report": {name: report[name] for name in wanted if name in report}, "rate": rate}


def main() -> None:
    """Measure once and print the figures as JSON, with what they were measured on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=20_000, help="actions per second, all connections together")
    parser.add_argument("--seconds", type=float, default=20, help="at least; default 20")
    options = parser.parse_args()
    about = machine()
    report = measure(options.connections, options.rate, options.seconds)
    wanted = ("connections", "actions", "loadgen", "latency_s", "verdict", "elapsed_s")
    print(json.dumps({"machine": about, **{name: report[name] for name in wanted if name in report}}, indent=1))


if __name__ == "__main__":
    main()
