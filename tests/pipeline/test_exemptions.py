"""Rows first, exemptions last: for each exemption that an audit knows, rows that
contradict it, beside rows that grant it.

A journal is planted with the `Journal` that servers use. Where a row has to go, or a
file, it goes after the journal was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from reaper.pipeline.audit.account import PIECES
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.engine import use
from reaper.pipeline.read.inputs import check
from tests.helpers.pipeline_traffic import WALL, S, journal, on_spark, play
from tests.pipeline.test_kinds import adds_up, answer, changed, column

pytestmark = pytest.mark.slow

Plant = Callable[[Path], None]
PASS, FAIL, OPEN = "pass", "fail", "inconclusive"
BOTH = ("full", "gaps")
HOUR = 3600
FINE = "open 0 30; touch 10; touch 39; close_peer 45"


def scripts(*of: str, mode: str, until: int = 5000) -> Plant:
    """A journal of a connection per script, that goes on *until* so many seconds."""

    def plant(place: Path) -> None:
        with journal(place / "server", int(place.name), mode=mode) as ours:
            for script in of:
                play(script, S, ours, listener=place.name)
            ours.config(until * S, "still here")

    return plant


def rotated(*of: str, mode: str, gone: int = 1, until: int = HOUR) -> Plant:
    """A journal of a connection per script, whose file is finished every ten minutes
    up to *until* seconds, each with rows of the open ones; the oldest *gone* are
    deleted, as retention does.
    """

    def plant(place: Path) -> None:
        server = place / "server"
        with journal(server, int(place.name), mode=mode, rotate_bytes=1) as ours:
            for script in of:
                play(script, S, ours, listener=place.name)
            for at in range(50, until + 50, 600):
                for _ in of:  # a file tells of the open ones if it has as many other rows
                    ours.config(at * S, "still here")
                play(FINE, at * S - 46 * S, ours, listener=place.name)
                ours.flush()
        for path in sorted(server.glob("*.parquet"))[:gone]:
            path.unlink()

    return plant


def due_of_told(seconds: int) -> Callable[[pa.Table], pa.Table]:
    """An edit: rows that tell of open connections say that they are due so late."""
    return edited("due_ns", seconds * S, "open")


def due_of_change(seconds: int) -> Callable[[pa.Table], pa.Table]:
    """An edit: so late was due what got another timeout, as these rows say."""
    return edited("due_ns", seconds * S, "retime")


def edited(column: str, value: int, reason: str) -> Callable[[pa.Table], pa.Table]:
    """An edit: *column* is *value* in the rows with this *reason*."""

    def edit(table: pa.Table) -> pa.Table:
        chosen = pa.compute.equal(table["reason"].cast(pa.string()), reason)
        chosen = pa.compute.fill_null(chosen, False)
        values = pa.compute.if_else(chosen, value, table[column])
        return table.set_column(table.schema.get_field_index(column), column, values)

    return edit


KINDS: dict[str, tuple[str, Plant]] = {}
for mode in BOTH:
    of: dict[str, tuple[str, Plant]] = {
        # Exempt: it was opened before the log begins.
        "silent for an hour": (FAIL, rotated(*["open 0 30; touch 2"] * 8, mode=mode, gone=0)),
        "silent for an hour, its opening gone": (
            FAIL,
            rotated(*["open 0 30; touch 2"] * 8, mode=mode),
        ),
        "silent for an hour under two, its opening gone": (
            PASS,
            rotated(*["open 0 7200; touch 2"] * 8, mode=mode),
        ),
        "set to a second after its opening was gone, and forgotten": (
            FAIL,
            rotated("open 0 7200; touch 2; retimed 1000 30", mode=mode),
        ),
        "parked for an hour, opening and change gone": (
            PASS,
            rotated("open 0 30; touch 2; retimed 20 7200", mode=mode),
        ),
        # Exempt: judged by the timeout that its own row states.
        "claims the timeout that was in force before": (
            OPEN,
            scripts("open 0 60; retimed 5 10; claim 60; touch 50; close_peer 51", mode=mode),
        ),
        "the same timeout comes into force again": (
            PASS,
            scripts("open 0 60; retimed 5 10; retimed 6 60; touch 50; close_peer 51", mode=mode),
        ),
        "a change that says it was due later than the rows before": (
            OPEN,
            changed(
                scripts("open 0 60; retimed 5 10; retimed 50 3600; close_peer 51", mode=mode),
                due_of_change(3600),
            ),
        ),
        # Exempt: a deadline moves with no activity.
        "a deadline after an hour of silence that no row allows": (
            FAIL if mode == "full" else OPEN,
            scripts(f"open 0 30; touch 2; claim -; deadline {HOUR} {HOUR}", mode=mode),
        ),
        "a deadline after an hour of work": (
            PASS,
            scripts(f"open 0 30; touch 2; retime 0; deadline {HOUR} {HOUR}", mode=mode),
        ),
        "a deadline under an hour's timeout": (
            PASS,
            scripts("open 0 30; touch 2; retime 3600; deadline 900 900", mode=mode),
        ),
        # Exempt: a row tells that it is open, and not due yet.
        "due in another hour, by nothing but that row": (
            FAIL,
            changed(scripts("open 0 30; touch 2", mode=mode), due_of_told(2 * HOUR)),
        ),
        "due in another hour, as a row has changed it": (
            PASS,
            scripts("open 0 30; touch 2; retimed 20 7200", mode=mode),
        ),
    }
    KINDS |= {f"{name} ({mode})": kind for name, kind in of.items()}


CHATTY = "; ".join(f"touch {0.9 * i:g}" for i in range(1, 4000))
KINDS |= {
    # Exempt: silences up to the threshold have no row.
    "an hour without a row, all counted (gaps)": (
        PASS,
        scripts(f"open 0 30; {CHATTY}; close_peer 3600", mode="gaps"),
    ),
    "an hour without a row, none counted (gaps)": (
        OPEN,
        changed(
            scripts(f"open 0 30; {CHATTY}; close_peer 3600", mode="gaps"),
            column("n", 0, ("close_peer",)),
        ),
    ),
    "an hour without a row, five counted (gaps)": (
        OPEN,
        changed(
            scripts(f"open 0 30; {CHATTY}; close_peer 3600", mode="gaps"),
            column("n", 5, ("close_peer",)),
        ),
    ),
    "an hour without a row, open, none counted (gaps)": (
        OPEN,
        changed(
            scripts(f"open 0 30; {CHATTY}", mode="gaps", until=HOUR + 5),
            edited("n", 0, "open"),
        ),
    ),
    "an hour without a row, open, all counted (gaps)": (
        PASS,
        scripts(f"open 0 30; {CHATTY}", mode="gaps", until=HOUR + 5),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_no_exemption_stands_against_the_rows(spark: Any, tmp_path: Path, name: str) -> None:
    wanted, plant = KINDS[name]
    place = tmp_path / "1"
    plant(place)
    summary = answer(spark, place)
    assert (summary["result"], adds_up(summary)) == (wanted, True), summary["reasons"]


def rows_of(spark: Any, places: Iterable[Path], out: Path) -> list[tuple[Any, ...]]:
    """Every connection of the servers of *places*, as it was judged."""
    inputs = check([place / "server" for place in places], now_ns=WALL)
    found = audit(spark, inputs, None, out, Settings()).connections
    asked = found.select("conn", "verdict", "unjudged", "lifetime_ns", *PIECES).collect()
    return sorted(map(tuple, asked), key=lambda row: row[0])


@on_spark
def test_both_engines_grant_the_same_exemptions(
    spark: Any, real_spark: Any, tmp_path: Path
) -> None:
    places = [tmp_path / f"{number}" for number in range(1, len(KINDS) + 1)]
    for place, (_, plant) in zip(places, KINDS.values(), strict=True):
        plant(place)
    use("embedded")
    embedded = rows_of(spark, places, tmp_path / "embedded")
    use("spark")
    assert rows_of(real_spark, places, tmp_path / "spark") == embedded
