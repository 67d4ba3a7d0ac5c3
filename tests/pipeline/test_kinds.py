"""Planted kinds of journals, each with the answer that is right: faults that must never
PASS, beside servers that kept the law and must not FAIL.

One kind is one journal. Spark is asked about all of them at once: each has a listener
of its own.

The first trial named, by its lists, what passed and must not, and what failed and must
not. Each of these is here, in `full` and in `gaps` mode where both can show it, with a
control beside it:

- open connections that nobody closes: ten, and none, of thirty forgotten; the same,
  drained; shortened, then forgotten; killed, and open for too long to tell.
- rows whose timeout is null: activity, and a close, under no stated timeout; the same
  in time.
- reaped under timeout 0, with a due and without: reaped while it was suspended; closed
  by the program while suspended.
- a row that claims 0: a close, and activity, claims that nothing was in force; activity
  while nothing was in force.
- rows dropped by the client's writer: the client's rows are lost; no row is lost.
- silences that overflow: silences beyond 64 bits.
- another timeout during a silence: a silent connection gets a second, or an hour, and
  is closed late, or speaks late; overdue before; parked; two at one instant.
- a round trip of 400 ms: a round trip of 400 ms, and of a millisecond; four closes late
  in each; the same where every connection lasts for more than a minute.
- a footer without `first_conn`, a run's name kept: a footer without its first number; a
  run's name kept over a restart.
- engines that differ, files not looked at: a listener on the opening alone, and one
  that changes; a link to a file of the journal; a file in capitals; a pipe.

The rest are the twenty of our own, below their comment, and those that the model server
draws: `scripts/audit_model.py` has 21 faults that it combines with stalls,
restarts and lost rows. Those below "had not read the audit" were chosen by the pages
alone; the 125 journals of the trial itself are not ours.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reaper.journal import Journal
from reaper.pipeline.audit.account import PIECES
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.audit.words import NONE_JUDGED, as_text, judged_line
from reaper.pipeline.engine import use
from reaper.pipeline.read.inputs import check
from scripts import audit_model
from tests.helpers.pipeline_traffic import MS, WALL, S, journal, on_spark, only, play

Plant = Callable[[Path], None]
END = 5000 * S
MODELS = 20
"""Journals of the model server that both engines are asked about, besides the kinds."""
PASS, FAIL, OPEN = "pass", "fail", "inconclusive"
BOTH = ("full", "gaps")


def scripts(*of: str, mode: str = "full", drains: bool = False, **options: Any) -> Plant:
    """A journal of a connection per script, that goes on for an hour after the last of
    them.
    """

    def plant(place: Path) -> None:
        with journal(place / "server", int(place.name), mode=mode, **options) as ours:
            for number, script in enumerate(of):
                play(script, (10 + number) * S, ours, listener=place.name)
            ours.config(END, "still here")
            if drains:
                ours.drain(END)

    return plant


def changed(plant: Plant, edit: Callable[[pa.Table], pa.Table], side: str = "server") -> Plant:
    """The journal of *plant*, its one file edited."""

    def edited(place: Path) -> None:
        plant(place)
        path = only(place / side)
        table = pq.read_table(path)
        pq.write_table(edit(table).replace_schema_metadata(table.schema.metadata), path)

    return edited


def without(kind: str, of: int = 0) -> Callable[[pa.Table], pa.Table]:
    """An edit: the row number *of* of a *kind* is gone."""

    def edit(table: pa.Table) -> pa.Table:
        rows = [i for i, each in enumerate(table["kind"].to_pylist()) if each == kind]
        return table.take([i for i in range(table.num_rows) if i != rows[of]])

    return edit


def column(name: str, value: Any, kinds: tuple[str, ...]) -> Callable[[pa.Table], pa.Table]:
    """An edit: *name* is *value* in the rows of *kinds*."""

    def edit(table: pa.Table) -> pa.Table:
        rows = zip(table["kind"].to_pylist(), table[name].to_pylist(), strict=True)
        values = [value if kind in kinds else old for kind, old in rows]
        place = table.schema.get_field_index(name)
        return table.set_column(place, table.schema.field(name), pa.array(values, table[name].type))

    return edit


def without_metadata(key: str) -> Callable[[Path], None]:
    def forget(place: Path) -> None:
        path = only(place / "server")
        table = pq.read_table(path)
        kept = {k: v for k, v in table.schema.metadata.items() if k != f"reaper.{key}".encode()}
        pq.write_table(table.replace_schema_metadata(kept), path)

    return forget


def then(plant: Plant, more: Callable[[Path], None]) -> Plant:
    def both(place: Path) -> None:
        plant(place)
        more(place)

    return both


def forgotten(mode: str, of: int, forgotten: int, **options: Any) -> Plant:
    """Connections of which the last *forgotten* are never closed."""
    right, wrong = "open 0 30; touch 3; reap 33.5 33", "open 0 30; touch 3"
    return scripts(*[right] * (of - forgotten), *[wrong] * forgotten, mode=mode, **options)


def restarted(place: Path) -> None:
    """A server that keeps its run's name over a restart, and numbers its connections
    anew.
    """
    for start, sequence in enumerate((1, 100_000)):
        with journal(place / "server" / f"{start}", int(place.name), sequence=sequence) as ours:
            for number in range(20):
                play(
                    "open 0 5; touch 2; close_peer 3", (10 + number) * S, ours, listener=place.name
                )
            ours.drain(END)
    for path in (place / "server").rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(
            table.replace_schema_metadata({**table.schema.metadata, b"reaper.run": b"abcdef"}), path
        )


def dropped(side: str, lost: bool = True) -> Plant:
    """Both sides of forty connections; six of the client's last bytes were sent 3 s
    before they were closed. Their rows are lost, as its writer says.
    """

    def plant(place: Path) -> None:
        options: dict[str, Any] = {side: {"queue_rows": 80 if lost else 1000}}
        with (
            journal(place / "server", 1, **options.get("server", {})) as ours,
            journal(place / "client", 2, **options.get("client", {})) as theirs,
        ):
            for peer in range(40):
                both(ours, theirs, peer, place.name, 0)
            ours.config(END, "still here")

    return plant


def both(
    ours: Journal,
    theirs: Journal,
    peer: int,
    listener: str,
    way: int,
    late: int = 0,
    timeout: int = 5,
) -> None:
    """Both sides of a connection whose bytes take *way* ns to the other side; it is
    closed *late* ns after it says so. Its *timeout* is in seconds.
    """
    t = (10 + peer) * S
    seen = theirs.open(t, timeout * 1000, listener, peer=peer)
    log = ours.open(t + way, timeout * 1000, listener, peer=peer)
    seen.touch(t + S, 10)
    log.touch(t + S + way, 10)
    due = t + (1 + timeout) * S
    log.reap(due + way + 900 * MS, due + way + 100 * MS)
    seen.close_peer(due + 2 * way + 901 * MS + late)


def far_away(way_ms: int, late: int = 0, timeout: int = 5) -> Plant:
    """Both sides of forty connections; one of ten is closed *late* ns after its row
    says so.
    """

    def plant(place: Path) -> None:
        with journal(place / "server", 1) as ours, journal(place / "client", 2) as theirs:
            for peer in range(40):
                delay = late if peer % 10 == 0 else 0
                both(ours, theirs, peer, place.name, way_ms * MS, delay, timeout)
            ours.config(END, "still here")

    return plant


def two_sided(script: str, mode: str = "full") -> Plant:
    """Both sides of forty connections, and of one that goes by *script*."""

    def plant(place: Path) -> None:
        with (
            journal(place / "server", 1, mode=mode) as ours,
            journal(place / "client", 2) as theirs,
        ):
            for peer in range(40):
                both(ours, theirs, peer, place.name, 0)
            play(script, 10 * S, ours, theirs, peer=40, listener=place.name)
            ours.config(END, "still here")

    return plant


def touched(*edits: Callable[[Path], None]) -> Plant:
    plant = scripts(*["open 0 5; touch 2; close_peer 3"] * 5)

    def both_(place: Path) -> None:
        plant(place)
        for edit in edits:
            edit(place)

    return both_


def linked(place: Path) -> None:
    (place / "server" / "again.parquet").symlink_to(only(place / "server"))


def capitals(place: Path) -> None:
    only(place / "server").rename(place / "server" / "X.PARQUET")
    scripts("open 0 5; touch 2; close_peer 3", sequence=50_000)(place)


LONG = "open 0 30; touch 10; touch 310; close_peer 311"
FINE = "open 0 30; touch 10; touch 39; close_peer 45"
KINDS: dict[str, tuple[str, Plant]] = {}
for mode in BOTH:
    of: dict[str, tuple[str, Plant]] = {
        # What passed and must not.
        "ten of thirty forgotten": (FAIL, forgotten(mode, 30, 10)),
        "none of thirty forgotten": (PASS, forgotten(mode, 30, 0)),
        "ten of thirty forgotten, drained": (FAIL, forgotten(mode, 30, 10, drains=True)),
        "activity under no stated timeout": (
            OPEN,
            changed(
                scripts(*[LONG] * 10, mode=mode),
                column("timeout_ms", None, ("activity", "close_peer")),
            ),
        ),
        "the same in time": (PASS, scripts(*[FINE] * 10, mode=mode)),
        "a close under no stated timeout": (
            FAIL if mode == "full" else OPEN,
            changed(
                scripts(*["open 0 30; close_peer 300"] * 10, mode=mode),
                column("timeout_ms", None, ("close_peer",)),
            ),
        ),
        "reaped while it was suspended": (
            FAIL,
            scripts("open 0 30; touch 2; retime 0; reap 302 300", mode=mode),
        ),
        "reaped while it was suspended, no due": (
            FAIL,
            scripts("open 0 30; touch 2; retime 0; reap 302 -", mode=mode),
        ),
        "closed by the program while suspended": (
            PASS,
            scripts("open 0 30; touch 2; retime 0; close_app 302", mode=mode),
        ),
        "silences beyond 64 bits": (
            OPEN,
            changed(
                scripts(
                    *["open 0 30; " + "; ".join(f"touch {3 * i}" for i in range(1, 21))] * 2,
                    mode=mode,
                ),
                column("idle_ns", 1 << 59, ("activity",)),
            ),
        ),
        # What failed and must not.
        "a silent connection gets a second": (
            PASS,
            scripts(*["open 0 3600; touch 2; retimed 300.25 1; reap 301.2 301"] * 5, mode=mode),
        ),
        "a silent connection gets a second, and is closed late": (
            FAIL,
            scripts("open 0 3600; touch 2; retimed 300.25 1; reap 303 301", mode=mode),
        ),
        "a silent connection gets a second, and speaks": (
            PASS,
            scripts(
                "open 0 3600; touch 2; retimed 300.25 1; touch 300.9; close_peer 301", mode=mode
            ),
        ),
        "a silent connection gets a second, and speaks late": (
            FAIL,
            scripts(
                "open 0 3600; touch 2; retimed 300.25 1; touch 303; close_peer 303.5", mode=mode
            ),
        ),
        "overdue before it got another timeout": (
            FAIL,
            scripts("open 0 30; touch 2; retimed 300.25 1; reap 301.2 301", mode=mode),
        ),
        "a silent connection gets an hour": (
            PASS,
            scripts("open 0 30; touch 2; retimed 20 3600; touch 300; close_peer 301", mode=mode),
        ),
        "a silent connection gets a second, and is spared at once": (
            PASS,
            scripts(
                "open 0 3600; touch 2; retimed 300.25 1; averted 300.25; touch 300.3;"
                " close_peer 301",
                mode=mode,
            ),
        ),
        "one that is long overdue is spared, and gets an hour at once": (
            FAIL,
            scripts(
                "open 0 30; touch 2; averted 300.25; retimed 300.25 3600; touch 300.3;"
                " close_peer 301",
                mode=mode,
            ),
        ),
        "two other timeouts at one instant of a silence": (
            PASS,
            scripts(
                *["open 0 30; touch 10; retimed 38 2; retimed 38 30; close_app 39.9"] * 4,
                mode=mode,
            ),
        ),
        "parked, then reaped by the longer timeout": (
            PASS,
            scripts("open 0 30; touch 2; retimed 20 60; reap 62.5 62", mode=mode),
        ),
        "shortened, then forgotten": (
            FAIL,
            scripts("open 0 3600; touch 2; retimed 300 5", mode=mode),
        ),
        # Twenty of our own.
        "reaped a second early": (FAIL, scripts("open 0 30; touch 2; reap 31 31", mode=mode)),
        "reaped in time": (PASS, scripts("open 0 30; touch 2; reap 32.5 32", mode=mode)),
        "reaped before its due": (FAIL, scripts("open 0 5; touch 2; deadline 9 10", mode=mode)),
        "reaped three seconds late": (FAIL, scripts("open 0 30; touch 2; reap 35 32", mode=mode)),
        "reaped by a due that lies": (FAIL, scripts("open 0 30; touch 2; reap 50 49.5", mode=mode)),
        "active after 32 seconds of 30": (
            FAIL,
            scripts("open 0 30; touch 32; close_peer 33", mode=mode),
        ),
        "active after 31 seconds of 30": (
            PASS,
            scripts("open 0 30; touch 31; close_peer 32", mode=mode),
        ),
        "left by its client after 300 of 30": (
            FAIL,
            scripts("open 0 30; close_peer 300", mode=mode),
        ),
        "closed by the program after 300 of 30": (
            FAIL,
            scripts("open 0 30; close_app 300", mode=mode),
        ),
        "no timeout at all": (PASS, scripts("open 0 0; touch 400; close_peer 900", mode=mode)),
        "spared and forgotten": (
            FAIL,
            scripts("open 0 30; averted 30.5; close_peer 98", mode=mode),
        ),
        "spared and read": (
            PASS,
            scripts("open 0 30; averted 30.5; touch 30.6; close_peer 32", mode=mode),
        ),
        "two ends": (
            FAIL,
            changed(
                scripts(FINE, mode=mode),
                lambda table: pa.concat_tables(
                    [table, table.filter(pa.compute.equal(table["kind"], "close_peer"))]
                ),
            ),
        ),
        "no opening": (OPEN, changed(scripts(FINE, FINE, mode=mode), without("open", 1))),
        "no first opening": (OPEN, changed(scripts(FINE, FINE, mode=mode), without("open"))),
        "no end": (
            FAIL if mode == "full" else OPEN,
            changed(scripts(FINE, FINE, mode=mode), without("close_peer")),
        ),
        "an activity is gone": (FAIL, changed(scripts(FINE, FINE, mode=mode), without("activity"))),
        "a footer without its first number": (
            PASS,
            then(scripts(*[FINE] * 20, mode=mode), without_metadata("first_conn")),
        ),
        "a number without a row": (
            FAIL,
            changed(
                scripts(*[FINE] * 3, mode=mode),
                lambda table: table.filter(
                    pa.compute.not_equal(table["conn"], sorted(set(table["conn"].to_pylist()))[2])
                ),
            ),
        ),
        "open for a second when the log ends": (
            PASS,
            scripts(FINE, "open 4985 30; touch 4986", mode=mode),
        ),
        "open for an hour without a timeout": (PASS, scripts(FINE, "open 0 0", mode=mode)),
        "suspended for an hour": (PASS, scripts(FINE, "open 0 30; touch 2; retime 0", mode=mode)),
    }
    KINDS |= {f"{name} ({mode})": kind for name, kind in of.items()}
KINDS |= {
    "a close claims that nothing was in force (full)": (
        FAIL,
        scripts(*["open 0 30; claim 0; close_peer 300"] * 10),
    ),
    "activity claims that nothing was in force (full)": (
        OPEN,
        scripts(*["open 0 30; claim 0; touch 300; claim 30; close_peer 310"] * 10),
    ),
    "activity while nothing was in force (full)": (
        PASS,
        scripts(*["open 0 30; retime 0; touch 300; retime 30; close_peer 310"] * 10),
    ),
    "open, and an activity is gone (full)": (
        OPEN,
        changed(scripts("open 0 30; touch 10; touch 20; retime 0"), without("activity")),
    ),
    "open, and an activity is gone (gaps)": (
        OPEN,
        changed(
            scripts("open 0 30; touch 10; touch 20; retime 0", mode="gaps"), without("activity")
        ),
    ),
    "killed, and open for too long to tell (gaps)": (
        OPEN,
        changed(
            scripts(FINE, "open 0 30; touch 20", mode="gaps"),
            lambda table: table.filter(
                pa.compute.fill_null(
                    pa.compute.not_equal(table["reason"].cast(pa.string()), "open"), True
                )
            ),
        ),
    ),
    "its end is lost, and its last row is without a timeout (gaps)": (
        OPEN,
        changed(
            scripts(FINE, "open 0 30; retime 0; touch 300; retime 30; close_peer 302", mode="gaps"),
            without("close_peer", 1),
        ),
    ),
    "a run's name kept over a restart": (PASS, restarted),
    "a listener on the opening alone": (
        PASS,
        changed(scripts(FINE, FINE), column("listener", None, ("activity", "close_peer"))),
    ),
    "a listener that changes": (
        PASS,
        changed(scripts(FINE, FINE), column("listener", "0", ("activity", "close_peer"))),
    ),
    "a link to a file of the journal": (PASS, touched(linked)),
    "a file in capitals": (OPEN, touched(capitals)),
    "a pipe": (OPEN, touched(lambda place: os.mkfifo(place / "server" / "pipe.parquet"))),
}
HEARD = "both 0 30; c.touch 2; touch 2"
AT_WORK = f"{HEARD}; retime 0; touch 602; retime 30"
FOR_A_SECOND = f"{HEARD}; retime 0; touch 3; retime 30"
JOINED: dict[str, tuple[str, Plant]] = {
    "the client's rows are lost": (OPEN, dropped("client")),
    "no row is lost": (PASS, dropped("client", lost=False)),
    "a round trip of 400 ms": (PASS, far_away(200)),
    "a round trip of 400 ms, and four closes 3 s late": (FAIL, far_away(200, 3 * S)),
    "a round trip of 400 ms, and no connection of less than a minute": (
        PASS,
        far_away(200, timeout=70),
    ),
    "the same, and four closes 3 s late": (FAIL, far_away(200, 3 * S, timeout=70)),
    "a round trip of a millisecond": (PASS, far_away(0)),
    "four closes 3 s later than they say": (FAIL, far_away(0, 3 * S)),
    # By somebody who knew the pages, and had not read the audit.
    "at work for ten minutes, then idle": (
        PASS,
        two_sided(f"{AT_WORK}; reap 632.5 632; c.close_peer 632.5"),
    ),
    "at work for ten minutes, then left by its client": (
        PASS,
        two_sided(f"{AT_WORK}; close_peer 610; c.close_app 610"),
    ),
    "at work for ten minutes, then closed late": (
        FAIL,
        two_sided(f"{AT_WORK}; reap 632.5 632; c.close_peer 636"),
    ),
    "at work for ten minutes, then left by its client late": (
        FAIL,
        two_sided(f"{AT_WORK}; close_peer 690; c.close_app 690"),
    ),
    **{
        f"at work for a second, {end}, {mode}": (wanted, two_sided(f"{FOR_A_SECOND}; {how}", mode))
        for mode in BOTH  # in one of them no row tells of it
        for end, wanted, how in [
            ("then idle", PASS, "reap 34 33; c.close_peer 34"),
            ("then left by its client", PASS, "close_peer 34.1; c.close_app 34.1"),
            ("then closed late", FAIL, "reap 34 33; c.close_peer 35"),
            ("then left by its client late", FAIL, "close_peer 34.6; c.close_app 34.6"),
        ]
    },
    "overdue before it got an hour": (
        FAIL,
        two_sided(f"{HEARD}; retimed 60 3600; close_peer 100; c.close_app 100"),
    ),
    "bytes that its client never sent": (
        OPEN,
        two_sided(f"{HEARD}; touch 22; touch 42; touch 62; close_app 70; c.close_peer 70"),
    ),
    "spared for bytes that its client never sent": (
        OPEN,
        two_sided(f"{HEARD}; averted 32.5; averted 63; close_app 70; c.close_peer 70"),
    ),
    "bytes that were forgotten": (
        FAIL,
        two_sided(f"{HEARD}; c.touch 18; reap 32.5 32; c.close_peer 32.5"),
    ),
    "closed by the program in time": (
        PASS,
        two_sided(f"{HEARD}; close_app 20; c.close_peer 20"),
    ),
}


def answer(spark: Any, place: Path, out: str = "out") -> dict[str, Any]:
    sides = [place / side for side in ("server", "client")]
    server, client = (check([side], now_ns=WALL) if side.exists() else None for side in sides)
    assert server is not None
    return audit(spark, server, client, place / out, Settings()).summary


def adds_up(summary: dict[str, Any]) -> bool:
    """Whether all that is judged, allowed and unjudged is all the time that there
    was.
    """
    return all(
        each["lifetime_ns"]
        == each["judged_ns"]
        + sum(each["allowed_ns"].values())
        + sum(entry["ns"] for entry in each["unjudged"].values())
        for each in summary["accounted"].values()
    )


@pytest.mark.parametrize("name", [*KINDS, *JOINED])
def test_each_kind_gets_the_answer_that_is_right(spark: Any, tmp_path: Path, name: str) -> None:
    wanted, plant = (KINDS | JOINED)[name]
    place = tmp_path / "1"
    plant(place)
    summary = answer(spark, place)
    assert (summary["result"], adds_up(summary)) == (wanted, True), summary["reasons"]
    assert "connection-hours judged" in as_text(summary).splitlines()[0]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(105, "0.0292"), (3600, "1"), (35_999, "10"), (148_687_200, "41,302")],
)
def test_the_first_line_says_how_much_time_there_was(seconds: int, said: str) -> None:
    accounted = {"lifetime_ns": seconds * S, "judged_ns": 0, "allowed_ns": {}, "unjudged": {}}
    assert f" % of {said} connection-hours judged" in judged_line(accounted)


def test_no_share_is_said_of_no_time() -> None:
    accounted = {"lifetime_ns": 0, "judged_ns": 0, "allowed_ns": {}, "unjudged": {}}
    assert judged_line(accounted).startswith("no connection-hours judged")


def test_of_one_connection_whose_opening_is_gone_nothing_is_proven(
    spark: Any, tmp_path: Path
) -> None:
    with journal(tmp_path / "server", 1, rotate_bytes=1) as log:
        alone = log.open(S, 30_000, "1")
        log.flush()
        alone.touch(2 * S, 10)
        alone.close_peer(3 * S)
        log.config(END, "still here")
    min((tmp_path / "server").glob("*.parquet"), key=lambda path: path.name).unlink()
    summary = answer(spark, tmp_path)
    assert (summary["result"], summary["reasons"]) == (OPEN, [NONE_JUDGED])


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 30))
def test_the_audit_passes_no_fault_of_a_model_and_fails_no_honest_one(
    spark: Any, seed: int
) -> None:
    """Each example is of 25 worlds that are judged at once: of 18 faults of the audit
    itself one world in twenty shows one of most.
    """
    found = audit_model.answers(spark, range(seed, seed + 25))
    assert [(number, wrong) for number, _, _, wrong in found if wrong is not None] == []


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chance=st.randoms(use_true_random=False))
def test_what_is_said_of_one_world_of_a_model_is_right(spark: Any, chance: random.Random) -> None:
    way = chance.choice((None, *audit_model.WAYS))
    with tempfile.TemporaryDirectory() as place:
        planted = audit_model.write_world(Path(place), chance, way=way, drops=chance.random() < 0.1)
        summary = answer(spark, Path(place))
    why, result = summary["reasons"], summary["result"]
    far = way is not None and way * 1e9 > Settings().flight_ns
    if far and result == "inconclusive":
        # A few pairs of a client that far away do not tell its way from a drift.
        assert planted.faults or planted.doubts or "--flight" in why[0]
    else:
        assert audit_model.wrong_answer(planted, result, why) is None
    assert adds_up(summary)


def judged(spark: Any, inputs: Any, out: Path) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The summary of *inputs*, and every connection as it was judged."""
    found = audit(spark, inputs, None, out, Settings())
    columns = ("conn", "listener", "verdict", "unjudged", "missed_t", "lifetime_ns", *PIECES)
    rows = found.connections.select(*columns).collect()
    return found.summary, sorted((tuple(row) for row in rows), key=lambda row: row[0])


@on_spark
def test_both_engines_judge_all_kinds_alike(spark: Any, real_spark: Any, tmp_path: Path) -> None:
    for number, (_, plant) in enumerate(KINDS.values(), 1):
        plant(tmp_path / f"{number}")
    writers = range(len(KINDS) + 1, len(KINDS) + MODELS + 1)
    for writer in writers:
        audit_model.write_world(tmp_path / f"{writer}", random.Random(writer), writer)
    inputs = check([tmp_path], now_ns=WALL)
    use("embedded")
    embedded, rows = judged(spark, inputs, tmp_path / "embedded")
    use("spark")
    summary, connections = judged(real_spark, inputs, tmp_path / "spark")
    assert connections == rows
    assert summary["accounted"] == embedded["accounted"]
    assert (adds_up(summary), summary["reasons"]) == (True, embedded["reasons"])
    assert len(summary["accounted"]) == len(KINDS) + MODELS
