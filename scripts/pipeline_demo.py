"""Real traffic, from sockets to a page: server and load generator with journals, then audit, advice and report.

    python -m scripts.pipeline_demo [--connections N] [--out DIR]

The embedded engine answers, then Spark: the answers must be the same. Without Spark or Java that half is left out.

Exit status: that of the report (0: every connection judged, no violation), or of the part that failed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loadgen.cli_options import COUNT, option
from reaper.config.flags import Parser
from reaper.pipeline.arguments import Fault, require
from reaper.pipeline.engine.choice import no_spark

from .serving import ROOT, DidNotStart, example, load, serving

PIPELINE = [sys.executable, "-m", "reaper.pipeline"]


def _report(engine: str, events: Path, client: Path, out: Path, took: dict[str, float]) -> int:
    """The status of a report by *engine*; its seconds go to *took*."""
    before = time.monotonic()
    given = ["--events", str(events), "--client", str(client), "--out", str(out), "--engine", engine]
    status = subprocess.run([*PIPELINE, "report", *given], cwd=ROOT, check=False).returncode
    took[engine] = time.monotonic() - before
    return status


def _answer(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def main() -> int:
    """Run the demo."""
    parser = Parser(prog="pipeline_demo", description=__doc__.splitlines()[0] if __doc__ else None)
    option(parser, "--connections", COUNT, "default 2000", 2000)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "pipeline", metavar="DIR", help="out/pipeline")
    options = parser.parse_args()
    try:
        require((), options.out)
    except Fault as error:
        parser.error(str(error))
    out: Path = options.out
    events, client = out / "server-journal", out / "client-journal"
    for directory in (events, client):  # another run's rows would be judged too
        shutil.rmtree(directory, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    command = example("echo", "--idle", "5s", "--tick", "1s")
    command += ["--connections", str(options.connections), "--journal", str(events)]
    with serving(command, out / "server.log") as server:
        print(f"server: {server.said()}", end="", flush=True)
        flags = f"--connections {options.connections} --connect-rate 2000 --timeout 5s --tick 1s --duration 20s"
        files = ["--report", str(out / "loadgen.json"), "--journal", str(client)]
        loaded = subprocess.call(load(server.target, f"{flags} --mix silent=50,chatty=40,drip=10", *files), cwd=ROOT)
    took: dict[str, float] = {}
    judged = _report("embedded", events, client, out, took)
    for name in ("audit.txt", "advice.txt"):
        if (out / name).exists():
            print((out / name).read_text(encoding="utf-8"))
    print(f"page: {out / 'report.html'}")
    if (advised := out / "reaper.toml").exists():
        print(f"advised configuration: {advised}")
    differ: list[str] = []
    if (missing := no_spark()) is not None:
        print(f"left out: the same once more on Spark: {missing}")
    else:
        judged = max(judged, _report("spark", events, client, out / "spark", took))
        names = ("audit.json", "advice.json")
        differ = [name for name in names if _answer(out / name) != _answer(out / "spark" / name)]
        print(f"the two engines differ in {', '.join(differ)}" if differ else "the same answers from both engines")
    print(", ".join(f"{engine}: {seconds:.1f} s" for engine, seconds in took.items()) + " to judge and to advise")
    return judged or loaded or bool(differ)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DidNotStart as error:
        sys.exit(str(error))
