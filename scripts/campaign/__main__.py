"""`python -m scripts.campaign [--minutes 60] [--only NAME,...] [--document]`.

One rule: *what is written in docs/reliability.md was measured by this command*; no figure there is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from ..serving import ROOT, DidNotStart
from . import trials
from .lifetimes import lifetimes
from .trials import Outcome, Trial

PAGE = ROOT / "docs" / "reliability.md"
BEGIN = "<!-- campaign: written by `python -m scripts.campaign --document`, do not edit -->"
END = "<!-- end of campaign -->"

TRIALS = [
    Trial("lifetimes, echo", "every close judged from the client's side; memory and descriptors stay flat",
          "growth slower than the bound of 4 MiB in the time it ran", 0.3, partial(lifetimes, "echo")),
    Trial("lifetimes, http", "the same over HTTP; leases stay flat too",
          "growth slower than the bound of 4 MiB in the time it ran", 0.12, partial(lifetimes, "http")),
    Trial("group signals", "SIGTERM, SIGINT or SIGHUP to the whole group, then more of them: no request is lost",
          "SIGKILL", 0.05, trials.group_signals),
    Trial("rolling restart", "a successor takes the port over under load: no connection fails",
          "a proxy that caches addresses", 0.08, trials.rolling_restart),
    Trial("reload", "SIGHUP to the whole group under load: nothing is lost", "settings that need a restart", 0.05,
          trials.reloads),
    Trial("pause", "all processes stopped for three timeouts: no client that talks is lost",
          "a pause longer than TCP keeps unread bytes", 0.08, trials.pauses),
    Trial("pipelined stall", "requests written together, all processes stopped for three timeouts: all are answered",
          "a pause longer than TCP keeps unread bytes", 0.04, trials.pipelined_stall),
    Trial("handshake stall", "clients whose TLS handshake begins while the server is stopped are answered",
          "clients that give up by themselves", 0.04, trials.handshake_stall),
    Trial("listeners", "WebSocket clients that only listen to a guarded uvicorn stay",
          "clients that stop reading: they are closed, as they should be", 0.02, trials.listeners),
    Trial("empty lines over TLS", "clients that send only CRLF: healthy ones are answered meanwhile",
          "more of them than the cores can read", 0.03, trials.crlf),
    Trial("scrapes", "fifty scrapes in one instant: each tells of every worker", "scrapes that take longer than a tick",
          0.02, trials.scrapes),
    Trial("vanished", "clients whose machine is gone are closed in time, whatever they wait for, and none too early",
          "routers that answer for a machine that is gone", 0.04, trials.vanished),
    Trial("worker killed", "kill -9 of a worker costs its own connections alone", "requests it had begun", 0.06,
          trials.killed_workers),
    Trial("disk full", "the journal cannot grow: no request waits for it, and what it lost is said",
          "a disk that loses what it confirmed", 0.03, trials.full_disk),
    Trial("no descriptors", "more clients than descriptors: those inside stay, those outside come in later",
          "a machine without memory for sockets", 0.04, trials.no_descriptors),
    Trial("attackers", "attackers of every kind: healthy clients are served, and every attacker's connection ends",
          "more addresses than one machine has", 0.1, trials.attackers),
    Trial("nonsense", "malformed HTTP never kills the server and leaks no connection, lease or descriptor",
          "bytes that no generator of ours makes", 0.05, trials.nonsense),
]  # fmt: skip


def main() -> int:
    """Run the campaign. Exit status: 0 every trial passed, 1 one failed, 2 bad arguments, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m scripts.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, about; default 60")
    parser.add_argument("--only", metavar="NAME,...", help="these trials alone")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "campaign")
    parser.add_argument("--document", action="store_true", help="write the figures into docs/reliability.md as well")
    options = parser.parse_args()
    known = {trial.name: trial for trial in TRIALS}
    wanted = [name.strip() for name in options.only.split(",")] if options.only else list(known)
    if ", ".join(wanted) in known:  # a name may have a comma in it
        wanted = [", ".join(wanted)]
    for name in wanted:
        if name not in known:
            print(f"--only {name}: must be one of: {'; '.join(known)}", file=sys.stderr)
            return 2
    if not options.minutes > 0:
        print(f"--minutes {options.minutes}: must be more than 0", file=sys.stderr)
        return 2
    chosen = [known[name] for name in wanted]
    total = sum(trial.share for trial in chosen)
    report: dict[str, Any] = {"about": about(), "minutes": options.minutes, "trials": []}
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for trial in chosen:
            report["trials"].append(tried(trial, options.minutes * 60 * trial.share / total, options.out))
            (options.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    except KeyboardInterrupt:
        print("\ninterrupted: no verdict", file=sys.stderr)
        return 130
    if options.document:
        document(report)
    failed = [found["name"] for found in report["trials"] if not found["passed"]]
    print(f"report: {os.path.relpath(options.out / 'report.json')}")
    print(f"FAIL: {', '.join(failed)}" if failed else f"PASS: {len(chosen)} trials")
    return 1 if failed else 0


def about() -> dict[str, str]:
    """What was tried, where, when."""
    git = [shutil.which("git") or "git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    python = ".".join(map(str, sys.version_info[:3]))
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"commit": commit, "python": python, "cores": str(os.cpu_count()), "when": when}


def tried(trial: Trial, seconds: float, out: Path) -> dict[str, Any]:
    """Run one trial; what it saw."""
    folder = out / trial.name.replace(", ", "-").replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{trial.name}: {trial.claim}", flush=True)
    last = 0.0

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() > last + 10:
            last = time.monotonic()
            print(f"    {text}", flush=True)

    began = time.monotonic()
    try:
        found = trial.run(folder, seconds, say)
    except (DidNotStart, RuntimeError) as error:
        found = Outcome(False, {}, [str(error)])
    figures = ", ".join(f"{name}: {value}" for name, value in found.figures.items())
    print(f"  {'pass' if found.passed else 'FAIL'}: {figures}", *found.failures[:5], sep="\n    ", flush=True)
    return {
        "name": trial.name,
        "claim": trial.claim,
        "unseen": trial.unseen,
        "seconds": round(time.monotonic() - began),
        "passed": found.passed,
        "figures": found.figures,
        "failures": found.failures,
    }


def document(report: dict[str, Any]) -> None:
    """Put the figures of *report* between the marks in docs/reliability.md."""
    known = report["about"]
    command = f"`python -m scripts.campaign --minutes {report['minutes']:g}`"
    lines = [
        f"{command}, commit {known['commit']}, {known['when']}, {known['cores']} cores, CPython {known['python']}.",
        "",
        "| trial | claim | verdict | what was seen | what it cannot see |",
        "|---|---|---|---|---|",
    ]
    for trial in report["trials"]:
        pairs = [(name, f"{value:,}" if type(value) is int else value) for name, value in trial["figures"].items()]
        seen = "; ".join(f"{name}: {value}" for name, value in pairs)
        verdict = "pass" if trial["passed"] else f"**FAIL**: {'; '.join(trial['failures'][:3])}"
        lines.append(f"| {trial['name']} | {trial['claim']} | {verdict} | {seen} | {trial['unseen']} |")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    if not rest:
        raise SystemExit(f"{PAGE} lacks the mark {BEGIN}")
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.partition(END)[2]]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
