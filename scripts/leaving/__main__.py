"""Run the trial for each application, stock and guarded, and print a row of figures for
each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from scripts.leaving.applications import APPLICATIONS
from scripts.leaving.postgres import tool
from scripts.leaving.servers import table
from scripts.leaving.trial import SERVERS, faults, tried


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.leaving", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000, help="of each run")
    parser.add_argument("--at-once", type=int, default=400, help="clients at a time")
    parser.add_argument("--abandoned", default="200ms", help="timeouts.abandoned")
    parser.add_argument("--application", choices=APPLICATIONS, help="only this one")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument(
        "--servers", action="store_true", help="print the table of servers instead, with 2s"
    )
    given = parser.parse_args()
    if given.servers:
        for line in table("2s"):
            print(line, flush=True)
        return 0
    failed = False
    for application in [given.application] if given.application else APPLICATIONS:
        if application == "postgresql" and tool("initdb") is None:
            print("postgresql: NOT TRIED: no initdb, install PostgreSQL", flush=True)
            failed |= given.application is not None
            continue
        for server in SERVERS:
            with tempfile.TemporaryDirectory() as folder:
                row = tried(
                    application,
                    server,
                    Path(folder) / "log",
                    clients=given.clients,
                    at_once=given.at_once,
                    abandoned=given.abandoned,
                )
            wrong = faults(row) if server == "guarded" else []
            failed |= bool(wrong)
            if given.json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    f"{application} {server}: {row['left']} left, {row['begun']} begun, {row['cancelled']} cancelled "
                    f"({row['log_cancelled']} by reaper), worked {row['worked']:.0f} s; answered "
                    f"{row['answered']} of {row['stayed']} that stayed, {row['heard']} of "
                    f"{row['waited']} half-closed; pool connections out {row.get('out', '-')}; "
                    f"failed {row['failed']}, tracebacks {row['log_errors']}",
                    flush=True,
                )
            for each in wrong:
                print(f"  WRONG: {each}", *row["wrong"], flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
