"""Every file is checked before Spark sees it: it is taken whole, or put aside with a reason and counted.

Spark's own choices are to fail on a bad file without naming what to do, or (`ignoreCorruptFiles`) to drop it silently.
An audit can afford neither.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .file import Refused, check_file
from .manifest import BUCKETS, Table, Unsound, is_table, open_table
from .runs import Facts, Run, runs_of, strangers


@dataclass(slots=True)
class Inputs:
    """The outcome of the check of some directories."""

    files: list[Facts] = field(default_factory=list)
    quarantined: list[dict[str, str]] = field(default_factory=list)
    """path, reason; in order of path."""
    growing: int = 0
    """Streams that are no Parquet yet: their writer lives, or crashed and nothing has started there since."""
    runs: list[Run] = field(default_factory=list)
    dropped_rows: int = 0
    """Rows that writers say they dropped."""
    tables: list[Table] = field(default_factory=list)


def check(
    directories: Iterable[Path],
    *,
    checksums: bool = True,
    max_age_ns: int | None = None,
    now_ns: int | None = None,
    by_name: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Inputs:
    """Check every `*.parquet` below *directories* whose name is not hidden.

    A directory that holds the manifest of a compacted table is that table: its files count as when they were compacted.

    Args:
        directories: Searched recursively; a file may be named too.
        checksums: Verify every page. Reads the files once: some 100 MB/s a core.
        max_age_ns: Files that ended longer ago are put aside as late. None: none is. A compacted file is not asked
            again.
        now_ns: Unix time; None: this machine's.
        by_name: Runs will be told apart by their names and not by the numbers of connections: two servers may then use
            the same ones.
        progress: Called with what is being done.
    Raises:
        FileNotFoundError: a directory is missing.
        Unsound: a compacted table is not what its manifest says.
    Cost: memory: a row group (a million rows) per core.
    """
    found = Inputs()
    paths: list[Path] = []
    for directory in directories:
        if not directory.exists():
            raise FileNotFoundError(f"no such directory: {directory}")
        if is_table(directory):
            progress(f"checking the compacted table {directory}")
            table, manifest = open_table(directory, checksums=checksums)
            found.tables.append(table)
            found.quarantined += manifest["quarantined"]
            found.growing += manifest["growing"]
            for facts in manifest["facts"]:
                found.files.append(Facts(**{**facts, "path": Path(facts["path"]), "within": directory}))
        else:
            paths += [directory] if directory.is_file() else sorted(_visible(directory, found))
    now = time.time_ns() if now_ns is None else now_ns

    def one(path: Path) -> Facts | dict[str, str]:
        try:
            return check_file(path, checksums, max_age_ns, now)
        except Refused as refused:
            return {"path": str(path), "reason": str(refused)}

    progress(f"checking {len(paths)} files")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(one, paths))
    compacted, found.files = found.files, []
    seen: dict[object, Facts] = {}
    for outcome in [*compacted, *outcomes]:
        if isinstance(outcome, dict):
            found.quarantined.append(outcome)
            continue
        first = seen.setdefault((outcome.run, outcome.serial) if outcome.run else outcome.digest, outcome)
        if first is outcome:
            found.files.append(outcome)
        elif outcome.within is not None:
            raise Unsound(f"{first.within} and {outcome.within} both hold the rows of {outcome.path}: give one of them")
        else:
            reason = f"duplicated: the same file as {first.path}"
            found.quarantined.append({"path": str(outcome.path), "reason": reason})
    for path, reason in ({} if by_name else strangers(found.files)).items():
        found.quarantined.append({"path": str(path), "reason": reason})
        found.files = [facts for facts in found.files if facts.path != path]
    found.runs = runs_of(found.files)
    latest: dict[str, int] = {}
    for facts in found.files:
        latest[facts.run] = max(latest.get(facts.run, 0), facts.dropped_before)
    found.dropped_rows = sum(latest.values())
    return found


def _visible(directory: Path, found: Inputs) -> Iterator[Path]:
    for path in directory.rglob("*"):
        parts = path.relative_to(directory).parts
        if any(part.startswith((".", "_")) for part in parts):
            found.growing += path.suffix == ".arrows"
        elif BUCKETS in parts:
            raise Unsound(f"{path.parent} is part of a compacted table: name that itself, not a directory above it")
        elif path.suffix == ".parquet" and path.is_file():
            yield path


def spark_paths(files: Iterable[Facts]) -> list[str]:
    """The paths as Spark wants them: absolute, what it would take for a pattern escaped."""
    special = str.maketrans({char: f"\\{char}" for char in "\\{}[]*?"})
    return [f"{facts.path.resolve()}".translate(special) for facts in files]
