"""Figures that the prose of the pages quotes: each comes from a result by its name.

`python -m benchmarks document` writes them; tests/benchmarks/test_figures.py fails
where a page says another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .common import figure, markdown, short

Results = dict[str, dict[str, Any]]
"""What the programs have found, by their names."""


class Quote(NamedTuple):
    """What a page says, `{}` for each figure: words that it has once, broken into lines
    anywhere; and what the figures are.
    """

    words: str
    of: Callable[[Results], list[str]]


def _guarded(found: Results, name: str) -> dict[str, int]:
    each: dict[str, int] = found["guarded"]["results"][name]
    return each


def _ratio(found: Results, name: str) -> str:
    each = _guarded(found, name)
    return f"{each['guarded'] / each['stock']:.3f}"


def _exchange(found: Results, kind: str, other: str, digits: int) -> str:
    each = found["exchanges"]["results"]
    return f"{each[kind]['instructions'] / each[other]['instructions']:.{digits}f}"


def _rearmed(found: Results) -> str:
    timer = found["touch"]["results"]["asyncio call_later + cancel"]["100000"]
    return f"{1 / timer['lease_to_it']['median']:.0f}"


def _wake(found: Results, server: str, other: str) -> str:
    wakes = found["tls-costs"]["results"][server]["wake_us"]
    return f"{median(wakes['guarded']) - median(wakes[other]):.0f}"


WOKEN = ("uvicorn", "`start_server`", "`guard` of a protocol")


def _cpu(found: Results, engine: str, other: str, step: str) -> str:
    cpu = found["pipeline"]["cpu"]
    most = cpu[max(cpu, key=int)]
    return f"{most[engine][step]['median'] / most[other][step]['median']:.1f}"


UVLOOP, ASYNCIO = "uvicorn, httptools, uvloop", "uvicorn, httptools, asyncio"
QUOTES: dict[str, list[Quote]] = {
    "docs/uvicorn.md": [
        Quote(
            "{} instructions stock, {} guarded, {} times as many; on asyncio's own loop {} times",
            lambda found: [
                *(f"{_guarded(found, UVLOOP)[side]:,}" for side in ("stock", "guarded")),
                *(_ratio(found, loop) for loop in (UVLOOP, ASYNCIO)),
            ],
        )
    ],
    "docs/howto/tls-memory.md": [
        Quote(
            "{} us more than without `release_buffers` in uvicorn, {} us in `start_server`, "
            "{} us in `guard`",
            lambda found: [_wake(found, server, "not released") for server in WOKEN],
        ),
        Quote(
            "Against a stock server it costs {} us more in uvicorn, {} us in `start_server`, "
            "{} us in `guard`",
            lambda found: [_wake(found, server, "stock") for server in WOKEN],
        ),
    ],
    "docs/pipeline.md": [
        Quote(
            "Spark's audit took {} times the processor time of SQL written by hand for DuckDB, "
            "the embedded engine's {} times; Spark's advice took {} times the embedded engine's",
            lambda found: [
                _cpu(found, "spark", "duckdb", "audit"),
                _cpu(found, "embedded", "duckdb", "audit"),
                _cpu(found, "spark", "embedded", "advise"),
            ],
        )
    ],
    "docs/why-not-timeouts.md": [
        Quote(
            "`move_on_after` takes {} times the instructions of one without a timeout, an echo "
            "with `watch()` and `touch()` {} times. An echo on `serve_tcp` takes {} times",
            lambda found: [
                _exchange(found, "move_on_after per read", "plain", 1),
                _exchange(found, "watch() and touch()", "plain", 2),
                _exchange(found, "serve_tcp(idle=30)", "plain", 1),
            ],
        ),
        Quote("it takes [{} times as long as a touch]", lambda found: [_rearmed(found)]),
    ],
    "docs/scale.md": [
        Quote(
            "A request that wakes its connection takes [{} times]",
            lambda found: [_exchange(found, "http, parked", "http", 2)],
        )
    ],
}
"""What is quoted, by the page."""
NUMBER = r"(-?[\d.,]*\d)"


def filled(page: str, quotes: list[Quote], found: Results) -> str:
    """*page* with the figures of *found* in its *quotes*.

    Raises:
        ValueError: the page has the words of one not at all, or more than once.
    """
    for words, of in quotes:
        parts = [re.escape(part).replace(r"\ ", r"\s+") for part in words.split("{}")]
        places = [*re.finditer(NUMBER.join(parts), page)]
        if len(places) != 1:
            raise ValueError(f"{len(places)} times in the page: {words}")
        for group, said in reversed([*enumerate(of(found), start=1)]):
            page = page[: places[0].start(group)] + said + page[places[0].end(group) :]
    return page


def write(root: Path, found: Results) -> None:
    """Put the figures of *found* into the pages below *root*."""
    for name, quotes in QUOTES.items():
        where = root / name
        where.write_text(filled(where.read_text(), quotes, found))


def pipeline_table(part: dict[str, Any]) -> str:
    """Seconds from the start of a command to its answer, and the most memory, by the
    number of rows.
    """

    def cells(by_step: dict[str, Any]) -> list[str]:
        before = by_step["check"]["median"] + by_step["session"]["median"]
        asked = [f"{figure(before + by_step[step]['median'])} s" for step in ("audit", "advise")]
        memory = by_step["GiB"]
        most = memory["median"] if isinstance(memory, dict) else memory
        return [*asked, f"{figure(most)} GiB"]

    head = ["rows"]
    for engine in ("embedded", "spark"):
        head += [f"`audit`, `{engine}`", f"`advise`, `{engine}`", "memory"]
    rows = [
        [short(size), *cells(engines["embedded"]), *cells(engines["spark"])]
        for size, engines in part["sizes"].items()
    ]
    return markdown(head, rows)
