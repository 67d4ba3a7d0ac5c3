"""The race at the end of a keep-alive, measured: a uvicorn, stock and guarded, asked directly and through proxies.

    python -m scripts.proxies [PAIRS]

The table of lost requests in docs/howto/proxies.md is what this program prints.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from loadgen.probe import aligned

from .serving import ROOT, free_port, serving
from .tools import Missing, nginx, tool

HTTP = {"stock": "httptools", "guarded": "reaper.uvicorn:HttpTools"}
UVICORN = "uvicorn scripts.uvicorn_demo.app:app --timeout-keep-alive 3 --backlog 4096 --no-access-log"
SETTINGS = {"REAPER_REAPER_TICK": "100ms", "REAPER_TIMEOUTS_MAX_AGE": "0s", "REAPER_TIMEOUTS_KEEP_ALIVE": "3s"}
LANES = {"direct": "", "direct, the header believed": "--honour", "nginx": "--anew", "haproxy": "--anew"}
ROUND = 250
"""Pairs that one lane races at once before it is the next one's turn: so the machine's noise is everybody's."""
# From a tick before the close to a tick after it, half of them too late.
RACE = f"--path /echo --keep-alive 3.05s --spread 100ms --method POST --times {ROUND} --clients {ROUND} --json"

NGINX = """upstream app {{ server 127.0.0.1:{backend}; keepalive 1000; }}
    server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
        proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}"""
HAPROXY = """global
    maxconn 4000
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    http-reuse always
listen proxy
    bind 127.0.0.1:{port}
    server app 127.0.0.1:{backend} pool-max-conn 4000
"""


def proxy(name: str, folder: Path, port: int, backend: int) -> list[str]:
    """The command of nginx or haproxy. Raises Missing."""
    if name == "nginx":
        return nginx(folder, NGINX.format(port=port, backend=backend))
    (folder / "conf").write_text(HAPROXY.format(port=port, backend=backend))
    return [tool("haproxy"), "-f", str(folder / "conf")]


def started(stack: ExitStack) -> dict[str, list[str]]:
    """Start both servers with their proxies, until *stack* ends: lane -> what the race is told of it."""
    lanes = {}
    for who, http in HTTP.items():
        folder, backend = Path(stack.enter_context(tempfile.TemporaryDirectory())), free_port()
        command = [sys.executable, "-m", *UVICORN.split(), "--http", http, "--port", str(backend)]
        stack.enter_context(serving(command, folder / "log", port=backend, environment=os.environ | SETTINGS))
        for name, flags in LANES.items():
            port = backend
            try:
                if "--anew" in flags:
                    command = proxy(name, folder, port := free_port(), backend)
                    stack.enter_context(serving(command, folder / f"{name}.log", port=port))
            except Missing as missing:
                print(missing, file=sys.stderr)
                continue
            lanes[f"{who}, {name}"] = ["--target", f"127.0.0.1:{port}", *flags.split()]
    return lanes


def main() -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m scripts.proxies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", nargs="?", type=int, default=10_000, help="of each lane; default 10000")
    turns = -(-parser.parse_args().pairs // ROUND)
    with ExitStack() as stack:
        lanes = started(stack)
        sums: dict[str, Counter[str]] = {name: Counter() for name in lanes}
        for turn in range(turns):
            for name, where in lanes.items():
                command = [sys.executable, "-m", "loadgen", "race", *where, *RACE.split()]
                done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)  # 1: some were lost
                found = json.loads(done.stdout)
                sums[name].update(reused=found["reused"], fresh=found["fresh"], lost=sum(found["lost"].values()))
            print(f"round {turn + 1} of {turns}", file=sys.stderr, flush=True)
    rows = [["server", "pairs", "on a new connection", "lost", "of a million"]]
    for name, each in sums.items():
        total = each["reused"] + each["fresh"]
        rows.append([name, *(f"{n:,.0f}" for n in (total, each["fresh"], each["lost"], 1e6 * each["lost"] / total))])
    print("\n".join(aligned(rows, markdown=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
