"""What a run of a test suite said, and how two runs differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MISSING = "not run"


class Unfinished(ValueError):
    """The run did not come to its end, so what is missing in its report says
    nothing.
    """


def outcomes(lines: Iterable[str]) -> dict[str, str]:
    """The outcome of each test, by its name, from the lines that pytest-reportlog
    wrote.

    A test has failed if any of its set-up, its body and what cleans up after it failed.
    A file that could not be read as tests is a failed test of its own name.

    Raises:
        Unfinished: *lines* have no end of the session, or a line is cut.
    """
    found: dict[str, str] = {}
    ended = False
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise Unfinished(f"a line of its report is cut: {line[:40]!r}") from error
        kind = row.get("$report_type")
        if kind == "SessionFinish":
            ended = True
        elif kind == "TestReport":
            name, outcome = row["nodeid"], row["outcome"]
            if found.get(name) != FAILED and (outcome != PASSED or name not in found):
                found[name] = outcome
        elif kind == "CollectReport" and row["outcome"] == FAILED:
            found[row["nodeid"]] = FAILED
    if not ended:
        raise Unfinished("its report has no end")
    return found


def differing(stock: Mapping[str, str], guarded: Mapping[str, str]) -> list[str]:
    """The names of the tests whose outcome in the two runs is not the same, in order of
    name.
    """
    names = sorted({*stock, *guarded})
    return [name for name in names if stock.get(name, MISSING) != guarded.get(name, MISSING)]


def covers(entry: str, name: str) -> bool:
    """Whether *entry* of the list means the test *name*: itself, or with any
    parameters.
    """
    return name == entry or name.startswith(f"{entry}[")


@dataclass(frozen=True)
class Comparison:
    """What two runs of one suite say together.

    Attributes:
        stock, guarded: The outcome of each test, by its name.
        again: The names that differed once more when they were run again alone; None:
            they were not run again, and all that differ count.
        listed: The entries of `differences.toml`.
    """

    stock: Mapping[str, str]
    guarded: Mapping[str, str]
    listed: Sequence[str]
    again: frozenset[str] | None = None

    @property
    def differences(self) -> list[str]:
        """The tests that differ, each time they were run."""
        found = differing(self.stock, self.guarded)
        return [name for name in found if self.again is None or name in self.again]

    @property
    def once(self) -> list[str]:
        """The tests that differed the first time and not the second."""
        seen = set(self.differences)
        return [name for name in differing(self.stock, self.guarded) if name not in seen]

    @property
    def unlisted(self) -> list[str]:
        """The differences that no entry of the list means: those of the guard."""
        return [
            name
            for name in self.differences
            if not any(covers(entry, name) for entry in self.listed)
        ]

    @property
    def unseen(self) -> list[str]:
        """The entries of the list that no difference is meant by."""
        seen = differing(self.stock, self.guarded)
        return [entry for entry in self.listed if not any(covers(entry, name) for name in seen)]

    def row(self, server: str, leases: int | None) -> str:
        """The row of the table.

        Args:
            server: Its name and version.
            leases: How many the guard has taken in the processes of the guarded run; 0:
                it did nothing; None: they are not counted.
        """
        cells = [server]
        for run in (self.stock, self.guarded):
            count = Counter(run.values())
            cells.append(f"{count[PASSED]:,} / {count[FAILED]:,}")
        differ, other = len(self.differences), len(self.unlisted)
        cells.append("not counted" if leases is None else f"{leases:,}")
        cells += [f"{differ:,}", f"{other:,}", f"{len(self.once):,}"]
        return f"| {' | '.join(cells)} |"


HEAD = """\
| server | stock: passed / failed | guarded: passed / failed | leases taken | tests that differ \
| of them not listed | differed only once |
|---|---|---|---|---|---|---|"""
"""The head of the table."""
