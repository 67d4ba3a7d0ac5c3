"""Rows first, exemptions last: for each exemption that an audit knows, rows that
contradict it, beside rows that grant it.

A journal is planted with the `Journal` that servers use. Where a row has to go, or a
file, it goes after the journal was written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from reaper.pipeline.audit.account import PIECES
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.engine import use
from reaper.pipeline.read.inputs import check
from tests.helpers.pipeline_traffic import MS, WALL, Clock, S, journal, on_spark, only, play
from tests.keeper import test_journal as of_keepers
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


def changed_alone(place: Path) -> None:
    """A connection that gets another timeout, without an instant, and stays silent for
    an hour. Retention took the file with its opening, and its server was killed before
    it told of it again: that change is its only row.
    """
    server = place / "server"
    with journal(server, int(place.name), mode="full", rotate_bytes=1) as ours:
        log = ours.open(S, 30_000, place.name)
        log.touch(3 * S)
        ours.flush()
        (gone,) = server.glob("*.parquet")
        log.timeout_ms = 60_000
        play(FINE, 100 * S, ours, listener=place.name)
        ours.config(HOUR * S, "still here")
    gone.unlink()
    path = only(server)
    table = pq.read_table(path)
    told = pa.compute.equal(table["reason"].cast(pa.string()), "open").fill_null(False)
    pq.write_table(table.filter(pa.compute.invert(told)), path)


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
    # Exempt: it was opened before the log begins.
    "a change of its timeout is all that is left of it (full)": (OPEN, changed_alone),
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


# ---- both sides

AWAY = 1 << 19
"""The writer of a world's clients is so much greater than that of its server."""
WAY = MS


def pairs(
    of: int,
    script: Callable[[int], str],
    until: tuple[int, int] = (5000, 5000),
    far: int = 0,
) -> Plant:
    """Both sides of so many connections, ten seconds apart, by the *script* of each.
    The logs go on *until* so many seconds; the client's clock is *far* ns ahead.
    """

    def plant(place: Path) -> None:
        number = int(place.name)
        theirs_clock = Clock(step=far)
        with (
            journal(place / "server", number) as ours,
            journal(place / "client", number + AWAY, theirs_clock) as theirs,
        ):
            for peer in range(of):
                steps, at = script(peer), (1 + peer) * S
                play(steps, at, ours, theirs, number * 10_000 + peer, place.name)
            ours.config(until[0] * S, "still here")
            theirs.config(until[1] * S, "still here")

    return plant


SEEN = "both 0 30; c.touch 2; touch 2.001; reap 32.5 32.001; c.close_peer 32.501"
UNSEEN = "both 0 30; c.touch 2; touch 2.001; reap 32.5 32.001"
LEFT = "both 0 30; c.touch 2; touch 2.001; retime 0; c.close_app 5"


def every(of: int, script: str) -> Callable[[int], str]:
    """Of so many connections one goes by *script*; the others see that they end."""
    return lambda number: SEEN if number % of else script


def suspended(of: int, whose: str = "server", early: int | None = None) -> Plant:
    """Both sides of connections, twenty seconds apart. Half way the machine of a side
    is suspended for an hour: its clock stands, and its anchors say so. The client of
    the number *early* sent a byte that was never noticed.
    """
    stood, long = (10 + 20 * (of // 2)) * S, HOUR * S

    def asleep(t: int) -> int:
        """The clock of the suspended machine, at *t* of the other's."""
        return t if t < stood else max(stood, t - long)

    def awake(t: int) -> int:
        """What that side does at *t* is done at this instant of the other's clock."""
        return t if not stood <= t < stood + long else stood + long

    def plant(place: Path) -> None:
        number, here, there = int(place.name), Clock(), Clock()
        ours_at = asleep if whose == "server" else int
        theirs_at = asleep if whose == "client" else int
        with (
            journal(place / "server", number, here) as ours,
            journal(place / "client", number + AWAY, there) as theirs,
        ):

            def at_both(t: int) -> None:
                """Write what waits; both clocks are read for it."""
                here.now, there.now = ours_at(t), theirs_at(t)
                here.step, there.step = t - here.now, t - there.now
                ours.flush()
                theirs.flush()

            for peer in range(of):
                t, key = (10 + 20 * peer) * S, number * 10_000 + peer
                t += long if t >= stood else 0
                at_both(t)
                reaped, seen_at = t + 35 * S + 500 * MS, t + 35 * S + 500 * MS + WAY
                if whose == "server":  # it comes to it when it is awake
                    late = awake(reaped) - reaped
                    reaped, seen_at = reaped + late, seen_at + late
                else:
                    seen_at = awake(seen_at)
                seen = theirs.open(theirs_at(t) - WAY, 30_000, place.name, key)
                log = ours.open(ours_at(t), 30_000, place.name, key)
                spoken = t + 5 * S if t + 5 * S < stood or t >= stood else t
                if spoken > t:
                    seen.touch(theirs_at(spoken) - WAY, 10)
                    log.touch(ours_at(spoken), 10)
                if peer == early:
                    seen.touch(theirs_at(t + 20 * S), 10)
                if whose == "server" and t < stood <= t + 20 * S:
                    seen.close_app(stood + long // 2)  # it leaves while nobody hears it
                    log.close_peer(stood + MS)
                    continue
                due = spoken + 30 * S if whose == "client" else ours_at(spoken) + 30 * S
                reap = due + 500 * MS if whose == "server" else ours_at(reaped)
                if whose == "server":
                    seen_at = reap + WAY + (long if reap >= stood else 0)
                log.reap(reap, due)
                seen.close_peer(theirs_at(seen_at) + (WAY if whose == "client" else 0))
            at_both((10 + 20 * of + 60) * S + long)
            ours.drain(here.now)
            theirs.drain(there.now)

    return plant


@pytest.fixture(autouse=True)
def _anchored_at_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No minute passes in a test."""
    monkeypatch.setattr("reaper.journal.writer.ANCHOR_SECONDS", 0.0)


JOINED: dict[str, tuple[str, Plant]] = {
    # Exempt: a pair of which one side alone has an end.
    "all see that they were closed": (PASS, pairs(100, every(1, SEEN))),
    "half were closed, and their clients never saw it": (OPEN, pairs(100, every(2, UNSEEN))),
    "one of two hundred never saw it": (PASS, pairs(200, every(200, UNSEEN))),
    "the client's log ends with the last": (
        PASS,
        pairs(20, lambda number: SEEN if number < 19 else UNSEEN, until=(5000, 53)),
    ),
    "half have left, and the server never saw it": (OPEN, pairs(100, every(2, LEFT))),
    # Exempt: the clocks cannot be compared.
    "a suspended server": (OPEN, suspended(100)),
    "suspended clients": (PASS, suspended(100, "client")),
    "a suspended server, and one early after it": (FAIL, suspended(100, early=80)),
    "a suspended server, and one early before it": (FAIL, suspended(100, early=20)),
}


@pytest.mark.parametrize("name", JOINED)
def test_no_exemption_stands_against_the_rows_of_both(
    spark: Any, tmp_path: Path, name: str
) -> None:
    wanted, plant = JOINED[name]
    place = tmp_path / "1"
    plant(place)
    summary = answer(spark, place)
    assert (summary["result"], adds_up(summary)) == (wanted, True), summary["reasons"]


def test_of_a_suspended_server_what_no_step_of_its_clock_touched_is_compared(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "1"
    suspended(100)(place)
    server, client = (check([place / side], now_ns=WALL) for side in ("server", "client"))
    allowing = Settings(unmatched=0.1)
    summary = audit(spark, server, client, place / "out", allowing).summary
    assert (summary["result"], summary["reasons"]) == ("pass", [])
    assert 0 < summary["unproven"]["clocks_not_compared"] < 8
    assert summary["joined"]["pairs"] == 100
    assert summary["clock"]["skew_s"]["spread"] < 0.01


def test_the_same_connections_at_another_time_ask_for_the_clocks(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "1"
    pairs(40, every(1, SEEN), far=HOUR * S)(place)
    summary = answer(spark, place)
    assert summary["result"] == "inconclusive"
    said = "and 40 have the same addresses, 3,600.0 s apart: is a clock wrong?"
    assert said in summary["reasons"][-1]


def rows_of(spark: Any, places: list[Path], out: Path) -> list[tuple[Any, ...]]:
    """Every connection of the servers of *places*, as it was judged; beside their
    clients where they have such.
    """
    sides = [[place / side for place in places] for side in ("server", "client")]
    server = check(sides[0], now_ns=WALL)
    client = check(sides[1], now_ns=WALL) if sides[1][0].exists() else None
    found = audit(spark, server, client, out, Settings())
    more = ("c_conn", "seen_lateness_ns", "steps", "one_end") if client else ()
    columns = ("conn", "verdict", "unjudged", "lifetime_ns", *PIECES, *more)
    asked = found.connections.select(*columns).collect()
    rows = sorted(map(tuple, asked), key=lambda row: row[0])
    return [*rows, tuple(found.summary["reasons"])]


@on_spark
@pytest.mark.parametrize("plants", [KINDS, JOINED], ids=["one side", "both sides"])
def test_both_engines_grant_the_same_exemptions(
    spark: Any, real_spark: Any, tmp_path: Path, plants: dict[str, tuple[str, Plant]]
) -> None:
    places = [tmp_path / f"{number}" for number in range(1, len(plants) + 1)]
    for place, (_, plant) in zip(places, plants.values(), strict=True):
        plant(place)
    use("embedded")
    embedded = rows_of(spark, places, tmp_path / "embedded")
    use("spark")
    assert rows_of(real_spark, places, tmp_path / "spark") == embedded


@on_spark
def test_the_journal_of_a_keeper_is_judged_alike(
    spark: Any, real_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_keepers.written(tmp_path / "kept", "full", "slow")
    of_keepers.broken(monkeypatch, "nothing is ended")
    of_keepers.told(tmp_path / "broken", "gaps", of_keepers.used_once)
    for name, verdict in ("kept", "ok_reaped"), ("broken", "missed"):
        server = check([tmp_path / name])
        before = use("embedded")
        try:
            embedded = audit(spark, server, None, tmp_path / "out", Settings()).summary
            use("spark")
            asked = audit(real_spark, server, None, tmp_path / "out", Settings()).summary
        finally:
            use(before)
        assert asked == embedded
        assert embedded["verdicts"][verdict] > 0
