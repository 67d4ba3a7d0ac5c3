"""Real traffic, from sockets to a page: server and load generator with journals, then audit, advice and report.

    python scripts/pipeline_demo.py [--connections N] [--out DIR]

Exit status: that of the report (0: every connection judged, no violation), or of the part that failed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--connections", type=int, default=2000, metavar="N", help="default 2000")
    parser.add_argument("--timeout", default="5s", metavar="DURATION", help="idle timeout; default 5s")
    parser.add_argument("--connect-rate", default="2000", metavar="N", help="connections a second; default 2000")
    parser.add_argument("--duration", default="20s", metavar="DURATION", help="of the load; default 20s")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "pipeline", metavar="DIR", help="default out/pipeline"
    )
    options = parser.parse_args()
    out: Path = options.out
    events, client = out / "server-journal", out / "client-journal"
    for directory in (events, client):  # another run's rows would be judged too
        shutil.rmtree(directory, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "server_example", "echo", "--port", "0", "--idle", options.timeout, "--tick", "1s"]
    command += ["--connections", str(options.connections), "--journal", str(events)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = None
        for line in server.stdout:
            print(f"server: {line}", end="", flush=True)
            if match := re.search(r"listening on .*:(\d+) ", line):
                port = match[1]
                break
        if port is None:
            return server.wait() or 1
        # Somebody has to read what the server says, or it would wait for the pipe.
        reader = threading.Thread(target=server.stdout.read, daemon=True)
        reader.start()
        run = [sys.executable, "-m", "loadgen", "run", "--target", f"127.0.0.1:{port}"]
        load = ["--connections", str(options.connections), "--timeout", options.timeout, "--tick", "1s"]
        load += ["--connect-rate", options.connect_rate]
        mix = ["--mix", "silent=50,chatty=40,drip=10", "--duration", options.duration]
        kept = ["--report", str(out / "loadgen.json"), "--journal", str(client)]
        loaded = subprocess.run([*run, *load, *mix, *kept], cwd=ROOT, check=False).returncode
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
    report = [sys.executable, "-m", "reaper.pipeline", "report", "--events", str(events), "--client", str(client)]
    judged = subprocess.run([*report, "--out", str(out)], cwd=ROOT, check=False).returncode
    for name in ("audit.txt", "advice.txt"):
        if (out / name).exists():
            print((out / name).read_text(encoding="utf-8"))
    print(f"page: {out / 'report.html'}\nadvised configuration: {out / 'reaper.toml'}")
    return judged or loaded


if __name__ == "__main__":
    sys.exit(main())
