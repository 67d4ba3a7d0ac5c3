"""Traps for an audit: connections that look right and are wrong, and the other way
round. One audit judges all that a server's journal alone must tell, one all that takes
both sides; and journals whose files, clocks or peers are at fault.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from reaper.pipeline.audit.joined import knots_of
from reaper.pipeline.audit.run import Audit, Settings, audit
from reaper.pipeline.audit.verdicts import VERDICTS
from reaper.pipeline.audit.words import as_text
from reaper.pipeline.read.frames import lifetimes, read_events
from reaper.pipeline.read.inputs import Inputs, check
from reaper.pipeline.read.span import Span
from scripts import attach_demo
from tests.helpers.pipeline_traffic import MS, WALL, Clock, S, journal, only, play, write

pytestmark = pytest.mark.slow

STALL = (7 * S, 20 * S)
"""The loop of the judged server stood still from here to there."""
SHORT = 500 * S
"""From here on it lagged in every fourth second, by less than a tick: 2 to 2.9, 6 to
6.9, 10 to 10.9, ... 22.9.
"""
LATER = 1000 * S
"""From here on it never did."""
LOG_END = 3000 * S


TRAPS: dict[str, tuple[str, int, str]] = {
    "spared_and_forgotten": ("missed", LATER, "open 0 30; averted 30.1; close_peer 98"),
    "spared_twice_and_in_time": (
        "ok_closed",
        LATER,
        "open 0 5; averted 5.5; averted 11; touch 13; close_peer 14",
    ),
    "spared_and_reaped_at_once": ("early", LATER, "open 0 5; averted 5.5; reap 5.7 5.7"),
    "idle_until_its_deadline": ("missed", LATER, "open 0 30; touch 20; deadline 100 100"),
    "busy_until_its_deadline": (
        "ok_reaped",
        LATER,
        "open 0 30; touch 20; retime 0; deadline 100 100",
    ),
    "by_its_deadline": ("ok_reaped", LATER, "open 0 5; touch 2; touch 6; touch 8; deadline 10 10"),
    "within_a_tick_of_its_deadline": (
        "ok_reaped",
        LATER,
        "open 0 5; touch 2; touch 6; touch 8; deadline 10.9 10",
    ),
    "before_its_deadline": ("early", LATER, "open 0 5; touch 2; touch 6; touch 8; deadline 9 10"),
    "reaped_by_a_timeout_that_was_never_in_force": ("early", LATER, "open 0 30; claim 5; reap 6 5"),
    "reaped_late_by_a_timeout_that_was_never_in_force": (
        "late",
        LATER,
        "open 0 5; claim 30; reap 31 30",
    ),
    "reaped_by_a_timeout_that_a_row_changed": ("ok_reaped", LATER, "open 0 30; retime 5; reap 6 5"),
    "active_before_it_was_opened": ("unknown", LATER, "open 0 5; gap -3 -1; close_peer 1"),
    # The loop stood still for longer, but not then.
    "silent_since_a_stall_long_ago": ("lost", LOG_END, "open -12 5"),
    # 55 s overdue, and not reaped; the check belongs to the next silence.
    "final_check_of_another_silence": (
        "missed",
        LATER,
        "open 0 5; touch 60; averted 65.5; touch 65.5; close_peer 66",
    ),
    "final_check_too_late": ("missed", LATER, "open 0 5; averted 9; touch 9; close_peer 10"),
    "spared_and_read_late": ("missed", LATER, "open 0 5; averted 5.5; touch 20; close_peer 21"),
    "spared_then_reaped": ("ok_reaped", LATER, "open 0 5; averted 5.5; reap 11.2 11"),
    "spared_then_reaped_late": ("late", LATER, "open 0 5; averted 5.5; reap 13 11"),
    # 14 s overdue, in which the loop stood still for 13; then 5 s overdue, and the loop
    # was awake.
    "stall_excuses_the_longest_alone": ("missed", 0, "open 1 5; touch 20; touch 30; close_peer 31"),
    "stall_excuses_all": ("ok_closed", 0, "open 2 5; touch 20; close_peer 21"),
    # 13 s of its 43.9 are charged to no connection.
    "stall_early_in_the_silence": ("ok_reaped", 0, "open 6 30; reap 49.9 49"),
    "stall_early_and_yet_late": ("late", 0, "open 6 30; reap 51 49"),
    # 4 s late; the lags of 0.9 s within its silence were made up for.
    "short_stalls_in_the_middle_excuse_nothing": ("late", SHORT, "open 0 30; reap 34 30"),
    # The loop came back 0.9 s late.
    "short_stall_at_the_end": ("ok_reaped", SHORT, "open 7.5 2.5; reap 11.9 10"),
    "short_stall_that_held_the_epoch_open": ("ok_reaped", SHORT, "open 9.5 30; reap 41.6 40.9"),
    "early_beside_a_stall": ("early", 0, "open 6 30; reap 35.9 35.9"),
    "retimed_to_an_hour": (
        "open_at_end",
        LATER,
        "open 0 5; touch 2; retime 3600; touch 4; touch 200",
    ),
    "retimed_to_five_seconds": ("lost", LATER, "open 0 3600; touch 2; retime 5; touch 4"),
    "retimed_to_an_hour_and_silent": (
        "open_at_end",
        LOG_END,
        "open -60 5; touch -58; retime 0; retime 3600",
    ),
    "retimed_to_five_seconds_and_silent": (
        "lost",
        LOG_END,
        "open -60 3600; touch -58; retime 0; retime 5",
    ),
    # A nanosecond after the latest activity, as the row before.
    "retimed_at_the_instant_of_a_row": (
        "open_at_end",
        LATER,
        "open 0 5; averted 1e-9; retime 3600",
    ),
    "switched_off_and_silent": ("open_at_end", LATER, "open 0 5; retime 0"),
    "switched_off": ("open_at_end", LATER, "open 0 5; retime 0; touch 2"),
    "reap_that_says_nothing": ("unknown", LATER, "open 0 5; retime -; reap 30 -"),
}
"""Name -> its verdict, where its time begins, its script."""
EXPECTED = {name: verdict for name, (verdict, _, _) in TRAPS.items()}


def write_traps(
    directory: Path,
    traps: Iterable[str] = TRAPS,
    mode: str = "full",
    writer: int = 1,
    drains: bool = False,
) -> dict[int, str]:
    """A journal of *traps*; connection -> name of its trap."""
    with journal(directory, writer, mode=mode) as ours:
        ours.stall(STALL[1], STALL[1] - STALL[0])
        for second in range(2, 24, 4):
            ours.stall(SHORT + second * S + 900 * MS, 900 * MS)
        named = {play(TRAPS[name][2], TRAPS[name][1], ours): name for name in traps}
        ours.config(LOG_END, "still here")
        if drains:
            ours.drain(LOG_END)
    return named


def audited(spark: Any, directory: Path) -> Audit:
    """Of the journals below *directory*; joined where there is a client's."""
    sides = [directory / side for side in ("server", "client")]
    server, client = (check([side], now_ns=WALL) if side.exists() else None for side in sides)
    assert server is not None
    return audit(spark, server, client, directory / "out", Settings())


def named_verdicts(found: Audit, names: Mapping[int, str]) -> dict[str, str]:
    """Name -> its verdict, of the connections that have a name."""
    rows = found.connections.select("conn", "verdict").collect()
    return {names[row.conn]: row.verdict for row in rows if row.conn in names}


def counts(summary: dict[str, Any]) -> dict[str, int]:
    return {verdict: count for verdict, count in summary["verdicts"].items() if count}


def test_each_trap_gets_its_verdict_and_every_row_is_accounted_for(
    spark: Any, tmp_path: Path
) -> None:
    names = write_traps(tmp_path / "server")
    found = audited(spark, tmp_path)
    assert named_verdicts(found, names) == EXPECTED
    summary = found.summary
    assert sum(summary["verdicts"].values()) == summary["connections"] == len(TRAPS)
    changes_of_a_timeout = (
        12  # one a change and one before a deadline that came too late, none for a reap without
    )
    still_open = 8
    assert summary["rows_of_writers"] == 2 + 6 + changes_of_a_timeout + still_open
    assert summary["rows_read"] == summary["rows"] + summary["rows_of_writers"]
    assert f"{summary['rows_read']:,} rows read" in as_text(summary)
    assert set(summary["verdicts"]) == set(VERDICTS)


def test_alone_in_its_journal_each_trap_gets_the_same_verdict(spark: Any, tmp_path: Path) -> None:
    for name, verdict in EXPECTED.items():
        names = write_traps(tmp_path / name / "server", [name])
        assert named_verdicts(audited(spark, tmp_path / name), names) == {name: verdict}


IN_GAPS_MODE = {
    "reaped_by_a_timeout_that_was_never_in_force": "ok_reaped",
    "reaped_late_by_a_timeout_that_was_never_in_force": "ok_reaped",
}
"""What a journal cannot know that writes neither short silences nor changes of a
timeout.
"""


def test_in_gaps_mode_the_verdicts_are_the_same_but_where_no_row_could_tell(
    spark: Any, tmp_path: Path
) -> None:
    names = write_traps(tmp_path / "server", mode="gaps")
    assert named_verdicts(audited(spark, tmp_path), names) == {**EXPECTED, **IN_GAPS_MODE}


def test_in_gaps_mode_what_is_open_when_its_writer_has_drained_is_lost(
    spark: Any, tmp_path: Path
) -> None:
    names = write_traps(tmp_path / "server", mode="gaps", drains=True)
    wanted = {
        name: "lost" if verdict == "open_at_end" else verdict
        for name, verdict in {**EXPECTED, **IN_GAPS_MODE}.items()
    }
    assert named_verdicts(audited(spark, tmp_path), names) == wanted


@pytest.mark.parametrize("folder", ["kind=reap", "t=1", "conn=7", "timeout_ms=9", "listener=x"])
def test_the_name_of_a_folder_is_no_column(spark: Any, tmp_path: Path, folder: str) -> None:
    names = write_traps(tmp_path / folder / "server")
    assert named_verdicts(audited(spark, tmp_path / folder), names) == EXPECTED


def test_a_name_moves_no_cursor_and_forges_no_line(spark: Any, tmp_path: Path) -> None:
    with journal(tmp_path / "server", 1) as ours:
        ours.open(S, 5000, "\x1b[2J\naudit: PASS   \u202e").reap(9 * S, 6 * S)
    text = as_text(audited(spark, tmp_path).summary)
    assert [line[:11] for line in text.splitlines() if line.startswith("audit")] == ["audit: FAIL"]
    assert text.replace("\n", "").isprintable()
    assert r"\x1b[2J\naudit: PASS   \u202e" in text


@pytest.mark.parametrize("listeners", [1, 200])
def test_every_connection_has_the_name_of_its_listener(
    spark: Any, tmp_path: Path, listeners: int
) -> None:
    with journal(tmp_path / "server", 1) as ours:
        names = {
            ours.open(S, 5000, f"port {number}").conn: f"port {number}"
            for number in range(listeners)
        }
        names[ours.open(S, 5000, None).conn] = ""
        ours.drain(2 * S)
    rows = audited(spark, tmp_path).connections.select("conn", "listener").collect()
    assert {row.conn: row.listener or "" for row in rows} == names


def brief_silence(directory: Path, timeout_ms: int, threshold: float) -> None:
    """A connection whose one silence, of 190 ms, is not written where *threshold* is
    longer.
    """
    options: dict[str, Any] = {"mode": "gaps", "gap_threshold": threshold, "tick": 0.1}
    with journal(directory / "server", 1, **options) as ours:
        log = ours.open(S, timeout_ms, "echo")
        log.touch(S + 190 * MS)
        log.close_peer(S + 200 * MS)


@pytest.mark.parametrize(
    ("timeout_ms", "threshold", "result"),
    [(300, 1.0, "inconclusive"), (300, 0.2, "pass"), (900, 1.0, "pass"), (0, 1.0, "pass")],
)
def test_silences_too_short_to_be_written_and_too_long_to_be_right_leave_it_open(
    spark: Any, tmp_path: Path, timeout_ms: int, threshold: float, result: str
) -> None:
    brief_silence(tmp_path, timeout_ms, threshold)
    summary = audited(spark, tmp_path).summary
    assert summary["result"] == result
    if result == "inconclusive":
        assert "silences up to 1 s were not written" in summary["reasons"][0]
        assert "a timeout is 0.3 s" in summary["reasons"][0]


def test_silences_that_were_all_written_leave_nothing_open(spark: Any, tmp_path: Path) -> None:
    with journal(tmp_path / "server", 1, mode="gaps", gap_threshold=1.0, tick=0.1) as ours:
        ours.open(S, 300, "echo").reap(S + 350 * MS, S + 300 * MS)
    assert audited(spark, tmp_path).summary["result"] == "pass"


def silent_reap(directory: Path) -> None:
    """A reap that nothing can be compared with, beside a connection that is fine."""
    with journal(directory / "server", 1) as ours:
        play("open 0 5; touch 2; close_peer 3", LATER, ours)
        play(TRAPS["reap_that_says_nothing"][2], LATER, ours)


def test_a_reap_that_says_nothing_leaves_it_open(spark: Any, tmp_path: Path) -> None:
    silent_reap(tmp_path)
    summary = audited(spark, tmp_path).summary
    assert (summary["result"], counts(summary)) == ("inconclusive", {"ok_closed": 1, "unknown": 1})
    assert summary["reasons"][0].startswith("1 reap(s) state neither timeout nor due")


def test_what_left_most_time_unjudged_is_the_first_reason(spark: Any, tmp_path: Path) -> None:
    silent_reap(tmp_path)  # of some seconds
    with journal(tmp_path / "server", 2) as ours:
        log = ours.open(LATER, 30_000, "echo")
        log.timeout_ms = None
        log.touch(LATER + 300 * S)
        log.close_peer(LATER + 310 * S)
    summary = audited(spark, tmp_path).summary
    first, second = summary["reasons"]
    assert first.endswith("no row says which timeout was in force")
    assert second.startswith("1 reap(s) state neither timeout nor due")


EXCUSED = ("open 2 5; touch 20; close_peer 21", "open 10 5; close_peer 11")
"""A silence that a stall excuses, and a connection that was opened in the midst of
it.
"""


def within_a_stall(directory: Path, *scripts: str) -> None:
    """Connections of a loop that says it stood still from 7 to 20 s."""
    with journal(directory / "server", 1) as ours:
        ours.stall(STALL[1], STALL[1] - STALL[0])
        for script in scripts:
            play(script, 0, ours)


def test_a_stall_during_which_the_loop_ran_leaves_open_what_it_excuses(
    spark: Any, tmp_path: Path
) -> None:
    """Whether the stall excuses, and whether another row was written in it -> the
    answer.
    """
    wanted = {
        EXCUSED: "inconclusive",
        ("open 2 5; touch 20; close_peer 21", "open 20 5; close_peer 21"): "pass",
        ("open 2 5; touch 3; close_peer 4", "open 10 5; close_peer 11"): "pass",
    }
    found = {}
    for number, scripts in enumerate(wanted):
        within_a_stall(tmp_path / f"{number}", *scripts)
        summary = audited(spark, tmp_path / f"{number}").summary
        found[scripts] = summary["result"]
        if summary["reasons"]:
            assert summary["reasons"][0].startswith("1 silence(s) beyond their timeout are excused")
    assert found == wanted


def closed_by_neither(directory: Path) -> None:
    """Of forty pairs one that each side says the other closed."""
    with journal(directory / "server", 1) as ours, journal(directory / "client", 2) as theirs:
        for peer in range(40):
            script = "both 0 5; close_peer 3; c.close_peer 3"
            play(ORDINARY[2] if peer else script, LATER, ours, theirs, peer)


def test_pairs_that_neither_side_closed_leave_it_open(spark: Any, tmp_path: Path) -> None:
    closed_by_neither(tmp_path)
    summary = audited(spark, tmp_path).summary
    assert summary["result"] == "inconclusive"
    assert summary["reasons"][0].startswith("1 of 40 pair(s) were closed by neither side")


def test_a_journal_is_no_witness_of_itself(pipeline: Ran, tmp_path: Path) -> None:
    write(tmp_path / "both" / "server", tmp_path / "both" / "client", connections=5)
    sides = {"server": tmp_path / "both" / "server", "parent": tmp_path / "both"}
    for events, client in (("server", "server"), ("parent", "server"), ("server", "parent")):
        status, _, said = pipeline(
            *("audit", "--events", sides[events], "--client", sides[client]),
            *("--out", tmp_path / "out"),
        )
        assert (status, said.count("\n"), (tmp_path / "out").exists()) == (2, 1, False)
        assert "one journal cannot confirm itself" in said


# ---- both sides

ORDINARY = ("ok_reaped", LATER, "both 0 5; reap 5.5 5; c.close_peer 5.501")
JOINED: dict[str, tuple[str, int, str]] = {
    "sent_a_byte_that_was_never_noticed": (
        "early",
        LATER,
        ("both 0 5; c.touch 3; reap 6 6; c.close_peer 6.001"),
    ),
    "sent_as_the_reap_was_on_its_way": (
        "ok_reaped",
        LATER,
        ("both 0 5; c.touch 5.99; reap 6 6; c.close_peer 6.001"),
    ),
    "active_to_the_server_and_silent_to_the_client": (
        "missed",
        LATER,
        "both 0 5; touch 57; c.close_app 60; close_peer 60.001",
    ),
    "closed_by_the_server_which_says_nothing": ("lost", LATER, "both 0 5; c.close_peer 8"),
    "seen_four_seconds_after_it_was_due": ("late", LATER, "both 0 5; reap 5.01 5; c.close_peer 9"),
    "never_closed_as_its_client_knows": ("lost", 0, "both 1 5; c.touch 10; c.close_app 2990"),
    # The server's own log tells that nothing came.
    "never_closed_but_its_client_sends": ("lost", 0, "both 1 5; c.touch 2999"),
    "never_closed_and_no_timeout_in_force": (
        "lost",
        0,
        ("c.open 1 0; c.close_app 2990; open 1 5"),
    ),
    "seen_late_by_a_client_that_was_stalled": (
        "ok_reaped",
        0,
        ("both 100 5; reap 105.5 105; c.close_peer 108"),
    ),
    "seen_later_than_that_stall": ("late", 0, "both 100 5; reap 105.5 105; c.close_peer 110"),
    "left_in_time_and_noticed_later": ("ok_closed", LATER, "both 0 5; c.close_app 4; close_peer 7"),
    "late_by_what_both_sides_share_of_a_stall": (
        "late",
        0,
        ("both 200 5; reap 206 205; c.close_peer 209"),
    ),
    **{f"ordinary {number}": ORDINARY for number in range(21)},
}
EXPECTED_JOINED = {name: verdict for name, (verdict, _, _) in JOINED.items()}


def write_both(directory: Path, ahead: int = 0, mode: str = "gaps") -> dict[int, str]:
    """Both sides of every case, the client's clock *ahead*; connection -> name of its
    case.
    """
    client = Clock(step=ahead)
    with (
        journal(directory / "server", 1, mode=mode) as ours,
        journal(directory / "client", 2, client, mode=mode) as theirs,
    ):
        theirs.stall(108 * S, 2 * S)
        for side in (ours, theirs):
            side.stall(209 * S, 2 * S)
        cases = enumerate(JOINED.items())
        named = {
            play(script, base, ours, theirs, peer): name
            for peer, (name, (_, base, script)) in cases
        }
        for side in (ours, theirs):
            side.config(LOG_END, "still here")
    return named


@pytest.mark.parametrize(
    ("ahead", "mode"), [(0, "gaps"), (3 * S, "full")], ids=["one clock", "a clock 3 s ahead"]
)
def test_what_both_sides_tell_together_gets_its_verdict(
    spark: Any, tmp_path: Path, ahead: int, mode: str
) -> None:
    names = write_both(tmp_path, ahead, mode)
    result = audited(spark, tmp_path)
    assert named_verdicts(result, names) == EXPECTED_JOINED
    assert result.summary["joined"] == {
        "pairs": len(JOINED),
        "server_only": 0,
        "client_only": 0,
        "crossed": 1,
    }
    assert result.summary["clock"]["skew_s"]["estimate"] == pytest.approx(-ahead / S, abs=0.002)


# ---- clocks that drift


HOUR = 3600 * S


@dataclass
class Drifting(Clock):
    """A clock that runs fast by *ppm*; the wall clock beside it is right, or runs fast
    with it.
    """

    ppm: int = 0
    wall_is_right: bool = False

    def at(self, true: int) -> int:
        """What the clock says at an instant that is right, and from now on."""
        self.now = true + true * self.ppm // 10**6
        self.true = true
        return self.now

    def wall(self) -> int:
        return WALL + (self.true if self.wall_is_right else self.now)


def hours_apart(
    directory: Path, clock: Drifting, early: int | None = None, jitter: int = 0
) -> None:
    """A hundred connections over eight hours, of a client with *clock*; reaped in time
    but for the number *early*, whose client sent a byte that was never noticed.
    """
    chance = random.Random(3)
    clock.at(0)
    with (
        journal(directory / "server", 1) as ours,
        journal(directory / "client", 2, clock) as theirs,
    ):
        for number in range(100):
            t = S + number * 8 * HOUR // 100
            log = ours.open(t, 5000, "echo", peer=number)
            by = chance.randint(-jitter, jitter)
            other = theirs.open(clock.at(t) + by, 5000, "echo", peer=number)
            if number == early:
                other.touch(clock.at(t + 3 * S) + by)
            log.reap(t + 5 * S + 500 * MS, t + 5 * S)
            other.close_peer(clock.at(t + 5 * S + 502 * MS) + by)
            theirs.flush()
        ours.drain(9 * HOUR)
        theirs.drain(clock.at(9 * HOUR))


@pytest.mark.parametrize("wall_is_right", [False, True])
@pytest.mark.parametrize("ppm", [20, -100])
def test_clocks_that_drift_apart_accuse_nobody(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ppm: int, wall_is_right: bool
) -> None:
    monkeypatch.setattr("reaper.journal.writer.ANCHOR_SECONDS", 0.0)
    hours_apart(tmp_path, Drifting(ppm=ppm, wall_is_right=wall_is_right))
    summary = audited(spark, tmp_path).summary
    assert (summary["result"], counts(summary)) == ("pass", {"ok_reaped": 100}), summary["reasons"]
    assert summary["clock"]["skew_s"]["spread"] < 0.02


def test_clocks_that_drift_apart_hide_nobody(spark: Any, tmp_path: Path) -> None:
    hours_apart(tmp_path, Drifting(ppm=100), early=40)
    summary = audited(spark, tmp_path).summary
    assert (summary["result"], counts(summary)) == ("fail", {"ok_reaped": 99, "early": 1})


def test_pairs_of_which_one_was_seen_late_say_nothing_of_their_clocks() -> None:
    # The client saw the end 161 s after the server's close: a skew of half of that
    # would hide it.
    assert knots_of([(50 * S, 2, -161 * S, 0)]) == []
    assert knots_of([(50 * S, 2, -161 * S, -160 * S)]) == [(50 * S, -160_500 * MS)]
    # Of two that lasted, the beginnings belong to another time.
    assert knots_of([(50 * S, 1, -20 * MS, None), (60 * S, 1, -81 * S, None)]) == []
    assert knots_of([(50 * S, 1, -20 * MS, None)]) == [(50 * S, -20 * MS)]
    assert knots_of([(50 * S, 16, -81 * S, None)]) == [(50 * S, -81 * S)]


def test_where_no_pair_tells_how_far_apart_the_clocks_are_none_was_compared(
    spark: Any, tmp_path: Path
) -> None:
    """Of two that lasted, one was seen 81 s late: a skew would hide it, and without one
    nothing is compared. That is counted, although each side's rows agree.
    """
    client = Drifting(ppm=0)
    with (
        journal(tmp_path / "server", 1) as ours,
        journal(tmp_path / "client", 2, client) as theirs,
    ):
        for number, seen_after in enumerate((10 * MS, 81 * S)):
            log = ours.open(S, 100_000, "echo", peer=number)
            other = theirs.open(client.at(S), 100_000, "echo", peer=number)
            log.reap(101 * S, 101 * S)
            other.close_peer(client.at(101 * S) + seen_after)
        ours.drain(HOUR)
        theirs.drain(client.at(HOUR))
    summary = audited(spark, tmp_path).summary
    assert not summary["clock"]["one_clock"]
    assert summary["unproven"]["clocks_not_compared"] == 2
    assert summary["result"] == "inconclusive", summary["reasons"]


def test_clocks_that_jump_to_and_fro_leave_it_open_and_accuse_nobody(
    spark: Any, tmp_path: Path
) -> None:
    hours_apart(tmp_path, Drifting(), jitter=600 * MS)
    summary = audited(spark, tmp_path).summary
    assert (summary["result"], counts(summary)) == ("inconclusive", {"ok_reaped": 100})
    assert "pairs of rows contradict their skew by up to" in summary["reasons"][0]


PLANTED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a timeout below the threshold": (lambda place: brief_silence(place, 300, 1.0), "inconclusive"),
    "a reap that says nothing": (silent_reap, "inconclusive"),
    "closed by neither side": (closed_by_neither, "inconclusive"),
    "a stall of a busy loop": (lambda place: within_a_stall(place, *EXCUSED), "inconclusive"),
    "clocks that drift": (lambda place: hours_apart(place, Drifting(ppm=100)), "pass"),
    "clocks that drift, and one early": (
        lambda place: hours_apart(place, Drifting(ppm=100), early=40),
        "fail",
    ),
    "clocks that jump": (
        lambda place: hours_apart(place, Drifting(), jitter=600 * MS),
        "inconclusive",
    ),
}
"""What makes an audit unproven, or must not: its journals, and the answer. Both engines
are asked.
"""

# ---- what cannot be judged


def one_sided(directory: Path, writer: int, peers: range, **options: Any) -> None:
    """A journal of reaps in time, of these *peers*."""
    with journal(directory, writer, **options) as ours:
        for peer in peers:
            ours.open(S, 5000, "echo", peer=peer).reap(6 * S + 500 * MS, 6 * S)
        ours.drain(LOG_END)


@pytest.mark.parametrize(
    ("clients", "reason"),
    [
        (None, "none of its files could be read"),
        (range(50, 90), "none of the client's 40 connection(s) is among the server's 40"),
        (
            range(1, 42),
            "0 of the server's 40 connection(s) and 1 of the client's 41 have no counterpart",
        ),
        (
            range(1, 40),
            "1 of the server's 40 connection(s) and 0 of the client's 39 have no counterpart",
        ),
    ],
    ids=["no file", "another server's", "one more", "one less"],
)
def test_a_joined_audit_that_did_not_join_is_inconclusive(
    spark: Any, tmp_path: Path, clients: range | None, reason: str
) -> None:
    one_sided(tmp_path / "server", 1, range(1, 41))
    (tmp_path / "client").mkdir()
    if clients is not None:
        with journal(tmp_path / "client", 2) as theirs:
            for peer in clients:
                theirs.open(S, 5000, "echo", peer=peer).close_peer(6 * S + 501 * MS)
    summary = audited(spark, tmp_path).summary
    assert (summary["result"], summary["verdicts"]["ok_reaped"]) == ("inconclusive", 40)
    assert any(reason in text for text in summary["reasons"])
    assert "audit: INCONCLUSIVE" in as_text(summary)


def test_a_file_without_anchors_leaves_every_other_run_on_its_clock(
    spark: Any, tmp_path: Path
) -> None:
    names = write_both(tmp_path, 3 * S)
    one_sided(tmp_path / "server", 5, range(500, 501))
    (lone,) = (tmp_path / "server").glob("*w0000005*.parquet")
    table = pq.read_table(lone)
    kept = {key: value for key, value in table.schema.metadata.items() if b"anchors" not in key}
    pq.write_table(table.replace_schema_metadata(kept), lone)
    result = audited(spark, tmp_path)
    assert named_verdicts(result, names) == EXPECTED_JOINED
    assert (result.summary["result"], result.summary["joined"]["server_only"]) == ("fail", 1)
    assert any("1 run(s) have no anchors" in reason for reason in result.summary["reasons"])


def three_files(directory: Path) -> list[Path]:
    """A run of three files: one connection has a row in each, one is overdue in the
    second.
    """
    with journal(directory, 1, rotate_bytes=1) as ours:
        log, wrong = ours.open(S, 5000, "echo"), ours.open(S, 5000, "echo")
        ours.flush()
        log.touch(3 * S)
        wrong.touch(60 * S)
        ours.flush()
        log.close_peer(4 * S)
        wrong.close_peer(61 * S)
        ours.drain(62 * S)
        ours.flush()
    return sorted(directory.glob("*.parquet"))


@pytest.mark.parametrize("how", ["gone", "put aside"])
def test_a_file_missing_between_others_is_named_and_accuses_no_server(
    spark: Any, tmp_path: Path, how: str
) -> None:
    middle = three_files(tmp_path / "server")[1]
    if how == "gone":
        middle.unlink()
    else:
        table = pq.read_table(middle)
        pq.write_table(table.set_column(0, "t", pa.array([1 << 61] * table.num_rows)), middle)
    summary = audited(spark, tmp_path).summary
    assert counts(summary) == {"unknown": 2}
    assert summary["result"] == "inconclusive"
    if how == "gone":
        assert [(hole["writer"], hole["serials"]) for hole in summary["holes"]] == [(1, [2])]
        assert any(
            "1 file(s) of run" in reason and "number 2" in reason for reason in summary["reasons"]
        )
        first = check([tmp_path / "server"], now_ns=WALL, span=Span(None, WALL + 2 * S))
        assert first.holes == []
    else:
        assert summary["holes"] == []
        assert "put aside" in summary["reasons"][0]


def test_oldest_files_that_retention_took_are_no_hole(tmp_path: Path) -> None:
    three_files(tmp_path / "server")[0].unlink()
    assert check([tmp_path / "server"], now_ns=WALL).holes == []


def test_rows_that_belong_to_no_known_run_leave_the_audit_inconclusive(
    spark: Any, tmp_path: Path
) -> None:
    for writer in (5, 6):
        with journal(tmp_path / "server", writer) as ours:
            ours.open(S, 5000, "echo").reap(7 * S, 6 * S)
            ours.drain(8 * S)
    inputs = check([tmp_path / "server"], now_ns=WALL)
    inputs.runs.pop()  # as if one file held the rows of two writers, and only one were known
    summary = audit(spark, inputs, None, tmp_path / "out", Settings()).summary
    assert (summary["rows_read"], summary["rows"], summary["rows_of_writers"]) == (6, 2, 2)
    assert summary["result"] == "inconclusive"
    assert any("2 row(s) were judged by no rule" in reason for reason in summary["reasons"])


def test_connections_name_their_run_as_the_files_do(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "server", tmp_path / "client", connections=10)
    named = {
        side: pq.read_schema(only(tmp_path / side)).metadata[b"reaper.run"].decode()
        for side in ("server", "client")
    }
    server, client = (check([tmp_path / side], now_ns=WALL) for side in named)
    rows = audit(spark, server, client, tmp_path / "out", Settings()).connections.collect()
    assert {(row.run, row.run_number) for row in rows} == {(named["server"], 0)}
    assert {(row.c_run, row.c_run_number) for row in rows} == {(named["client"], 0)}


def test_a_connection_is_of_the_day_of_its_end(spark: Any, tmp_path: Path) -> None:
    day = 24 * 3600 * S
    midnight = day - WALL % day
    with journal(tmp_path / "server", 1) as ours:
        play("open 0 5; touch 2; close_peer 3", midnight - 10 * S, ours)
        play("open 0 5; touch 2; close_peer 3", midnight - 2 * S, ours)
        play("open 0 5", midnight + S, ours)  # the log ends on this day
    rows = audited_rows(spark, tmp_path)
    (with_clock,) = {row.day for row in rows[:1]}
    assert [(row.day - with_clock).days for row in rows] == [0, 1, 1]
    assert with_clock == datetime.fromtimestamp(WALL // S, UTC).date()
    path = only(tmp_path / "server")
    table = pq.read_table(path)
    told = {key: v for key, v in table.schema.metadata.items() if key != b"reaper.anchors"}
    pq.write_table(table.replace_schema_metadata(told), path)
    assert {row.day for row in audited_rows(spark, tmp_path)} == {None}


def audited_rows(spark: Any, place: Path) -> list[Any]:
    server = check([place / "server"], now_ns=WALL)
    found = audit(spark, server, None, place / "out", Settings())
    rows: list[Any] = found.connections.orderBy("conn").collect()
    return rows


# ---- which files are looked through


def test_an_audit_looks_through_the_files_that_have_overdue_silences_and_no_other(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_through: list[Inputs] = []

    def noted(spark: Any, inputs: Inputs) -> Any:
        looked_through.append(inputs)
        return read_events(spark, inputs)

    monkeypatch.setattr("reaper.pipeline.audit.silences.read_events", noted)
    for writer in (1, 2, 3, 4):
        place = tmp_path / ("wrong" if writer % 2 else "right") / "server" / f"{writer}"
        with journal(place, writer) as ours:
            ours.open(S, 5000, "echo").reap(
                7 * S + writer % 2 * 5 * S, 6 * S
            )  # of 1 and 3: 5 s late
            log = ours.open(LATER, 5000, "echo")
            log.averted(LATER + 5 * S + 500 * MS)
            log.touch(LATER + 5 * S + 500 * MS)
            log.close_peer(LATER + 6 * S)
    summary = audited(spark, tmp_path / "right").summary
    assert (summary["result"], looked_through) == ("pass", [])
    (tmp_path / "right" / "server").rename(tmp_path / "wrong" / "server" / "right")
    assert counts(audited(spark, tmp_path / "wrong").summary) == {
        "late": 2,
        "ok_reaped": 2,
        "ok_closed": 4,
    }
    (chosen,) = looked_through
    assert [facts.writer for facts in chosen.files] == [1, 3]


@pytest.mark.parametrize(
    ("script", "drains", "reads"),
    [
        ("open 0 5; touch 2; reap 7.5 7", False, 3),
        ("open 0 5; averted 5.5; touch 5.6; reap 11 10.6", False, 4),
        ("open 0 5; touch 2; retime 9; reap 11.5 11", False, 4),
        ("open 0 5; touch 2", False, 5),
        ("open 0 5; touch 2", True, 3),
    ],
)
def test_an_audit_looks_for_no_rows_that_no_file_has(
    spark: Any, tmp_path: Path, script: str, drains: bool, reads: int
) -> None:
    """Openings, ends and activities are read one after the other; changes of a timeout
    and open connections only where there are any, the latter beside the ends.
    """
    with journal(tmp_path, 1) as ours:
        play(script, S, ours)
        if drains:
            ours.drain(20 * S)
    inputs = check([tmp_path], now_ns=WALL)
    asked: Any = lifetimes(read_events(spark, inputs), inputs.files)
    query = asked._query
    assert query.count("read_parquet(") == reads
    everything = lifetimes(read_events(spark, inputs))
    ended = everything.drop(*(name for name in everything.columns if name.startswith("told")))
    columns = [name for name in ended.columns if name != "last_t" or not drains]
    assert asked.select(*columns).collect() == ended.select(*columns).collect()


def test_a_final_check_spares_a_silence_that_ends_in_a_later_file(
    spark: Any, tmp_path: Path
) -> None:
    with journal(tmp_path / "server", 1, rotate_bytes=1) as ours:
        log = ours.open(LATER, 5000, "echo")
        log.averted(LATER + 5 * S + 500 * MS)
        ours.flush()
        log.reap(LATER + 11 * S + 200 * MS, LATER + 11 * S)
        ours.flush()
    files = check([tmp_path / "server"], now_ns=WALL).files
    assert [(facts.averted, facts.overdue_ns) for facts in files] == [
        (1, 500 * MS),
        (0, 6 * S + 200 * MS),
    ]
    assert counts(audited(spark, tmp_path).summary) == {"ok_reaped": 1}


# ---- simulated traffic


def test_traffic_that_kept_the_law_passes_and_its_lateness_is_within_one_tick(
    spark: Any, tmp_path: Path
) -> None:
    wanted = write(
        tmp_path / "server", tmp_path / "client", connections=120, listeners=("echo", "http")
    )
    summary = audited(spark, tmp_path).summary
    assert summary["reasons"] == []
    assert counts(summary) == {name: count for name, count in wanted.items() if count}
    assert summary["joined"] == {"pairs": 120, "server_only": 0, "client_only": 0, "crossed": 0}
    assert set(summary["listeners"]) == {"echo", "http"}
    for entry in summary["listeners"].values():
        assert (
            0
            <= entry["lateness_s"]["min"]
            <= entry["lateness_s"]["p99"]
            <= entry["lateness_s"]["max"]
            < 1.01
        )
        assert 0 < entry["seen_lateness_s"]["max"] < 1.02


def test_a_row_that_was_removed_or_doubled_is_found_without_sorting(
    spark: Any, tmp_path: Path
) -> None:
    with journal(tmp_path / "server", 1) as ours:
        for _ in range(5):
            log = ours.open(S, 5000, "echo")
            log.touch(2 * S)
            log.touch(3 * S)
            log.close_peer(4 * S)
        ours.drain(5 * S)
    table = pq.read_table(
        only(tmp_path / "server")
    )  # of each connection four rows, then the writer's
    right, without_touch, gone, without_opening, doubled = (
        [i * 4 + row for row in range(4)] for i in range(5)
    )
    del without_touch[1], without_opening[0], gone[:]
    rows = [*right, *without_touch, *without_opening, *doubled, doubled[1], table.num_rows - 1]
    pq.write_table(table.take(rows), only(tmp_path / "server"))
    summary = audited(spark, tmp_path).summary
    assert counts(summary) == {
        "ok_closed": 1,
        "missing_touch": 1,
        "unknown": 1,
        "duplicate": 1,
        "lost": 1,
    }
    assert summary["lost_without_a_row"] == 1


def test_two_uses_of_one_port_are_distinguished_by_time(spark: Any, tmp_path: Path) -> None:
    with journal(tmp_path / "server", 1) as ours, journal(tmp_path / "client", 2) as theirs:
        for turn in range(5):
            script = "c.open 0 5; open 0.001 5; reap 5.5 5.5; c.close_peer 5.501"
            play(script, (1 + 20 * turn) * S, ours, theirs, peer=7)
    summary = audited(spark, tmp_path).summary
    assert (counts(summary), summary["joined"]["pairs"]) == ({"ok_reaped": 5}, 5)
    assert summary["listeners"]["echo"]["seen_lateness_s"]["max"] == pytest.approx(0.501)


def test_the_audit_command_fails_on_a_violation_and_on_a_file_put_aside(
    pipeline: Ran, tmp_path: Path
) -> None:
    write(tmp_path / "good", connections=8)
    write(tmp_path / "bad", connections=8, faults={"late": 1})

    def run(name: str) -> tuple[int, dict[str, Any]]:
        status, said, _ = pipeline(
            "audit", "--events", tmp_path / name, "--out", tmp_path / "out", "--json"
        )
        assert said == (tmp_path / "out" / "audit.json").read_text()
        return status, json.loads(said)

    assert run("good")[0] == 0
    assert run("bad")[0] == 1
    (tmp_path / "good" / "half.parquet").write_bytes(b"PAR1")
    status, summary = run("good")
    assert (status, summary["verdicts"]["ok_reaped"]) == (1, 6)
    assert "truncated" in summary["files"]["quarantined"][0]["reason"]


def test_the_demo_of_attach_passes_with_the_journals_of_both_sides_joined(
    spark: Any, tmp_path: Path
) -> None:
    assert attach_demo.run(200, 3, tmp_path) == 0
    server, client = check([tmp_path / "attach"]), check([tmp_path / "client"])
    summary = audit(spark, server, client, tmp_path / "audit", Settings()).summary
    assert counts(summary) == {"ok_reaped": 100, "ok_closed": 100}
    assert summary["joined"]["pairs"] == 200
