"""What has entered the feed, in SQLite: one transaction per step, which writes what the step changed and nothing else.

One rule: *memory is what the last commit says, or ahead of it by one step*. A kill at any instant leaves the step whole
or not begun. The caller holds the lock on the directory. The database is open for as long as a step is written, so that
it is one file at rest, and nothing of it is in the way of the next process.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

NAME = "ledger.sqlite"
VERSION = 2
PATIENCE_S = 60.0
"""How long a step waits for a reader who looks at the ledger."""

_TABLE = "CREATE TABLE noted (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, value TEXT) STRICT"
# Keys are numbers in order of arrival: what a step adds lies on few pages. By path each server would have its own.


class Unusable(ValueError):
    """The ledger cannot be gone on from. The message is one line."""


class Table(dict[str, dict[str, Any]]):
    """Rows of one kind by their name, of what JSON knows. `note` marks one as changed; reading is a dictionary's."""

    def __init__(self, **new: Any) -> None:
        super().__init__()
        self._new = new
        self.ids: dict[str, int] = {}
        self.changed: set[str] = set()
        self.gone: list[int] = []

    def note(self, name: str, **values: Any) -> dict[str, Any]:
        """Set *values* of the row *name*, which is made if missing; returns it."""
        row = self.setdefault(name, {**self._new})
        row.update(values)
        self.changed.add(name)
        return row

    def forget(self, name: str) -> None:
        """Delete the row *name*."""
        del self[name]
        self.changed.discard(name)
        if (number := self.ids.pop(name, None)) is not None:
            self.gone.append(number)


class Ledger:
    """The ledger in *out*; made if missing. Instants are Unix time in us.

    Args:
        settings: Of this output, for good.
    Raises:
        Unusable: it was begun with other settings, is damaged, or of another release. Nothing was changed.
    """

    def __init__(self, out: Path, settings: dict[str, int]) -> None:
        self.step: int = 0
        self.newest: int | None = None
        """Of all rows."""
        self.horizon: int | None = None
        """What the watermark follows: `newest`, or the marker's instant."""
        self.longest_ms: int = 0
        """Longest timeout in force on any row."""
        self.tick_ns: int = 0
        """Longest of the ticks."""
        self.files: Table = Table()
        """path -> size, mtime in ns: not to be opened again. Those that are gone are forgotten."""
        self.runs: Table = Table(serials=[], dropped=0)
        """run -> serials: ranges, both ends inclusive, of its files that were read; dropped: rows its writer lost."""
        self.servers: Table = Table(files=0, rows=0, late=0, newest=0)
        """directory -> files, rows, late, newest."""
        self.late: Table = Table(rows=0)
        """listener -> rows that came later than the delay allows."""
        self.names: Table = Table(newest=0)
        """name of a server, as its files have it -> newest, Unix ns: of its own rows too."""
        self._state: Table = Table()
        self._settings = settings
        self._next = 1
        self._path = out / NAME
        try:
            with self._transaction() as database:
                self._open(database)
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            if isinstance(error, Unusable):
                raise
            raise Unusable(f"{self._path} is no ledger to go on from ({error}): name another --out") from None

    @property
    def rows(self) -> int:
        """Rows of connections that were read, the late ones included."""
        return sum(server["rows"] for server in self.servers.values())

    @property
    def missing_files(self) -> int:
        """Files that were gone before they were read, or have yet to come: holes among the serials of a run."""
        return sum(after[0] - before[1] - 1 for run in self.runs.values() for before, after in pairwise(run["serials"]))

    @property
    def dropped_rows(self) -> int:
        """Rows that the writers say they dropped."""
        return sum(int(run["dropped"]) for run in self.runs.values())

    def commit(self) -> None:
        """Write what has changed: all of it is on the disk when this returns, or nothing."""
        with self._transaction() as database:
            self._save(database)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self._path, timeout=PATIENCE_S, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
        finally:
            database.close()  # and with it what was not committed

    def _kinds(self) -> dict[str, Table]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Table)}

    def _save(self, database: sqlite3.Connection) -> None:
        state = {name: getattr(self, name) for name in ("step", "newest", "horizon", "longest_ms", "tick_ns")}
        self._state.note("state", settings=self._settings, **state)
        for kind, table in self._kinds().items():
            database.executemany("DELETE FROM noted WHERE id = ?", ((number,) for number in table.gone))
            for name in sorted(table.changed):
                if name not in table.ids:
                    table.ids[name], self._next = self._next, self._next + 1
                values = (table.ids[name], kind, name, json.dumps(table[name]))
                database.execute("INSERT OR REPLACE INTO noted VALUES (?, ?, ?, ?)", values)
            table.gone.clear()
            table.changed.clear()

    def _open(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:  # new, or killed before its first commit
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version = {VERSION}")
            self._save(database)
            return
        if version != VERSION:
            raise Unusable(f"{self._path} is of version {version}, this release reads {VERSION}: name another --out")
        tables = self._kinds()
        for number, kind, name, value in database.execute("SELECT * FROM noted"):
            tables[kind][name], tables[kind].ids[name] = json.loads(value), number
            self._next = max(self._next, number + 1)
        state = dict(self._state["state"])
        for setting, begun in state.pop("settings").items():
            if (now := self._settings.get(setting)) != begun:
                raise Unusable(
                    f"{setting} is {now}, but this output was begun with {begun}: give the same again, or another --out"
                )
        for attribute, value in state.items():
            setattr(self, attribute, value)
