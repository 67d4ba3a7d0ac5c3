"""`python -m scripts.suites`: run servers' own tests stock and guarded, and print how
they differ.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..serving import ROOT
from .outcomes import HEAD, Comparison, Unfinished, differing, outcomes

HERE = Path(__file__).resolve().parent
PLUGINS = HERE / "plugins"
PATIENCE = 1800.0
"""Seconds for one run of one suite."""
EACH = 120
"""Seconds for one test, after which it has failed."""
ENDED = (0, 1)
"""The exit statuses of pytest that say what the tests said."""
MOST_AGAIN = 300
"""With more differences than this, something is broken, and running them again tells no
more.
"""


class CannotRun(RuntimeError):
    """A suite cannot be fetched or installed; the message says why."""


@dataclass(frozen=True)
class Suite:
    """A suite of tests, as `suites.toml` has it, and where its files are."""

    name: str
    version: str
    table: Mapping[str, Any]
    folder: Path
    given: Path | None = None

    @property
    def tests(self) -> Path:
        """The folder in which its tests run. What they import is what is installed."""
        return self.folder / "tests"

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def pinned(name: str, constraints: str) -> str:
    """The version of *name* in the text *constraints*."""
    found = re.search(rf"^{re.escape(name)}==(\S+)$", constraints, re.MULTILINE | re.IGNORECASE)
    if found is None:
        raise CannotRun(f"{name} has no version in constraints.txt")
    return found[1]


def quietly(command: Sequence[str | Path], what: str, **options: Any) -> None:
    """Run *command* and wait. Raises CannotRun, with its last line, if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except OSError as error:
        raise CannotRun(f"{what}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise CannotRun(f"{what}: {said[-1]}")


def fetched(suite: Suite) -> Path:
    """The folder that the source of *suite* is in: given, or fetched once and kept."""
    if suite.given is not None:
        return suite.given
    source = suite.folder / "source"
    if found := list(source.glob("*/tests")):
        return found[0].parent
    source.mkdir(parents=True, exist_ok=True)
    where = suite.table["from"]
    if where == "sdist":
        command = [str(suite.python), "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", suite.name, "--dest", str(source)]
        command += [f"{suite.name}=={suite.version}"]
        quietly(command, f"the source archive of {suite}")
        for archive in source.glob("*.tar.gz"):
            with tarfile.open(archive) as packed:
                packed.extractall(source, filter="data")
    else:
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", suite.version]
        quietly([*command, where, str(source / suite.name)], f"{where}, tag {suite.version}")
    found = list(source.glob("*/tests"))
    if not found:
        raise CannotRun(f"{suite}: its source has no folder tests")
    return found[0].parent


def prepared(suite: Suite) -> Suite:
    """Make the venv of *suite* and lay out its tests; what is there already is kept."""
    if not suite.python.exists():
        quietly([sys.executable, "-m", "venv", suite.folder / "venv"], f"the venv of {suite}")
    source = fetched(suite)
    stamp = suite.folder / "installed"
    server: str = suite.table.get("install", suite.name)
    wanted = [f"{server}=={suite.version}" if suite.given is None else str(suite.given)]
    wanted += [
        "pytest",
        "pytest-xdist",
        "pytest-reportlog",
        "pytest-timeout",
        *suite.table["needs"],
    ]
    if not stamp.exists() or stamp.read_text() != "\n".join(wanted):
        command = [str(suite.python), "-m", "pip", "install", "--quiet", *wanted]
        quietly(command, f"what {suite} needs")
        stamp.write_text("\n".join(wanted))
    shutil.rmtree(suite.tests, ignore_errors=True)
    suite.tests.mkdir()
    for name in ("tests", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini"):
        found = source / name
        if found.is_dir():
            shutil.copytree(found, suite.tests / name)
        elif found.exists():
            shutil.copy(found, suite.tests)
    asked = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    done = subprocess.run(
        [suite.python, "-c", asked, suite.name], capture_output=True, text=True, check=True
    )
    return replace(suite, version=done.stdout.strip())


def run(
    suite: Suite, name: str, tests: Iterable[str], *, guarded: bool, processes: int
) -> dict[str, str]:
    """Run *tests* of *suite* in *processes*; the outcome of each.

    Args:
        name: Of the files that it writes: NAME.jsonl and NAME.txt.

    Raises:
        Unfinished: it did not come to its end.
    """
    report, said = suite.folder / f"{name}.jsonl", suite.folder / f"{name}.txt"
    report.unlink(missing_ok=True)
    command: list[str] = [str(suite.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-n", str(processes), f"--timeout={EACH}", f"--report-log={report}"]
    command += suite.table.get("flags", [])
    environment = {**os.environ, "PYTHONPATH": str(PLUGINS)}
    if guarded:
        environment["SUITES_LEASES"] = str(suite.folder / f"{name}.leases")
        Path(environment["SUITES_LEASES"]).write_text("")
        for plugin in (suite.table.get("plugin"), "leases_taken"):
            command += ["-p", plugin] if plugin else []
        command = [sys.executable, "-m", "reaper", "run", "--inside", "--", *command]
    with said.open("w") as file:
        done = subprocess.run(
            [*command, *tests],
            cwd=suite.tests,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
        )
    try:
        found = outcomes(report.read_text().splitlines())
    except FileNotFoundError:
        raise Unfinished(f"it wrote no report; what it said: {said}") from None
    if done.returncode not in ENDED:
        raise Unfinished(f"pytest ended with status {done.returncode}; what it said: {said}")
    return found


def compared(suite: Suite, listed: Sequence[str], processes: int) -> tuple[Comparison, int]:
    """Run *suite* stock and guarded, and what differs once more; and the leases that
    were taken.
    """
    tests: list[str] = suite.table.get("tests", [])
    stock = run(suite, "stock", tests, guarded=False, processes=processes)
    guarded = run(suite, "guarded", tests, guarded=True, processes=processes)
    leases = sum(map(int, (suite.folder / "guarded.leases").read_text().split()))
    differ = differing(stock, guarded)
    once = [name for name in differ if "::" in name]
    if not once or len(once) > MOST_AGAIN:
        return Comparison(stock, guarded, listed), leases
    again = [
        run(suite, f"{name}-again", once, guarded=name == "guarded", processes=1)
        for name in ("stock", "guarded")
    ]
    seen = {*differing(*again), *(name for name in differ if "::" not in name)}
    return Comparison(stock, guarded, listed, frozenset(seen)), leases


def chosen(arguments: argparse.Namespace) -> list[Suite]:
    """The suites that were asked for. Raises CannotRun."""
    tables = tomllib.loads((HERE / "suites.toml").read_text())
    constraints = (ROOT / "constraints.txt").read_text()
    given: dict[str, Path] = {}
    for text in arguments.source:
        name, _, folder = text.partition("=")
        if not (Path(folder) / "tests").is_dir():
            raise CannotRun(f"--source {text}: NAME=FOLDER is wanted, a folder that has tests/")
        given[name] = Path(folder).resolve()
    names = arguments.suites or list(tables)
    for name in [*names, *given]:
        if name not in tables:
            raise CannotRun(f"no suite is called {name!r}; there are {', '.join(tables)}")
    return [
        Suite(
            name,
            pinned(name, constraints),
            tables[name],
            arguments.out.resolve() / name,
            given.get(name),
        )
        for name in names
    ]


def main(words: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.suites",
        description="Run servers' own test suites as they are, then guarded, and compare.",
    )
    parser.add_argument("suites", nargs="*", metavar="SERVER", help="which (default: all)")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="take the server and its tests from a checkout, instead of fetching them",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "suites", help="where it works")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="tests at a time")
    arguments = parser.parse_args(words)
    listed = tomllib.loads((HERE / "differences.toml").read_text())
    try:
        suites = chosen(arguments)
    except CannotRun as error:
        print(f"suites: {error}", file=sys.stderr)
        return 2
    rows, status = [HEAD], 0
    for suite in suites:
        print(f"{suite}: stock, then guarded", file=sys.stderr, flush=True)
        try:
            suite = prepared(suite)
            entries = [each["test"] for each in listed.get(suite.name, ())]
            comparison, leases = compared(suite, entries, arguments.processes)
        except CannotRun as error:
            print(f"suites: {error}", file=sys.stderr)
            return 2
        except (Unfinished, subprocess.TimeoutExpired) as error:
            print(f"suites: {suite} did not end: {error}", file=sys.stderr)
            rows.append(f"| {suite} | did not end | | | | | |")
            status = 1
            continue
        apart = suite.table.get("apart", False)
        rows.append(comparison.row(str(suite), None if apart else leases))
        for name in comparison.unlisted:
            stock, guarded = (
                run.get(name, "not run") for run in (comparison.stock, comparison.guarded)
            )
            print(f"{suite.name}: {name}: stock {stock}, guarded {guarded}", file=sys.stderr)
        for name in comparison.once:
            print(f"{suite.name}: {name}: differed once, and not again", file=sys.stderr)
        for entry in comparison.unseen:
            print(f"{suite.name}: {entry}: is listed, and did not differ", file=sys.stderr)
        if comparison.unlisted or not (leases or apart):
            status = 1
        if not (leases or apart):
            print(f"{suite.name}: nothing was guarded in its guarded run", file=sys.stderr)
    print("\n".join(rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
