"""A venv for each program, below out/programs/: what one requires does not change
another.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

from ..serving import ROOT
from ..tools import Missing, tool
from .declared import Program

VENVS = ROOT / "out" / "programs"
PATIENCE = 600.0
"""Seconds for an installation."""
FOLDERS = ["/usr/sbin", "/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
"""Where Debian puts servers, beside the folders of PATH."""
_LOCKS: dict[Path, threading.Lock] = defaultdict(threading.Lock)


def path_with(folder: Path) -> str:
    """A PATH on which the commands in *folder* come first, and servers of Debian
    are.
    """
    return os.pathsep.join([str(folder), os.environ.get("PATH", ""), *FOLDERS])


def install(program: Program, *, with_apt: bool = False) -> Path:
    """Install *program*, unless it is; the folder of its commands.

    Programs with the same requirements share a venv.

    Args:
        with_apt: Whether Debian packages may be installed; only root can.
    Raises:
        Missing: it cannot be installed; the message says why.
    """
    if program.apt:
        command = re.sub(r"^setpriv .*--clear-groups ", "", program.command).split()[0]
        try:
            tool(command, program.apt)
        except Missing:
            if not with_apt:
                raise
            _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", program.apt])
            tool(command, program.apt)
    if not program.pip:
        return Path(sys.executable).parent
    key = hashlib.sha256(" ".join([*program.pip, sys.version]).encode()).hexdigest()[:8]
    folder = VENVS / f"{re.split('[=[]', program.pip[0])[0]}-{key}"
    done = folder / "installed"
    with _LOCKS[folder]:
        if not done.exists():
            _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
            pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
            options = ["-q", "--disable-pip-version-check", "--no-compile"]
            _run([*pip, "install", *options, *program.pip])
            done.write_text("\n".join(program.pip) + "\n")
    return folder / "bin"


def version(program: Program) -> str:
    """Of the program that is installed."""
    if program.pip:
        return program.pip[0].partition("==")[2]
    if program.apt:
        asked = ["dpkg-query", "--show", "--showformat=${Version}", program.apt]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        return re.sub(r"^\d+:|[-+].*", "", found)
    return platform.python_version()


def _run(command: list[str]) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    environment.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"not installed within {PATIENCE:g} s: {command[-1]}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()
        raise Missing(f"cannot be installed: {said[-1][:200]}")
