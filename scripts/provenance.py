"""What figures were taken on: machine, interpreter, packages and commit.

One rule: without this a figure can neither be repeated nor doubted, so benchmarks,
demos and trials write it into each of their files.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from .serving import ROOT

PACKAGES = (
    "trio",
    "h11",
    "uvloop",
    "numpy",
    "pyarrow",
    "pyspark",
    "duckdb",
    "uvicorn",
    "aiohttp",
    "hypercorn",
)
"""The packages whose versions are noted: those that a figure may depend on."""


def machine() -> dict[str, Any]:
    """This machine now, as JSON can carry it. Cost: two runs of git, about 10 ms."""
    installed = {f"{each.name}".lower(): each.version for each in distributions()}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "system": platform.system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {package: installed.get(package, "absent") for package in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        # The results are rewritten by the very run that asks, and the document after
        # it: they do not count.
        "dirty": bool(_git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs")),
        "load_before": os.getloadavg()[0],
    }


def commit() -> str:
    """The commit that is checked out, in twelve digits; followed by `, changed` if the
    tree is not that, docs and results apart. Empty: it is no repository. Cost: two runs
    of git.
    """
    apart = (":!benchmarks/results", ":!docs")
    changed = ", changed" if _git("status", "--porcelain", "--", ".", *apart) else ""
    head = _git("rev-parse", "HEAD")
    return head[:12] + changed if head else ""


def _cpu_model() -> str:
    found = re.search(
        r"^model name\s*:\s*(.*?)\s*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
    )
    return found[1] if found else platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
