"""What the page and the summary say, counted from the tables as they lie there: nothing
that a restart could forget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb

from ...errors import printable
from ...journal.schema import UNNAMED
from ..read.expected import line
from .feed import COUNTS, Feed

SCHEMA = "reaper-live/3"
SHOWN = 180
"""Windows that the page draws."""

LISTED = 20
"""Files put aside that a summary names; all are counted."""

_LISTENER = f"coalesce(listener, '{UNNAMED}') AS listener"
_SUMS = ", ".join(f"sum({name})::BIGINT AS {name}" for name in COUNTS)
_TOTALS = f"SELECT {_LISTENER}, count(*) AS windows, {_SUMS} FROM found GROUP BY ALL ORDER BY ALL"
_SESSIONS = f"""
SELECT {_LISTENER}, count(*) AS sessions, count(*) FILTER (WHERE outcome = 'idle') AS idle,
  count(*) FILTER (WHERE outcome = 'idle' AND NOT certain) AS idle_uncertain
FROM found GROUP BY ALL ORDER BY ALL"""
_WINDOWS = f"""
SELECT epoch_us(start) AS start, {_LISTENER}, {", ".join(COUNTS)}, max_lateness_ns FROM found
WHERE start > (SELECT max(start) FROM found) - to_microseconds({{span_us}}) ORDER BY ALL"""
_SILENT = f"""
SELECT epoch_us(idle_from) // {{window_us}} * {{window_us}} AS start, {_LISTENER}, count(*) AS idle
FROM found WHERE idle_from IS NOT NULL GROUP BY ALL ORDER BY ALL"""


def _asked(directory: Path, question: str) -> list[dict[str, Any]]:
    """Answer *question*, SQL of `found`: the rows of the files in *directory*."""
    files = [str(path) for path in directory.glob("[0-9]*.parquet")]
    if not files:
        return []
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.read_parquet(files, hive_partitioning=False).create_view("found")
        return list(connection.sql(question).to_arrow_table().to_pylist())


def windows(out: Path, window_us: int) -> list[dict[str, Any]]:
    """The rows of the newest `SHOWN` windows by start, then listener; `start` in Unix
    us.
    """
    return _asked(out / "windows", _WINDOWS.format(span_us=SHOWN * window_us))


def gone_silent(out: Path, window_us: int) -> list[dict[str, Any]]:
    """Idle sessions per listener and the window (`start`, Unix us) in which their
    timeout had passed.
    """
    return _asked(out / "idle", _SILENT.format(window_us=window_us))


def status(
    feed: Feed,
    out: Path,
    window_ns: int,
    now_ns: Callable[[], int] = time.time_ns,
    silent: Sequence[dict[str, str]] = (),
) -> dict[str, Any]:
    """The summary: what was read, what was kept apart, what came of it.

    `complete` is false where rows are missing from the tables: they came too late,
    their file was put aside or gone, their writer dropped them, or an expected server
    is *silent*. Instants are Unix seconds, null before the first row. Windows that end
    at or before `final_until` no longer change; sessions are written once they cannot.
    """
    ledger = feed.ledger
    totals = {row.pop("listener"): row for row in _asked(out / "windows", _TOTALS)}
    sessions = {row.pop("listener"): row for row in _asked(out / "idle", _SESSIONS)}
    late = sum(ledger.late.values())
    listeners: dict[str, dict[str, int]] = {}
    for name in sorted({*totals, *sessions, *ledger.late}):
        counts, ended = totals.get(name, {}), sessions.get(name, {})
        entry = listeners[name] = {key: counts.get(key, 0) for key in COUNTS}
        entry["open"] = entry["opened"] - entry["reaped"] - entry["closed"]
        entry |= {key: ended.get(key, 0) for key in ("idle", "idle_uncertain")}
        entry["late"] = ledger.late.get(name, 0)
    aside = [{"path": path, "reason": reason} for path, reason in sorted(feed.quarantined.items())]
    watermark = feed.watermark
    return {
        "schema": SCHEMA,
        "as_of": now_ns() / 1e9,
        "complete": not (late or aside or ledger.missing_files or ledger.dropped_rows or silent),
        "rows": ledger.rows,
        "steps": ledger.step,
        "windows": sum(row["windows"] for row in totals.values()),
        "sessions": sum(row["sessions"] for row in sessions.values()),
        "idle_connections": sum(row["idle"] for row in sessions.values()),
        "late_rows": late,
        "quarantined_files": len(aside),
        "quarantined": aside[:LISTED],
        "missing_files": ledger.missing_files,
        "dropped_rows": ledger.dropped_rows,
        "silent_servers": list(silent),
        "growing": feed.growing,
        "waiting_files": feed.waiting,
        "drained": ledger.horizon != ledger.newest,
        "newest": None if ledger.newest is None else ledger.newest / 1e6,
        "final_until": None
        if watermark is None
        else min(watermark, ledger.newest or watermark) / 1e6,
        "window_s": window_ns / 1e9,
        "tick_s": ledger.tick_ns / 1e9,
        "listeners": listeners,
        "servers": {
            name: {**asdict(server), "newest": server.newest / 1e6 or None}
            for name, server in sorted(ledger.servers.items())
        },
    }


def reasons(summary: dict[str, Any]) -> list[str]:
    """Why the summary is not `complete`, in words."""
    found = [
        f"{summary[key]:,} {text}"
        for key, text in (
            ("late_rows", "row(s) came later than --delay allows and are in no table"),
            ("missing_files", "file(s) were gone before they were read, or have yet to come"),
            ("dropped_rows", "row(s) were dropped by their writers"),
            ("quarantined_files", "file(s) are put aside; each is looked at again when it changes"),
        )
        if summary[key]
    ]
    return found + [line(entry) for entry in summary["silent_servers"]]


def as_text(summary: dict[str, Any]) -> str:
    """The summary as a few lines to read."""
    sessions = (
        f"{summary['sessions']:,} sessions, {summary['idle_connections']:,} of them ended by "
        "silence alone"
    )
    lines = [
        (
            f"{summary['new_rows']:,} new rows, {summary['rows']:,} in all; {summary['windows']:,} "
            f"windows, {sessions}"
        )
    ]
    if dropped := summary["dropped_by_watermark"]:
        lines.append(f"{dropped:,} rows were dropped by Spark")
    if summary["growing"]:
        lines.append(
            f"{summary['growing']:,} stream(s) are no Parquet yet: their rows come when the writer "
            "rotates"
        )
    lines += reasons(summary)
    lines += [f"put aside: {entry['path']}: {entry['reason']}" for entry in summary["quarantined"]]
    return "\n".join(map(printable, lines))
