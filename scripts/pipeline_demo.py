"""Real traffic, from sockets to a page: server and load generator with journals, then
audit, advice and report.

    python -m scripts.pipeline_demo [--connections N] [--out DIR]

The embedded engine answers, then Spark: the answers must be the same. Without Spark or
Java that half is left out.

Exit status: that of the report (0: every connection judged, no violation), or of the
part that failed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from loadgen.cli_options import COUNT, option
from reaper.config.flags import Parser
from reaper.pipeline.arguments import Fault, require
from reaper.pipeline.engine.choice import no_spark

from .serving import ROOT, DidNotStart, example, load, serving

ANSWERS = ("audit.json", "advice.json")
PIPELINE = [sys.executable, "-m", "reaper.pipeline"]


def main() -> int:
    """Run the demo."""
    parser = Parser(prog="pipeline_demo", description=__doc__.splitlines()[0] if __doc__ else None)
    option(parser, "--connections", COUNT, "default 2000", 2000)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "pipeline", metavar="DIR", help="out/pipeline"
    )
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
        flags = f"--connections {options.connections} --connect-rate 2000"
        flags += " --timeout 5s --tick 1s --duration 20s"
        files = ["--report", str(out / "loadgen.json"), "--journal", str(client)]
        loaded = subprocess.call(
            load(server.target, f"{flags} --mix silent=50,chatty=40,drip=10", *files), cwd=ROOT
        )
    judged, took, answers = 0, {}, []
    missing = no_spark()
    for engine, folder in (("embedded", out), *(() if missing else (("spark", out / "spark"),))):
        before = time.monotonic()
        given = [
            "--events",
            str(events),
            "--client",
            str(client),
            "--out",
            str(folder),
            "--engine",
            engine,
        ]
        judged = max(judged, subprocess.call([*PIPELINE, "report", *given], cwd=ROOT))
        took[engine] = time.monotonic() - before
        paths = [folder / name for name in ANSWERS]
        answers.append(
            [
                json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
                for path in paths
            ]
        )
    for name in ("audit.txt", "advice.txt"):
        if (out / name).exists():
            print((out / name).read_text(encoding="utf-8"))
    print(f"page: {out / 'report.html'}")
    if (advised := out / "reaper.toml").exists():
        print(f"advised configuration: {advised}")
    differ = [
        name
        for name, one, other in zip(ANSWERS, answers[0], answers[-1], strict=True)
        if one != other
    ]
    if missing is not None:
        print(f"left out: the same once more on Spark: {missing}")
    else:
        print(
            f"the two engines differ in {', '.join(differ)}"
            if differ
            else "the same answers from both engines"
        )
    print(
        ", ".join(f"{engine}: {seconds:.1f} s" for engine, seconds in took.items())
        + " to judge and to advise"
    )
    return judged or loaded or bool(differ)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DidNotStart as error:
        sys.exit(str(error))
