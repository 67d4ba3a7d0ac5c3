"""What an idle HTTP connection costs, and a request on a busy one: this server, parked and not, and hypercorn.

    python benchmarks/servers.py [--connections 4000] [--requests 10000]

One server process at a time, same client, same order of things: connections come a few at a time, each asks once and
falls silent; when all are silent for three seconds, the server's resident memory is read against that before the first.
Then a few of them ask again and again, one request in flight each; requests per second of the *server's* CPU time are
told, so a client that shares the machine does not count. hypercorn runs the same answer as an ASGI app on its trio
worker, with its access log off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

REQUEST = b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n"
BUSY = 50
"""Connections that ask again and again."""
RATE = 400
"""Connections a second that come: few enough for those before them to have fallen silent."""

APP = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})
"""

OURS = """
import sys
from server_example import http_routes
from server_example.__main__ import main

async def ok(exchange):
    await exchange.respond(200, b"ok", "text/plain")

http_routes.ROUTES["/ok"] = ok
sys.exit(main(sys.argv[1:]))
"""


def main() -> int:
    """Run the comparison and print a table; `--json` prints data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=4000)
    parser.add_argument("--requests", type=int, default=10_000, help="on the busy connections, altogether")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bench_app.py").write_text(APP)
        ours = [sys.executable, "-c", OURS, "http", "--port", "{port}", "--workers", "1", "--keep-alive", "10m"]
        ours += ["--max-requests", "0", "--max-connections", str(arguments.connections + 100)]
        theirs = [sys.executable, "-m", "hypercorn", "-k", "trio", "-w", "1", "-b", "127.0.0.1:{port}"]
        theirs += ["--keep-alive", "600", "--backlog", "1000", "bench_app:app"]
        results = {
            name: measure(command, folder, arguments.connections, arguments.requests)
            for name, command in {
                "hypercorn (trio)": theirs,
                "this server": ours,
                "this server, parked": [*ours, "--parked"],
            }.items()
        }
    base = results["hypercorn (trio)"]
    for result in results.values():
        result["memory_ratio"] = base["bytes_per_idle_connection"] / result["bytes_per_idle_connection"]
        result["throughput_ratio"] = result["requests_per_cpu_second"] / base["requests_per_cpu_second"]
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "connections": arguments.connections}
    about |= {name: version(name) for name in ("trio", "h11", "hypercorn")}
    if arguments.json:
        print(json.dumps({"about": about, "results": results}, indent=1))
        return 0
    print(about)
    print(f"{'':22}{'bytes/idle connection':>22}{'x less':>8}{'requests/CPU s':>16}{'x more':>8}")
    for name, result in results.items():
        print(
            f"{name:22}{result['bytes_per_idle_connection']:22.0f}{result['memory_ratio']:8.1f}"
            f"{result['requests_per_cpu_second']:16.0f}{result['throughput_ratio']:8.2f}"
        )
    return 0


def measure(command: list[str], folder: str, connections: int, requests: int) -> dict[str, float]:
    """Start *command*, drive it, stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, str(Path(__file__).parent.parent)])}
    filled = [part.format(port=port) if part == "{port}" or ":{port}" in part else part for part in command]
    server = subprocess.Popen(filled, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    clients: list[socket.socket] = []
    try:
        ask([_dial(port)])
        worker = _worker(server.pid)
        time.sleep(1)
        before = rss(worker)
        start = time.monotonic()
        for index in range(connections):
            clients.append(_dial(port))
            ask(clients[-1:])
            time.sleep(max(0.0, start + index / RATE - time.monotonic()))
        time.sleep(3)
        idle = (rss(worker) - before) / connections
        busy = clients[:BUSY]
        ask(busy)
        used = cpu(worker)
        for _ in range(requests // BUSY):
            ask(busy)
        used = cpu(worker) - used
        return {"bytes_per_idle_connection": idle, "requests_per_cpu_second": requests // BUSY * BUSY / used}
    finally:
        for client in clients:
            client.close()
        server.terminate()
        server.wait(30)


def ask(clients: list[socket.socket]) -> None:
    """One request on each, all at once; returns when all are answered."""
    for client in clients:
        client.sendall(REQUEST)
    for client in clients:
        data = b""
        while not data.endswith(b"\r\n\r\nok"):
            got = client.recv(4096)
            if not got:
                raise ConnectionError(f"the server hung up after {data!r}")
            data += got


def _dial(port: int) -> socket.socket:
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _worker(parent: int) -> int:
    """The process that serves: the child with the most memory, or *parent* if it has none."""
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return max(children, key=cpu, default=parent)


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 0 if found is None else int(found[1]) * 1024


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
