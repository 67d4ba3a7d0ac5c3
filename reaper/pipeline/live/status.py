"""What the page and the summary say, counted from the tables as they lie there: nothing that a restart could forget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..read.expected import as_list, line
from .feed import Feed
from .tables import IDLE

SCHEMA = "reaper-live/2"
SHOWN = 180
"""Windows that the page draws."""

LISTED = 20
"""Files put aside that a summary names; all are counted."""

COUNTS = ("opened", "reaped", "closed", "averted", "overdue")


@dataclass(slots=True)
class Figures:
    """The tables in *out*, added up. A file that did not change is not read again."""

    out: Path
    window_us: int
    _cache: dict[Path, tuple[tuple[int, int], Any]] = field(default_factory=dict)

    def windows(self) -> list[dict[str, Any]]:
        """Rows of the newest `SHOWN` windows by start, then listener; `start` in Unix us."""
        rows: list[dict[str, Any]] = []
        for path in sorted((self.out / "windows").glob("[0-9]*.parquet"), reverse=True):
            rows = self._read(path, _day)[0] + rows
            if len({row["start"] for row in rows}) >= SHOWN:
                break
        starts = sorted({row["start"] for row in rows})[-SHOWN:]
        return [row for row in rows if starts and row["start"] >= starts[0]]

    def totals(self) -> dict[str, Counter[str]]:
        """listener -> `COUNTS` over all windows, and `windows`."""
        totals: dict[str, Counter[str]] = {}
        for path in (self.out / "windows").glob("[0-9]*.parquet"):
            for listener, counts in self._read(path, _day)[1].items():
                totals.setdefault(listener, Counter()).update(counts)
        return totals

    def sessions(self) -> Counter[tuple[str, str, bool, bool, int]]:
        """(listener, outcome, certain, takes_back, window of idle_from or 0) -> sessions. Windows by start, Unix us."""
        total: Counter[tuple[str, str, bool, bool, int]] = Counter()
        for path in (self.out / "idle").glob("[0-9]*.parquet"):
            total.update(self._read(path, self._part))
        return total

    def _part(self, path: Path) -> Counter[tuple[str, str, bool, bool, int]]:
        keys = ["listener", "outcome", "certain", "takes_back"]
        table = pq.ParquetFile(path).read(columns=[*keys, "idle_from"])
        micros = pc.fill_null(table["idle_from"].cast(pa.int64()), 0)
        window = pc.multiply(pc.divide(micros, self.window_us), self.window_us)
        grouped = table.append_column("window", window).group_by([*keys, "window"]).aggregate([([], "count_all")])
        return Counter(
            {
                (row["listener"] or "(none)", row["outcome"], row["certain"], row["takes_back"], row["window"]): row[
                    "count_all"
                ]
                for row in grouped.to_pylist()
            }
        )

    def _read(self, path: Path, read: Callable[[Path], Any]) -> Any:
        stamp = path.stat()
        key = (stamp.st_mtime_ns, stamp.st_ino)
        if path not in self._cache or self._cache[path][0] != key:
            self._cache[path] = (key, read(path))
        return self._cache[path][1]


def _day(path: Path) -> tuple[list[dict[str, Any]], dict[str, Counter[str]]]:
    table = pq.ParquetFile(path).read()
    rows = table.set_column(0, "start", table["start"].cast(pa.int64())).drop_columns(["end"]).to_pylist()
    totals: dict[str, Counter[str]] = {}
    for row in rows:
        row["listener"] = row["listener"] or "(none)"
        counts = totals.setdefault(row["listener"], Counter())
        counts["windows"] += 1
        for name in COUNTS:
            counts[name] += row[name]
    return rows, totals


def status(
    feed: Feed,
    figures: Figures,
    window_ns: int,
    now_ns: Callable[[], int] = time.time_ns,
    silent: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The summary: what was read, what was kept apart, what came of it.

    `complete` is false where rows are missing from the tables: they came too late, their file was put aside or gone,
    their writer dropped them, or an expected server is *silent* (name -> why). Instants are Unix seconds, null before
    the first row. Windows that end at or before `final_until` do not change any more; sessions are written once they
    cannot change.
    """
    ledger = feed.ledger
    totals, sessions = figures.totals(), figures.sessions()
    late = sum(row["rows"] for row in ledger.late.values())
    listeners: dict[str, dict[str, int]] = {}
    for name, counts in sorted(totals.items()):
        ended = counts["reaped"] + counts["closed"]
        listeners[name] = {**{key: counts[key] for key in COUNTS}, "open": counts["opened"] - ended}
    for name in sorted({key[0] for key in sessions} | set(ledger.late)):
        listeners.setdefault(name, {**dict.fromkeys(COUNTS, 0), "open": 0})
    for name, entry in listeners.items():
        gone = {key: n for key, n in sessions.items() if key[0] == name and key[1] == IDLE}
        entry["idle"] = sum(gone.values())
        entry["idle_uncertain"] = sum(n for key, n in gone.items() if not key[2])
        entry["taken_back"] = sum(n for key, n in sessions.items() if key[0] == name and key[3])
        entry["late"] = ledger.late.get(name, {"rows": 0})["rows"]
    aside = [{"path": path, "reason": entry["reason"]} for path, entry in sorted(feed.quarantined.items())]
    watermark = feed.watermark
    return {
        "schema": SCHEMA,
        "as_of": now_ns() / 1e9,
        "complete": not (late or aside or ledger.missing_files or ledger.dropped_rows or silent),
        "rows": ledger.rows,
        "steps": ledger.step,
        "windows": sum(counts["windows"] for counts in totals.values()),
        "sessions": sum(sessions.values()),
        "idle_connections": sum(entry["idle"] for entry in listeners.values()),
        "late_rows": late,
        "quarantined_files": len(aside),
        "quarantined": aside[:LISTED],
        "missing_files": ledger.missing_files,
        "dropped_rows": ledger.dropped_rows,
        "silent_servers": as_list(silent),
        "growing": feed.growing,
        "waiting_files": feed.waiting,
        "drained": ledger.horizon != ledger.newest,
        "newest": None if ledger.newest is None else ledger.newest / 1e6,
        "final_until": None if watermark is None else min(watermark, ledger.newest or watermark) / 1e6,
        "window_s": window_ns / 1e9,
        "tick_s": ledger.tick_ns / 1e9,
        "listeners": listeners,
        "servers": {
            name: {**server, "newest": server["newest"] / 1e6 or None}
            for name, server in sorted(ledger.servers.items())
        },
    }


def as_text(summary: dict[str, Any]) -> str:
    """The summary in a few lines."""
    sessions = f"{summary['sessions']:,} sessions, {summary['idle_connections']:,} of them ended by silence alone"
    lines = [
        f"{summary['new_rows']:,} new rows, {summary['rows']:,} in all; {summary['windows']:,} windows, {sessions}",
    ]
    for key, text in (
        ("late_rows", "rows came later than --delay allows and are kept apart in late/"),
        ("missing_files", "files were gone before they were read, or have yet to come"),
        ("dropped_rows", "rows were dropped by their writers"),
        ("dropped_by_watermark", "rows were dropped by Spark"),
    ):
        if summary[key]:
            lines.append(f"{summary[key]:,} {text}")
    lines += [f"put aside: {entry['path']}: {entry['reason']}" for entry in summary["quarantined"]]
    lines += map(line, summary["silent_servers"])
    if summary["growing"]:
        lines.append(f"{summary['growing']} stream(s) are no Parquet yet: their rows come when the writer rotates")
    return "\n".join(lines)
