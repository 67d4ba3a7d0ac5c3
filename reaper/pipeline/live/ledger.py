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
VERSION = 1
PATIENCE_S = 60.0
"""How long a step waits for a reader who looks at the ledger."""

_TABLES = """
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), settings TEXT, step INTEGER, newest INTEGER,
                    horizon INTEGER, longest_ms INTEGER, tick_ns INTEGER) STRICT;
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT, size INTEGER, mtime INTEGER) STRICT;
CREATE TABLE runs (id INTEGER PRIMARY KEY, run TEXT, serials TEXT, dropped INTEGER) STRICT;
CREATE TABLE servers (id INTEGER PRIMARY KEY, directory TEXT, files INTEGER, rows INTEGER, late INTEGER, newest INTEGER)
    STRICT;
CREATE TABLE late (id INTEGER PRIMARY KEY, listener TEXT, rows INTEGER) STRICT;
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT, newest INTEGER) STRICT;
"""
# Keys are numbers in order of arrival: what a step adds lies on few pages. By path each server would have its own.


class Unusable(ValueError):
    """The ledger cannot be gone on from. The message is one line."""


class Table(dict[str, dict[str, Any]]):
    """Rows of one table by their name. `note` marks a row as changed; reading is a dictionary's."""

    def __init__(self, table: str, key: str, columns: tuple[str, ...]) -> None:
        super().__init__()
        self._key = key
        self._columns = columns
        self._ids: dict[str, int] = {}
        self._next = 1
        self._changed: set[str] = set()
        self._gone: list[int] = []
        marks = ", ".join("?" * (len(columns) + 2))
        self._put = f"INSERT OR REPLACE INTO {table} VALUES ({marks})"
        self._drop = f"DELETE FROM {table} WHERE id = ?"
        self._all = f"SELECT * FROM {table}"

    def note(self, name: str, **values: Any) -> dict[str, Any]:
        """Set *values* of the row *name*, which is made if missing; returns it."""
        row = self.setdefault(name, dict.fromkeys(self._columns, 0))
        row.update(values)
        self._changed.add(name)
        return row

    def forget(self, name: str) -> None:
        """Delete the row *name*."""
        del self[name]
        self._changed.discard(name)
        if (number := self._ids.pop(name, None)) is not None:
            self._gone.append(number)

    def load(self, database: sqlite3.Connection) -> None:
        """Read every row."""
        for number, name, *values in database.execute(self._all):
            self[name] = {
                column: json.loads(value) if column == "serials" else value
                for column, value in zip(self._columns, values, strict=True)
            }
            self._ids[name] = number
        self._next = max(self._ids.values(), default=0) + 1

    def save(self, database: sqlite3.Connection) -> None:
        """Write what has changed since the last time."""
        database.executemany(self._drop, ((number,) for number in self._gone))
        database.executemany(self._put, self._rows())
        self._changed.clear()
        self._gone.clear()

    def _rows(self) -> Iterator[list[Any]]:
        for name in sorted(self._changed):
            if name not in self._ids:
                self._ids[name], self._next = self._next, self._next + 1
            values = (self[name][column] for column in self._columns)
            yield [self._ids[name], name, *(json.dumps(v) if isinstance(v, list) else v for v in values)]


class Ledger:
    """The ledger in *out*; made if missing. Instants are Unix time in us.

    Args:
        settings: Of this output, for good.
    Raises:
        Unusable: it was begun with other settings, is damaged, or of a later release. Nothing was changed.
    """

    def __init__(self, out: Path, settings: dict[str, int]) -> None:
        self.settings = settings
        self.step: int = 0
        self.newest: int | None = None
        """Of all rows."""
        self.horizon: int | None = None
        """What the watermark follows: `newest`, or the marker's instant."""
        self.longest_ms: int = 0
        """Longest timeout in force on any row."""
        self.tick_ns: int = 0
        """Longest of the ticks."""
        self.files: Table = Table("files", "path", ("size", "mtime"))
        """path -> size, mtime in ns: not to be opened again. Those that are gone are forgotten."""
        self.runs: Table = Table("runs", "run", ("serials", "dropped"))
        """run -> serials: ranges, both ends inclusive, of its files that were read; dropped: rows its writer lost."""
        self.servers: Table = Table("servers", "directory", ("files", "rows", "late", "newest"))
        """directory -> files, rows, late, newest."""
        self.late: Table = Table("late", "listener", ("rows",))
        """listener -> rows that came later than the delay allows."""
        self.names: Table = Table("names", "name", ("newest",))
        """name of a server, as its files have it -> newest, Unix ns: of its own rows too."""
        self._tables = (self.files, self.runs, self.servers, self.late, self.names)
        self._path = out / NAME
        try:
            with self._transaction() as database:
                self._open(database)
        except sqlite3.Error as error:
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

    def _save(self, database: sqlite3.Connection) -> None:
        state = (json.dumps(self.settings), self.step, self.newest, self.horizon, self.longest_ms, self.tick_ns)
        database.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?, ?)", state)
        for table in self._tables:
            table.save(database)

    def _open(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:  # new, or killed before its first commit
            for statement in filter(str.strip, _TABLES.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {VERSION}")
            self._save(database)
        elif version == VERSION:
            self._load(database)
        else:
            raise Unusable(f"{self._path} is of version {version}, this release reads {VERSION}: name another --out")

    def _load(self, database: sqlite3.Connection) -> None:
        row = database.execute("SELECT * FROM state").fetchone()
        _, settings, self.step, self.newest, self.horizon, self.longest_ms, self.tick_ns = row
        self._agree(json.loads(settings))
        for table in self._tables:
            table.load(database)

    def _agree(self, begun: dict[str, int]) -> None:
        for name, value in self.settings.items():
            if begun.get(name) != value:
                raise Unusable(
                    f"{name} is {value}, but this output was begun with {begun.get(name)}: give the same again, or "
                    "another --out"
                )
