"""What has entered the feed: one JSON file, put in place whole by each step. The caller
has locked the directory.

One rule: *memory is what the last commit says, or ahead of it by one step*. A kill at
any instant leaves the step whole or not begun. Files are known by their run and number,
so that it does not grow with their count.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from ..arguments import Fault
from ..places import sync, write_text

NAME = "ledger.json"
VERSION = 4
"""Until 3 a run was a number in the tables, and in the state that Spark keeps."""


@dataclass(slots=True)
class RunRead:
    """What was read of one run."""

    serials: list[list[int]] = field(default_factory=list)
    """Ranges, both ends inclusive, of the numbers of its files."""
    dropped: int = 0
    """Rows that its writer says it dropped."""


@dataclass(slots=True)
class ServerRead:
    """What was read of one directory."""

    files: int = 0
    rows: int = 0
    late: int = 0
    newest: int = 0


@dataclass
class Ledger:
    """The ledger of one output. Instants are Unix time in us unless they say
    otherwise.
    """

    settings: dict[str, int]
    """The settings of this output, which never change."""
    version: int = VERSION
    step: int = 0
    newest: int | None = None
    """The latest instant of all rows."""
    horizon: int | None = None
    """What the watermark follows: `newest`, or the marker's instant."""
    longest_ms: int = 0
    """Longest timeout in force on any row."""
    tick_ns: int = 0
    """Longest of the ticks."""
    runs: dict[str, RunRead] = field(default_factory=dict)
    servers: dict[str, ServerRead] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    """listener -> rows that came later than the delay allows."""
    names: dict[str, int] = field(default_factory=dict)
    """name of a server, as its files have it -> newest, Unix ns: of its own rows
    too.
    """

    @property
    def rows(self) -> int:
        """How many rows of connections were read, the late ones included."""
        return sum(server.rows for server in self.servers.values())

    @property
    def missing_files(self) -> int:
        """How many files were gone before they were read, or have yet to come: holes
        among the serials of a run.
        """
        return sum(
            after[0] - before[1] - 1
            for run in self.runs.values()
            for before, after in pairwise(run.serials)
        )

    @property
    def dropped_rows(self) -> int:
        """How many rows the writers say they dropped."""
        return sum(run.dropped for run in self.runs.values())

    def has(self, run: str, serial: int) -> bool:
        """Whether the file *serial* of *run* was read."""
        return run in self.runs and any(
            first <= serial <= last for first, last in self.runs[run].serials
        )

    def note(self, run: str, serial: int, dropped: int) -> None:
        """Note that file *serial* of *run* was read now, and not before; by then its
        writer had *dropped* rows.
        """
        read = self.runs.setdefault(run, RunRead())
        read.dropped = max(read.dropped, dropped)
        merged: list[list[int]] = []
        for first, last in sorted([*read.serials, [serial, serial]]):
            if merged and first == merged[-1][1] + 1:
                merged[-1][1] = last
            else:
                merged.append([first, last])
        read.serials = merged

    def commit(self, out: Path) -> None:
        """Put the ledger in place below *out*. When this returns all of it is on the
        disk, or nothing.
        """
        write_text(out / NAME, json.dumps(asdict(self)))
        sync(out)


def open_ledger(out: Path, settings: dict[str, int]) -> Ledger:
    """The ledger in *out*, or a new one if there is none.

    Raises:
        Fault: it was begun with other *settings*, is damaged, or of another release.
            Nothing was changed.
    """
    path = out / NAME
    if not path.exists():
        if any(out.glob("checkpoint/*/commits/[0-9]*")):
            raise Fault(
                f"{out} has been streamed into, but its ledger is not there: name another --out"
            )
        return Ledger(settings)
    try:
        found = json.loads(path.read_bytes())
        if found["version"] != VERSION:
            raise ValueError(f"it is of version {found['version']}, this release reads {VERSION}")
        runs = {name: RunRead(**run) for name, run in found.pop("runs").items()}
        servers = {name: ServerRead(**server) for name, server in found.pop("servers").items()}
        ledger = Ledger(**found, runs=runs, servers=servers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Fault(f"{path} is no ledger to go on from ({error}): name another --out") from None
    for setting, begun in ledger.settings.items():
        if (now := settings.get(setting)) != begun:
            raise Fault(
                f"{setting} is {now}, but this output was begun with {begun}: give the same again, "
                "or another --out"
            )
    return ledger
