"""`loadgen probe` of a stock and a guarded uvicorn, as the page docs/uvicorn-probe.md.

One rule: *no figure of the page is typed*. The tables are the output of the commands that stand above them.

python -m scripts.uvicorn_demo.probes
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from scripts.serving import ROOT, Server

from .__main__ import GUARDED, SETTINGS, TIMEOUT, start

PAGE = ROOT / "docs" / "uvicorn-probe.md"
KEPT_FOR_EVER = {"REAPER_TIMEOUTS_MAX_AGE": "0s"}
"""The probe asks how long a silence may be; an age that is drawn at random would end its longest questions."""

INTRODUCTION = """\
# uvicorn, probed: stock and guarded

Written by `python -m scripts.uvicorn_demo.probes`; do not edit it. What the questions and the columns mean is on the
[page about the probe](probe.md). One FastAPI application, uvicorn {uvicorn}, {python}.
The two servers were probed at the same time; they differ in `--http` alone.
"""


def probed(server: Server, wait: float, trials: int) -> subprocess.Popen[str]:
    """`loadgen probe` of *server*, started."""
    command = [sys.executable, "-m", "loadgen", "probe", "--target", server.target, *flags(wait, trials)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def flags(wait: float, trials: int) -> list[str]:
    """What the probe is given besides its target."""
    return ["--protocol", "http", "--path", "/echo", "--wait", f"{wait:g}s", "--trials", f"{trials}", "--markdown"]


def page(wait: float, trials: int) -> str:
    """The whole page. Takes about *wait* seconds and 20 more. Raises RuntimeError: a probe failed."""
    kinds = {"Stock": "httptools", "Guarded": GUARDED}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {kind: start(stack, folder, http, KEPT_FOR_EVER) for kind, http in kinds.items()}
        probes = {kind: probed(server, wait, trials) for kind, server in servers.items()}
        tables = {kind: probe.communicate(timeout=4 * wait + 60)[0].strip() for kind, probe in probes.items()}
    failed = [kind for kind, probe in probes.items() if probe.returncode]
    if failed:
        raise RuntimeError(f"the probe failed: {', '.join(failed)}")
    python = f"CPython {sys.version.split()[0]}"
    parts = [INTRODUCTION.format(uvicorn=version("uvicorn"), python=python)]
    probe = " ".join(["python -m loadgen probe --target 127.0.0.1:8000", *flags(wait, trials)])
    settings = " \\\n    ".join(f"{name}={value}" for name, value in sorted((SETTINGS | KEPT_FOR_EVER).items()))
    for kind, http in kinds.items():
        serve = f"uvicorn scripts.uvicorn_demo.app:app --http {http} --timeout-keep-alive {TIMEOUT:g}"
        given = f"    {settings} \\\n    {serve}" if http == GUARDED else f"    {serve}"
        parts.append(f"## {kind}\n\n{given}\n    {probe}\n\n{tables[kind]}\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="uvicorn_demo.probes", description="Probe a stock and a guarded uvicorn.")
    parser.add_argument("--wait", type=float, default=15.0, help="seconds that a close is waited for; default 15")
    parser.add_argument("--trials", type=int, default=12, help="connections per question; default 12")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; default docs/uvicorn-probe.md")
    arguments = parser.parse_args()
    arguments.out.write_text(page(arguments.wait, arguments.trials))
    print(f"wrote {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
