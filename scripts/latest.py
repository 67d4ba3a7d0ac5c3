"""The newest releases of the servers, and of what they are built on, tried before a
user meets them.

    make test-latest
    python -m scripts.latest [--only NAME ...] [-- PYTEST ARGUMENTS]

It makes a second environment in out/latest: that of `make test`, and above it the
newest release, pre-releases included, of every package that a guest uses. There it runs
the tests of the rooms that touch them, and prints which of the tested ranges
(`names.py` of each room) may be widened.

The rule of this module: *the newest is put above what is pinned, and changes nothing of
it*. The environment sees the packages of .venv through a .pth file; what is installed
in it comes first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from reaper.foreign import PYTHON, Foreign
from reaper.servers.cards import cards

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "out" / "latest"

BELOW = ("h2", "hpack", "hyperframe", "wsproto", "httptools", "h11", "uvloop", "trio", "zttp")
"""What servers are built on."""

PACKAGES = (*(card.name for card in cards()), *BELOW)
"""What is installed in its newest release."""

ROOMS = ("servers", "run", "adapters", "asyncio", "trio")
"""The folders of tests/ that are run."""

LONGEST_HEAD = 127
"""Bytes of a script's first line that every kernel reads."""

HELD_TO_PINS = ("said_to_be_tested", "latest_version_that_is_named")
"""Parts of the names of tests that compare what is installed with the tested ranges."""


def make_environment(place: Path, packages: Sequence[str]) -> Path:
    """Make the environment anew at *place*, with the newest of *packages*; returns its
    Python.
    """
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    for name in ("purelib", "platlib"):
        own = subprocess.run(
            [python, "-c", f"import sysconfig; print(sysconfig.get_path({name!r}))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        (Path(own) / "pinned.pth").write_text(f"{sysconfig.get_path(name)}\n{ROOT}\n")
    # What they need is in the environment below, unless they need a newer one.
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--upgrade", "--pre", *packages], check=True)
    take_commands(Path(sys.executable).parent, python)
    return python


def take_commands(below: Path, python: Path) -> None:
    """Have *python* run the commands in the folder *below* that its own environment
    lacks: those of packages that had no newer release.
    """
    for command in below.iterdir():
        own = python.parent / command.name
        if own.exists() or not command.is_file():
            continue
        if (program := program_of(command, below)) is not None:
            own.write_bytes(shebang(python) + program)
            own.chmod(0o755)


def program_of(command: Path, below: Path) -> bytes | None:
    """What a Python in the folder *below* runs as *command*; None: it is no script of
    such a one.
    """
    first, _, rest = command.read_bytes().partition(b"\n")
    if first.startswith(f"#!{below}/python".encode()):
        return rest
    begin, _, rest = rest.partition(b"\n")
    if first == b"#!/bin/sh" and begin.startswith(
        (f"'''exec' {below}/python".encode(), f"'''exec' \"{below}/python".encode())
    ):
        return rest.partition(b"\n")[2]
    return None


def shebang(python: Path) -> bytes:
    """The head of a script that *python* runs. Where its path is too long for the
    kernel, or has a blank, a shell finds it, by lines that are a string to Python: as
    pip does.
    """
    plain = f"#!{python}\n".encode()
    if len(plain) <= LONGEST_HEAD and b" " not in plain:
        return plain
    return f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n".encode()


def run_tests(python: Path, arguments: Sequence[str]) -> int:
    """Run the tests by *python*; returns the status of pytest."""
    folders = [f"tests/{room}" for room in ROOMS]
    kept = " and ".join(f"not {name}" for name in HELD_TO_PINS)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", kept]
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([*command, *(arguments or folders)], cwd=ROOT, env=environment).returncode


def rows() -> Iterator[str]:
    """A row for each package with a tested range, as it is installed for this
    Python.
    """
    found: dict[str, list[Foreign]] = {}
    for table in dict.fromkeys(table for card in cards() for table in card.tables):
        if table.package != PYTHON:
            found.setdefault(table.package, []).append(table)
    for package, tables in sorted(found.items()):
        lost = sorted({name for table in tables for name in table.missing()})
        if lost:
            what = f"lacks {', '.join(lost)}"
        else:
            what = "as tested" if all(table.is_tested for table in tables) else "widen the range"
        yield f"| {package} | {tables[0].range} | {tables[0].version} | {what} |"


def print_table() -> None:
    """Print the ranges, for this Python."""
    print("| package | tested | installed | |\n|---|---|---|---|")
    print("\n".join(rows()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment, run the tests, print the table; returns the status of the
    tests.
    """
    parser = argparse.ArgumentParser(prog="scripts.latest", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these packages alone")
    parser.add_argument("--table", action="store_true", help="the table alone, for this Python")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    parsed = parser.parse_args(arguments)
    if parsed.table:
        print_table()
        return 0
    python = make_environment(PLACE, parsed.only or PACKAGES)
    status = run_tests(python, parsed.pytest)
    subprocess.run([str(python), "-m", "scripts.latest", "--table"], cwd=ROOT, check=True)
    if status:
        print("a test has failed with these versions: the ranges stay", file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
