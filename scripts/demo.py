"""`make demo`: start the echo server, drive it with real connections, print the verdict.

Two processes of ours, each a tree of its own: the server and the load generator. The verdict is the generator's: it was
computed from the client's side and knows nothing of the reaper.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICK = "1s"
MIX = "silent=40,chatty=30,bursty=10,drip=10,vanish=10"
MANY = 20_000
MIX_OF_MANY = "silent=50,chatty=30,bursty=10,drip=10"


def main() -> int:
    """Run the demo. Exit status: 0 the law held, 1 it did not or something broke, 2 it cannot be run here."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--connections", default="10000", help="how many real TCP connections (default 10000)")
    parser.add_argument("--parked", action="store_true", help="the server keeps no task for a silent connection")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo")
    options = parser.parse_args()
    if not options.connections.isdecimal() or int(options.connections) < 1:
        print(f"CONNECTIONS={options.connections}: must be a whole number >= 1, for example 10000", file=sys.stderr)
        return 2
    connections = int(options.connections)
    # A live connection has to speak within its timeout. 100,000 of them every few seconds would be more packets than
    # two processors can carry beside everything else; and so many take longer to open than 5 s. All of them are to be
    # open at once, so none vanishes by itself before the last one is there.
    timeout, duration, mix = ("5s", "20s", MIX) if connections <= MANY else ("60s", "90s", MIX_OF_MANY)
    options.out.mkdir(parents=True, exist_ok=True)

    kind = "echo --parked" if options.parked else "echo"
    print(f"1. an {kind} server with the reaper embedded: timeout {timeout}, tick {TICK}", flush=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "server_example"]
        + f"{kind} --port 0 --idle {timeout} --tick {TICK} --connections {connections}".split(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the generator first; the server is told when it has ended
    )
    assert server.stdout is not None
    try:
        target = None
        for line in server.stdout:
            print("   " + line, end="", flush=True)
            if found := re.match(r"listening on (\S+) ", line):
                target = found[1]
                break
        if target is None:
            return server.wait() or 1
        log = options.out / "server.log"
        reader = threading.Thread(target=_keep, args=(server.stdout, log))
        reader.start()

        print(f"2. {connections} connections that behave as planned, most of them badly: {mix}", flush=True)
        status = subprocess.call(
            [sys.executable, "-m", "loadgen", "run"]
            + f"--target {target} --connections {connections} --server-pid {server.pid}".split()
            + f"--timeout {timeout} --tick {TICK} --duration {duration} --mix {mix}".split()
            + ["--report", str(options.out / "report.json"), "--png", str(options.out / "lateness.png")],
            cwd=ROOT,
        )
    except KeyboardInterrupt:
        status = 130
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait()
    reader.join()
    print(f"3. {log.read_text().splitlines()[-1]}")
    if ended:
        print(f"the server ended with status {ended}", file=sys.stderr)
    if status in (0, 1):
        print(f"report: {os.path.relpath(options.out / 'report.json')}")
        print(f"picture: {os.path.relpath(options.out / 'lateness.png')}")
    return status or (1 if ended else 0)


def _keep(lines: object, path: Path) -> None:
    with path.open("w") as log:
        for line in lines:  # type: ignore[attr-defined]
            log.write(line)
            log.flush()


if __name__ == "__main__":
    sys.exit(main())
