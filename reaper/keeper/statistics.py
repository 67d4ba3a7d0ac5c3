"""The numbers of a keeper, and its metrics. *How long ends take is not lateness*: it
has a histogram of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..metrics import Family, Histogram, LoopStatistics


@dataclass(frozen=True, slots=True)
class KeeperStatistics:
    """A snapshot of one keeper. Counts are since it was opened; times are seconds."""

    name: str
    """What the keeper is called."""
    kept: int
    """Things made and not being ended: `len(keeper)`."""
    in_use: int
    """How many of those somebody uses now."""
    making: int
    """Things that are being made now."""
    ending: int
    """Things whose end waits for its turn, or runs."""
    made: int
    """Things made."""
    failed: int
    """Calls of `make` that raised."""
    ended: Mapping[str, int]
    """Things whose end was begun, by reason."""
    spared: int
    """Things that were due and live on: `ask` said that they work, or somebody came to
    use them while it was asked.
    """
    errors: int
    """Calls of `ask` and `end` that raised."""
    ends: Histogram
    """How long each `end` ran. The histogram goes on counting."""
    waits: Histogram
    """How long each thing waited for its `end` to begin, because others were being
    ended. The histogram goes on counting.
    """
    loop: LoopStatistics
    """Of its reaper: lateness, stalls, the journal."""


class Row(NamedTuple):
    """One metric, and how it is read."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    doc: str
    read: Callable[[KeeperStatistics], float | Mapping[str, float] | Histogram]
    label: str = ""


ROWS: Sequence[Row] = (
    Row("reaper_keeper_kept", "gauge", "Things kept.", lambda seen: seen.kept),
    Row("reaper_keeper_in_use", "gauge", "Things in use.", lambda seen: seen.in_use),
    Row("reaper_keeper_making", "gauge", "Things being made.", lambda seen: seen.making),
    Row("reaper_keeper_ending", "gauge", "Things being ended.", lambda seen: seen.ending),
    Row("reaper_keeper_made", "counter", "Things made.", lambda seen: seen.made),
    Row("reaper_keeper_failed", "counter", "Makes that raised.", lambda seen: seen.failed),
    Row(
        "reaper_keeper_ended",
        "counter",
        "Things ended, by reason.",
        lambda seen: dict(seen.ended),
        "reason",
    ),
    Row("reaper_keeper_spared", "counter", "Things due and spared.", lambda seen: seen.spared),
    Row("reaper_keeper_errors", "counter", "Asks and ends that raised.", lambda seen: seen.errors),
    Row(
        "reaper_keeper_end_seconds",
        "histogram",
        "How long each end ran.",
        lambda seen: seen.ends,
    ),
    Row(
        "reaper_keeper_end_wait_seconds",
        "histogram",
        "How long each thing waited for its end to begin.",
        lambda seen: seen.waits,
    ),
)
"""Every metric of a keeper, beside those of its reaper."""


def families(seen: KeeperStatistics) -> Iterator[Family]:
    """Yield every metric of `ROWS`."""
    for row in ROWS:
        yield Family(row.name, row.kind, row.doc, row.read(seen), row.label)
