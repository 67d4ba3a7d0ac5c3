"""What got dearer since the last release: the head of docs/performance.md says it, with
the reason.

A figure is dearer if its whole spread lies above that of the last release; a count or a
size, which has no spread, if it grew by more than its `noise`. Only ratios and counts
are compared: times of two days are times of two machines. Figures of small runs are not
compared.

    python -m benchmarks release    keep benchmarks/results for the next release
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import reaper

from .common import figure, markdown, ratios

LAST = Path(__file__).parent / "last_release.json"

SAME = (
    "no statement of this code has changed since 0.3.0 (its syntax tree without docstrings is "
    "the same), nor have the instructions of a touch: the machine differs, most of all its memory"
)
FEWER = (
    "by callgrind it takes fewer instructions than in 0.3.0: the machine differs, most of all its "
    "memory"
)
REASONS: dict[str, str] = {
    "A timer, 1M: 1% due, each, x a heap": FEWER,
    "A timer, 1M: cancel, x a heap": FEWER,
    "A timer, 1M: reschedule, x a heap": FEWER,
    "A timer, 1M: schedule, x a heap": FEWER,
    "A touch, 100k open, x an empty call": SAME,
    "A touch, 1M open, x an empty call": SAME,
    "The journal, a touch in `gaps` mode, 100k, x without": SAME,
    "The journal, bytes a row": (
        "a reap is due no earlier than its connection was opened, or got its timeout. This benchmark "
        "names one due instant for all, before most of them were opened, so each row has another one "
        "now: 0.41 bytes of a row are that column, which took 0.01"
    ),
}
"""Of each figure that got dearer, by its name below: why it may. What is missing here
is shown as not explained, and `python -m benchmarks document` fails.
"""


class Compared(NamedTuple):
    """A figure that is compared from release to release."""

    part: str
    """Of which program's results it is."""
    found: Callable[[dict[str, Any]], Any]
    """What those say: a spread, or a number."""
    noise: float = 0.0
    """The share by which a number without a spread differs from run to run."""


def _at(*path: str) -> Callable[[dict[str, Any]], Any]:
    def found(part: dict[str, Any]) -> Any:
        for name in path:
            part = part[name]
        return part

    return found


def _of_plain(kind: str) -> Callable[[dict[str, Any]], Any]:
    """Instructions of an exchange of this *kind*, of those without a timeout in the
    same run.
    """

    def found(part: dict[str, Any]) -> Any:
        each = part["results"]
        return each[kind]["instructions"] / each["plain"]["instructions"]

    return found


def _audit_of_ten_million(engine: str) -> Callable[[dict[str, Any]], Any]:
    """Seconds of the audit, of those of DuckDB in the same round."""

    def found(part: dict[str, Any]) -> Any:
        engines = part["sizes"]["10000000"]
        ours, theirs = (engines[name]["audit"]["samples"] for name in (engine, "duckdb"))
        return ratios(ours, theirs)

    return found


FIGURES: dict[str, Compared] = {
    **{
        f"A touch, {size} open, x an empty call": Compared(
            "touch", _at("results", "lease.touch()", number, "to_empty")
        )
        for number, size in (("1000", "1k"), ("100000", "100k"), ("1000000", "1M"))
    },
    **{
        f"{name}, instructions": Compared("instructions", _at("instructions", key), 0.005)
        for key, name in (
            ("lease.touch()", "A touch"),
            ("core.touch(uid)", "A touch by uid"),
            ("ring.touch(uid)", "A touch of the ring"),
            ("register and release", "To register and release"),
            ("idle tick large", "A tick, nothing due"),
        )
    },
    **{
        f"A touch, {size} open, x Netty's wheel": Compared(
            "jvm", _at("ratios", "netty-wheel-lazy", number)
        )
        for number, size in (("100000", "100k"), ("1000000", "1M"))
    },
    **{
        f"A timer, 1M: {what}, x a heap": Compared(
            "timers", _at("timers", "1000000", "wheel/heap", what)
        )
        for what in ("schedule", "reschedule", "cancel", "1% due, each", "all due, each")
    },
    "A connection, bytes": Compared(
        "memory", _at("results", "lease.touch()", "100000", "bytes_fresh"), 0.02
    ),
    "The journal, a touch in `gaps` mode, 100k, x without": Compared(
        "journal", _at("touch_ns", "100000", "ratio")
    ),
    "The journal, bytes a row": Compared("journal", _at("parquet_bytes_per_row"), 0.02),
    **{
        f"An exchange, {name}, instructions, x without a timeout": Compared(
            "exchanges", _of_plain(kind), 0.01
        )
        for kind, name in (
            ("serve_tcp(idle=30)", "`serve_tcp`"),
            ("watched()", "`watched()`"),
            ("watch() and touch()", "`watch()`"),
            ("serve_parked()", "parked"),
            ("http", "HTTP"),
            ("http, parked", "HTTP parked"),
        )
    },
    **{
        f"A request, {ours}, x {theirs}": Compared("servers", _at("ratios", their_key, our_key))
        for our_key, ours, their_key, theirs in (
            ("ours-parked", "the example server", "uvicorn", "uvicorn"),
            ("ours-parked", "the example server", "hypercorn", "hypercorn"),
            ("guarded", "guarded uvicorn", "uvicorn", "stock"),
            ("guarded-httptools", "guarded uvicorn (C)", "httptools", "stock"),
        )
    },
    **{
        f"An idle connection, {name}, {what}, bytes": Compared(
            "idle", _at("results", key, what), 0.05
        )
        for key, name in (("ours-parked", "the example server"), ("guarded", "guarded uvicorn"))
        for what in ("burst", "silent", "half a head", "tls")
    },
    "`attach`, x `ss -tni`": Compared(
        "attach", lambda part: part["cores"]["attach"] / part["cores"]["ss"], 0.1
    ),
    "`attach`, bytes a connection": Compared("attach", _at("bytes"), 0.05),
    "The audit, embedded, 10M, x DuckDB": Compared("pipeline", _audit_of_ten_million("embedded")),
    "The audit, Spark, 10M, x DuckDB": Compared("pipeline", _audit_of_ten_million("spark")),
}
"""By the name under which the page shows it."""


def ranges(parts: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """(least, median, most) by the name of each figure that full runs have measured:
    the 10th and the 90th percentile, or a number less and more its noise.
    """
    found = {}
    for name, compared in FIGURES.items():
        part = parts.get(compared.part)
        if part is None or "absent" in part or part["scale"] != "full":
            continue
        try:
            value = compared.found(part)
        except (KeyError, TypeError):
            continue  # a peer that was not there that day
        if isinstance(value, dict):
            found[name] = value["p10"], value["median"], value["p90"]
        else:
            half = compared.noise / 2
            found[name] = value * (1 - half), float(value), value * (1 + half)
    return found


def keep(parts: dict[str, dict[str, Any]]) -> None:
    """Write the figures of *parts* as those of this release."""
    commits = sorted({part["about"]["commit"] for part in parts.values()})
    kept = {"version": reaper.__version__, "commits": commits, "figures": ranges(parts)}
    LAST.write_text(json.dumps(kept, indent=1) + "\n")


class Dearer(NamedTuple):
    """A figure that got dearer: its medians, and why."""

    name: str
    before: float
    now: float
    reason: str | None


def dearer(parts: dict[str, dict[str, Any]], last: dict[str, Any]) -> Iterator[Dearer]:
    """What of *parts* is dearer than in the release whose figures *last* has; the worst
    first.
    """
    before = last["figures"]
    found = [
        Dearer(name, before[name][1], median, REASONS.get(name))
        for name, (least, median, _) in ranges(parts).items()
        if name in before and least > before[name][2]
    ]
    yield from sorted(found, key=lambda each: each.before / each.now)


def section(parts: dict[str, dict[str, Any]]) -> str:
    """The part of the page."""
    last = json.loads(LAST.read_text())
    head = f"## Dearer than in {last['version']}\n\n"
    compared = sum(name in last["figures"] for name in ranges(parts))
    rows = [
        [
            each.name,
            figure(each.before),
            figure(each.now),
            f"{each.now / each.before:.2f}x",
            each.reason or "**not explained**",
        ]
        for each in dearer(parts, last)
    ]
    if not rows:
        return f"{head}None of {compared} figures, beyond its spread.\n"
    text = markdown(["beyond its spread", last["version"], "now", "", "why"], rows)
    text = text.replace("---: |\n", "--- |\n", 1)  # reasons are to the left
    return f"{head}{text}\n\n{len(rows)} of {compared} figures that are compared.\n"
