"""`make attach-demo`: a server that is not ours and closes nothing, guarded from
outside, judged by its clients.

One rule: three strangers. The server (nginx with its timeouts off; without nginx, an
echo server in twenty lines of asyncio) knows nothing of reaper; `attach` reads only the
kernel's stamps; the load generator knows neither, and judges.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from loadgen.cli_options import COUNT, option
from reaper.config.flags import Parser

from .demo import TICK, ended
from .serving import ROOT, free_port, load, serving
from .tools import Missing, nginx

MOST, MANY = 200_000, 20_000
PER_WORKER = 15_000
"""Connections that one nginx process is planned for: a process has 20,000 descriptors
on many machines.
"""
MIX = "silent=50,chatty=40,drip=10"

NGINX = """keepalive_timeout 24h; keepalive_requests 1000000000; reset_timedout_connection off;
    client_header_timeout 24h; client_body_timeout 24h; send_timeout 24h;
    server {{ listen 127.0.0.1:{port} reuseport backlog=4096;
        location / {{ return 200 "hello"; }} }}"""

# Where Yama lets a process be traced by its ancestors alone (ptrace_scope 1), a process
# may permit others: this one permits all, and becomes the server. It also takes all the
# descriptors it may have.
PERMIT = (
    "import ctypes, os, resource, sys; "
    "ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0); "
    "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
    "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)

WATCHING = re.compile("watching")
LAST_LOOK = 5.0
"""Seconds for which attach may go on after the load, at most, to see the last clients
go.
"""


def main() -> int:
    """Run the demo. Exit status: 0 the law held, 1 it did not or something broke, 2 it
    cannot be run here.
    """
    parser = Parser(prog="make attach-demo", description=__doc__)
    option(parser, "--connections", COUNT, "how many real TCP connections; default 10000", 10_000)
    connections = parser.parse_args().connections
    if connections > MOST:
        parser.error(f"--connections {connections}: at most {MOST}")
    out = ROOT / "out" / "attach-demo"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return ended(lambda: run(connections, 10 if connections <= MANY else 60, out))


def foreign(connections: int, port: int, out: Path) -> tuple[str, str, list[str]]:
    """(what it is, what it speaks, its command): a server that closes nothing by
    itself.
    """
    permitted = [sys.executable, "-c", PERMIT]
    workers = -(-connections // PER_WORKER)
    main = (
        "master_process off;"
        if workers == 1
        else f"worker_processes {workers}; worker_rlimit_nofile 20000;"
    )
    try:
        command = nginx(out, NGINX.format(port=port), main=main, most=19000)
    except Missing:
        echo = [sys.executable, "-m", "benchmarks.servers.apps", "asyncio-echo", str(port)]
        return "an echo server in plain asyncio", "echo", [*permitted, *echo]
    return f"nginx, {workers} worker(s), all its timeouts 24 h", "http", [*permitted, *command]


def run(connections: int, timeout: int, out: Path) -> int:
    """Server, guard, load, verdict. Returns the exit status."""
    out = out.resolve()
    port = free_port()
    what, protocol, command = foreign(connections, port, out)
    with ExitStack() as stack:
        server = stack.enter_context(serving(command, out / "server.log", port=port, session=True))
        print(f"1. {what}, listens on {server.target}", flush=True)
        attach = f"attach --pid {server.pid} --idle {timeout}s --tick {TICK} --close"
        command = [sys.executable, "-m", "reaper", *attach.split(), *journal(out / "attach")]
        guard = stack.enter_context(
            serving(command, out / "attach.log", says=WATCHING, session=True)
        )
        print(f"2. reaper {attach}", flush=True)
        print(f"3. {connections:,} clients, half of which go silent: {MIX}", flush=True)
        flags = f"--protocol {protocol} --connections {connections} --timeout {timeout}s"
        flags += (
            f" --tick {TICK} --mix {MIX} --duration {timeout * 5 // 2}s --server-pid {server.pid}"
        )
        report = ["--report", str(out / "report.json"), *journal(out / "client")]
        status = subprocess.call(load(server.target, flags, *report), cwd=ROOT)
        # The clients that lived have just gone. It looks for that once per half
        # timeout: the journal is to say so.
        time.sleep(min(timeout / 2, LAST_LOOK) + 2)
    *_, last = ["", *guard.said().splitlines()]
    print(f"4. attach: {last.partition(' ')[2]}")
    if guard.status:
        print(f"attach ended with status {guard.status}: {last}", file=sys.stderr)
    print(f"report: {os.path.relpath(out / 'report.json')}")
    if journal(out):
        sides = "--events {0}/attach --client {0}/client --out {0}/audit".format(
            os.path.relpath(out)
        )
        print(f"both sides joined: python -m reaper.pipeline audit {sides}")
    return status or (1 if guard.status else 0)


def journal(folder: Path) -> list[str]:
    """The flags for a journal in *folder*; none where pyarrow is not installed."""
    return ["--journal", str(folder)] if find_spec("pyarrow") else []


if __name__ == "__main__":
    sys.exit(main())
