"""Every file is checked before Spark sees it: it is taken whole, or put aside with a
reason and counted.

Spark's own choices are to fail on a bad file without naming what to do, or
(`ignoreCorruptFiles`) to drop it silently. An audit can afford neither.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..engine import expect
from ..places import Place, Remote, files_below
from .expected import Missing
from .file import Count, Refused, believe, count_here, counts, footer_of
from .runs import Facts, Run, missing_serials, runs_of, strangers
from .span import ALWAYS, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_FETCHED = 32
"""Footers of another file system that are fetched at once."""


class Table(NamedTuple):
    """A journal that is a table."""

    rows: DataFrame
    """The columns of `file.EVENTS`, and `file.FILE`."""
    files: int
    """How many files it holds, those that were put aside included."""


@dataclass(slots=True)
class Inputs:
    """The outcome of the check of some directories, or of a table."""

    files: list[Facts] = field(default_factory=list)
    quarantined: list[dict[str, str]] = field(default_factory=list)
    """path, reason; in order of path."""
    growing: int = 0
    """Streams that are no Parquet yet: their writer lives, or crashed and nothing has
    started there since.
    """
    runs: list[Run] = field(default_factory=list)
    dropped_rows: int = 0
    """Rows that writers say they dropped."""
    outside: int = 0
    """Files that were left out because no row of theirs lies in the time that is asked
    about; hours left out as a whole are not counted.
    """
    silent: Missing = field(default_factory=list)
    """Expected servers that are missing, or were silent."""
    passed_over: dict[Place, str] = field(default_factory=dict)
    """Files that look like a journal's and were not read: path -> reason."""
    nothing: list[str] = field(default_factory=list)
    """Directories in which no journal was found, of any time."""
    holes: list[dict[str, Any]] = field(default_factory=list)
    """Files that are missing between others of their run, and were not put aside: run,
    writer, server, serials.
    """
    table: Table | None = None
    """Where the rows of the files are; None: in the files themselves."""

    @property
    def rows(self) -> int:
        """How many rows all files have."""
        return sum(facts.rows for facts in self.files)

    @property
    def own_rows(self) -> int:
        """How many of them writers logged of themselves."""
        return sum(facts.own_rows for facts in self.files)

    def lacking(self) -> dict[str, Any]:
        """What the files lack, for a summary. Any entry makes an answer incomplete."""
        return {
            "quarantined": list(self.quarantined),
            "dropped_rows": self.dropped_rows,
            "holes": self.holes,
            "silent_servers": self.silent,
        }


def check(
    directories: Iterable[Place],
    *,
    spark: SparkSession | None = None,
    now_ns: int | None = None,
    span: Span = ALWAYS,
    progress: Callable[[str], None] = lambda _: None,
) -> Inputs:
    """Check every `*.parquet` below *directories* whose name is not hidden.

    Args:
        directories: Searched recursively; a file may be named too.
        spark: Its executors count the rows where they lie; this process reads footers
            alone. None: this process counts them.
        now_ns: Unix time; None: this machine's.
        span: The time that is asked about: what has no row in it is left out.
        progress: Called with what is being done.
    Raises:
        FileNotFoundError: a directory is missing.
        OSError: a file system does not answer.
    Cost: memory: a row group (a million rows) per core where rows are counted here.
    """
    found = Inputs()
    paths: list[tuple[Place, int]] = []
    for directory in directories:
        if not directory.exists():
            raise FileNotFoundError(f"no such directory: {directory}")
        below = sorted(_visible(directory, found, span))
        if not below and not span:
            found.nothing.append(str(directory))
        paths += below
    paths = _once(paths)
    now = time.time_ns() if now_ns is None else now_ns
    progress(f"checking {len(paths)} files")
    remote = any(isinstance(path, Remote) for path, _ in paths)
    footers, refused = _each(footer_of, paths, _FETCHED if remote else None)
    refused |= found.passed_over
    asked = [facts for facts in footers if span.meets(facts.bounds)]
    found.outside = len(footers) - len(asked)
    if spark is not None:
        expect(spark, sum(facts.rows for facts in asked))
        counted = counts(spark, {facts.path: facts.rows for facts in asked}) if asked else {}
        looked = [(facts, counted[facts.path]) for facts in asked]
    else:
        looked, more = _each(count_here, [(facts,) for facts in asked])
        refused |= more
    return believed(found, asked, looked, refused, span, now)


def believed(
    found: Inputs,
    footers: Sequence[Facts],
    looked: Iterable[tuple[Facts, list[Count]]],
    refused: dict[Place, str],
    span: Span,
    now: int,
) -> Inputs:
    """Enter into *found* which of the files are good, and what they make up together.
    Returns it.

    Args:
        footers: Of all files of that time.
        looked: Those whose rows were counted, with the counts.
        refused: Those that were put aside already.
    """
    seen: dict[tuple[int, str, int, int], Facts] = {}
    for facts, rows in looked:
        try:
            believe(facts, rows, now)
        except Refused as wrong:
            refused[facts.path] = str(wrong)
            continue
        first = seen.setdefault(facts.identity, facts)
        if first is not facts:
            refused[facts.path] = f"duplicated: the same file as {first.path}"
    found.files = list(seen.values())
    refused |= strangers(found.files)
    found.files = [facts for facts in found.files if facts.path not in refused]
    found.quarantined = [{"path": str(path), "reason": reason} for path, reason in refused.items()]
    found.quarantined.sort(key=lambda entry: entry["path"])
    found.runs = runs_of(found.files)
    found.holes = _holes(found, [facts for facts in footers if facts.path in refused], span)
    # Of a part of the time: without those that were lost before it.
    found.dropped_rows = sum(
        run.dropped - (run.dropped_earlier if span else 0) for run in found.runs
    )
    return found


def _holes(found: Inputs, aside: Iterable[Facts], span: Span) -> list[dict[str, Any]]:
    """See `Inputs.holes`. With a span, only holes between files of that time count:
    some of the others are not opened.
    """
    runs: dict[tuple[int, str, int], list[Facts]] = {}
    for facts in found.files:
        if span.meets(facts.bounds):
            runs.setdefault((facts.writer, facts.run, facts.first_conn), []).append(facts)
    known = {run: {facts.serial for facts in members} for run, members in runs.items()}
    for facts in (*found.files, *aside):
        known.get((facts.writer, facts.run, facts.first_conn), set()).add(facts.serial)
    holes = []
    for run, members in runs.items():
        wanted = range(
            min(facts.serial for facts in members), max(facts.serial for facts in members)
        )
        if missing := [serial for serial in missing_serials(known[run]) if serial in wanted]:
            holes.append(
                {
                    "run": run[1],
                    "writer": run[0],
                    "server": members[0].server,
                    "serials": missing,
                }
            )
    return holes


def nothing_line(directory: str) -> str:
    """An entry of `Inputs.nothing` in words."""
    return f"{directory} holds no journal: there is no *.parquet below it"


def hole_line(hole: dict[str, Any]) -> str:
    """An entry of `Inputs.holes` in words."""
    serials = hole["serials"]
    shown = ", ".join(map(str, serials[:5])) + (", ..." if len(serials) > 5 else "")
    of = f"run {hole['run']} of writer {hole['writer']}" + (
        f" on {hole['server']}" if hole["server"] else ""
    )
    return f"{len(serials)} file(s) of {of} missing between others of it: number {shown}"


def _each(
    work: Callable[..., T], items: Sequence[tuple[Any, ...]], threads: int | None = None
) -> tuple[list[T], dict[Place, str]]:
    """Do *work* on each of *items*, several at once. Returns what came of them, in
    order, and which were refused and why.
    """
    done: list[T] = []
    refused: dict[Place, str] = {}

    def one(item: tuple[Any, ...]) -> T | Refused:
        try:
            return work(*item)
        except Refused as reason:
            return reason

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for item, outcome in zip(items, pool.map(one, items), strict=True):
            if isinstance(outcome, Refused):
                refused[item[0].path if isinstance(item[0], Facts) else item[0]] = str(outcome)
            else:
                done.append(outcome)
    return done, refused


def _once(paths: Iterable[tuple[Place, int]]) -> list[tuple[Place, int]]:
    """*paths* without repetitions: by the same name, or by a link to the same file."""
    known: dict[Place | str, tuple[Place, int]] = {}
    for path, size in paths:
        known.setdefault(path if isinstance(path, Remote) else os.path.realpath(path), (path, size))
    return list(known.values())


def _visible(directory: Place, found: Inputs, span: Span) -> Iterator[tuple[Place, int]]:
    for path, parts, size in files_below(directory):
        if any(part.startswith((".", "_")) for part in parts):
            found.growing += path.name.endswith(".arrows")
        elif not parts or (path.name.endswith(".parquet") and span.below(parts[:-1])):
            if isinstance(path, Remote) or os.path.isfile(path):
                yield path, size
            else:
                found.passed_over[path] = "it is no regular file"
        elif not path.name.endswith(".parquet") and path.name.lower().endswith(".parquet"):
            found.passed_over[path] = "its name does not end in .parquet, in lower case"
