"""`python -m scripts.silence [--only SERVER] [--document]`: try ten servers with every
kind of client, and write what came out into docs/silence.md.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reaper.config.flags import Parser

from .. import marked
from ..provenance import machine
from ..serving import ROOT, free_port, serving
from .servers import ASGI, LIMIT, PYTHON, SERVERS, Server, prepare

PAGE = ROOT / "docs" / "silence.md"
BEGIN = "<!-- silence: written by `python -m scripts.silence --document`, do not edit -->"
END = "<!-- end of silence -->"
AT_ONCE = 3
"""Servers that are tried at the same time: most of it is waiting."""
BACKEND = f"{PYTHON} uvicorn {ASGI} --no-access-log --timeout-keep-alive 120 --port"


def main() -> int:
    """Try them. Exit status: 0 they were tried, 2 one is not installed or does not
    start.
    """
    parser = Parser(prog="python -m scripts.silence", description=__doc__.splitlines()[0])
    names = tuple(server.name for server in SERVERS)
    parser.add_argument("--only", metavar="SERVER", choices=names, help="this one alone")
    parser.add_argument("--document", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    servers = [server for server in SERVERS if options.only in (None, server.name)]
    for server in servers:
        if server.needs and shutil.which(server.needs) is None:
            print(f"{server.name}: {server.needs} is not installed", file=sys.stderr)
            return 2
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        reports = list(threads.map(tried, servers))
    for server, report in zip(servers, reports, strict=True):
        if "kinds" not in report:
            print(f"{server.name}: {report['error']}", file=sys.stderr)
            return 2
        found[server.name] = report
        print(f"{server.name}: {report['right']} right, {report['wrong']} wrong", flush=True)
        print(*(f"  {line}" for line in faults(report)), sep="\n", flush=True)
    if options.document and not options.only:
        marked.write(PAGE, BEGIN, END, text(found))
    return 0


def tried(server: Server) -> dict[str, Any]:
    """What conform reports of *server*, whose files go with it."""
    with tempfile.TemporaryDirectory(prefix="silence") as folder:
        Path(folder).chmod(0o755)  # some serve as another user
        return tried_in(server, Path(folder))


def tried_in(server: Server, folder: Path) -> dict[str, Any]:
    """The same, with its files in *folder*."""
    port, backend = free_port(), free_port()
    command = prepare(server, folder / "server", port, backend)
    if not server.proxies:
        return judged(server, port, command)
    with serving([*shlex.split(BACKEND), str(backend)], folder / "backend.log", port=backend):
        return judged(server, port, command)


def judged(server: Server, port: int, command: list[str]) -> dict[str, Any]:
    """The same, where its application listens if it needs one."""
    limits = [f"--{name.replace('_', '-')}={LIMIT:g}s" for name in server.limits]
    words = [sys.executable, "-m", "loadgen", "conform", f"127.0.0.1:{port}", *limits]
    done = subprocess.run(
        [*words, f"--stop={server.stop}", "--no-learn", "--json", "--quiet", "--", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
    return report


def faults(report: dict[str, Any]) -> list[str]:
    """A line for each kind with which a server is wrong."""
    return [
        f"{each['kind']}: {each['why']} ({each['level']}{_source(each)})"
        for each in report["kinds"]
        if each["verdict"] == "wrong"
    ]


def _source(row: dict[str, Any]) -> str:
    return f", {row['source']}" if row["source"] else ""


def text(found: dict[str, dict[str, Any]]) -> str:
    """What the page shows."""
    about = machine()
    load, limit = f"load {about['load_before']:.0f}", f"Each limit is {LIMIT:g} s."
    taken = (
        f"Commit {about['commit'][:12]}; {about['date']}, {about['cpus']} cores, {load}. {limit}"
    )
    lines = [
        taken,
        "",
        "| server | its limits | right | wrong: MUST, SHOULD | wrong: advice | not judged |",
        "|---|---|---|---|---|---|",
    ]
    for server in SERVERS:
        report = found[server.name]
        count = Counter(
            each["level"] == "advice" for each in report["kinds"] if each["verdict"] == "wrong"
        )
        cells = (server.name, server.about, report["right"], count[False], count[True])
        lines.append(f"| {' | '.join(map(str, cells))} | {report['not_judged']} |")
    for server in SERVERS:
        lines += ["", f"## {server.name}", ""]
        unjudged = found[server.name]["not_judged"]
        good = f"Nothing is wrong of what was judged; {unjudged} kinds of client were not."
        lines += [f"- {line}" for line in faults(found[server.name])] or [good]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
