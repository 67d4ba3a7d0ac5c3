"""Traps for an audit: connections that look right and are wrong, and the other way round. One audit judges them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pipeline_traffic import MS, WALL, S, journal

from reaper.journal import ConnectionLog, Journal
from reaper.pipeline.audit.run import Settings, as_text, audit
from reaper.pipeline.audit.verdicts import VERDICTS
from reaper.pipeline.read.compact import compact
from reaper.pipeline.read.frames import read_events
from reaper.pipeline.read.inputs import Inputs, check

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STALL = (7 * S, 20 * S)
"""The loop of the judged server stood still from here to there."""
SHORT = 500 * S
"""From here on it lagged in every fourth second, by less than a tick: 2 to 2.9, 6 to 6.9, 10 to 10.9, ... 22.9."""
LATER = 1000 * S
"""From here on it never did."""
LOG_END = 3000 * S

Trap = Callable[[Journal], ConnectionLog]


def opened(ours: Journal, at: int, timeout: int = 5000) -> ConnectionLog:
    return ours.open(at, timeout, "echo")


def final_check_of_another_silence(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.touch(LATER + 60 * S)  # 55 s overdue, and not reaped
    log.averted(LATER + 65 * S + 500 * MS)
    log.touch(LATER + 65 * S + 500 * MS)
    log.close_peer(LATER + 66 * S)
    return log


def final_check_too_late(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.averted(LATER + 9 * S)
    log.touch(LATER + 9 * S)
    log.close_peer(LATER + 10 * S)
    return log


def spared_and_read_late(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.averted(LATER + 5 * S + 500 * MS)
    log.touch(LATER + 20 * S)
    log.close_peer(LATER + 21 * S)
    return log


def spared_then_reaped(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.averted(LATER + 5 * S + 500 * MS)
    log.reap(LATER + 11 * S + 200 * MS, LATER + 11 * S)
    return log


def spared_then_reaped_late(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.averted(LATER + 5 * S + 500 * MS)
    log.reap(LATER + 13 * S, LATER + 11 * S)
    return log


def stall_excuses_the_longest_alone(ours: Journal) -> ConnectionLog:
    log = opened(ours, S)
    log.touch(20 * S)  # 14 s overdue, in which the loop stood still for 13
    log.touch(30 * S)  # 5 s overdue, and the loop was awake
    log.close_peer(31 * S)
    return log


def stall_excuses_all(ours: Journal) -> ConnectionLog:
    log = opened(ours, 2 * S)
    log.touch(20 * S)
    log.close_peer(21 * S)
    return log


def stall_early_in_the_silence(ours: Journal) -> ConnectionLog:
    log = opened(ours, 6 * S, 30_000)
    log.reap(49 * S + 900 * MS, 49 * S)  # 13 s of its 43.9 are charged to no connection
    return log


def stall_early_and_yet_late(ours: Journal) -> ConnectionLog:
    log = opened(ours, 6 * S, 30_000)
    log.reap(51 * S, 49 * S)
    return log


def short_stalls_in_the_middle_excuse_nothing(ours: Journal) -> ConnectionLog:
    log = opened(ours, SHORT, 30_000)
    log.reap(SHORT + 34 * S, SHORT + 30 * S)  # 4 s late; the lags of 0.9 s within its silence were made up for
    return log


def short_stall_at_the_end(ours: Journal) -> ConnectionLog:
    log = opened(ours, SHORT + 7 * S + 500 * MS, 2500)
    log.reap(SHORT + 11 * S + 900 * MS, SHORT + 10 * S)  # the loop came back 0.9 s late
    return log


def short_stall_that_held_the_epoch_open(ours: Journal) -> ConnectionLog:
    log = opened(ours, SHORT + 9 * S + 500 * MS, 30_000)
    log.reap(SHORT + 41 * S + 600 * MS, SHORT + 40 * S + 900 * MS)
    return log


def early_beside_a_stall(ours: Journal) -> ConnectionLog:
    log = opened(ours, 6 * S, 30_000)
    log.reap(35 * S + 900 * MS, 35 * S + 900 * MS)
    return log


def retimed_to_an_hour(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.touch(LATER + 2 * S)
    log.timeout_ms = 3_600_000
    log.touch(LATER + 4 * S)
    log.touch(LOG_END - 1800 * S)
    return log


def retimed_to_five_seconds(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER, 3_600_000)
    log.touch(LATER + 2 * S)
    log.timeout_ms = 5000
    log.touch(LATER + 4 * S)
    return log


def retimed_to_an_hour_and_silent(ours: Journal) -> ConnectionLog:
    log = opened(ours, LOG_END - 60 * S)
    log.touch(LOG_END - 58 * S)
    log.timeout_ms = 0
    log.timeout_ms = 3_600_000
    return log


def retimed_to_five_seconds_and_silent(ours: Journal) -> ConnectionLog:
    log = opened(ours, LOG_END - 60 * S, 3_600_000)
    log.touch(LOG_END - 58 * S)
    log.timeout_ms = 0
    log.timeout_ms = 5000
    return log


def retimed_at_the_instant_of_a_row(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.averted(LATER + 1)
    log.timeout_ms = 3_600_000  # a nanosecond after the latest activity, as the row before
    return log


def switched_off_and_silent(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.timeout_ms = 0
    return log


def switched_off(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.timeout_ms = 0
    log.touch(LATER + 2 * S)
    return log


def reap_that_says_nothing(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.timeout_ms = None
    log.reap(LATER + 30 * S, None)  # type: ignore[arg-type]
    return log


EXPECTED: dict[Trap, str] = {
    final_check_of_another_silence: "missed",
    final_check_too_late: "missed",
    spared_and_read_late: "ok_closed",
    spared_then_reaped: "ok_reaped",
    spared_then_reaped_late: "late",
    stall_excuses_the_longest_alone: "missed",
    stall_excuses_all: "ok_closed",
    stall_early_in_the_silence: "ok_reaped",
    stall_early_and_yet_late: "late",
    short_stalls_in_the_middle_excuse_nothing: "late",
    short_stall_at_the_end: "ok_reaped",
    short_stall_that_held_the_epoch_open: "ok_reaped",
    early_beside_a_stall: "early",
    retimed_to_an_hour: "open_at_end",
    retimed_to_five_seconds: "lost",
    retimed_to_an_hour_and_silent: "open_at_end",
    retimed_to_five_seconds_and_silent: "lost",
    retimed_at_the_instant_of_a_row: "open_at_end",
    switched_off_and_silent: "open_at_end",
    switched_off: "open_at_end",
    reap_that_says_nothing: "unknown",
}


def write_traps(directory: Path) -> dict[int, str]:
    """A journal of every trap; connection -> name of its trap."""
    with journal(directory, 1) as ours:
        ours.stall(STALL[1], STALL[1] - STALL[0])
        for second in range(2, 24, 4):
            ours.stall(SHORT + second * S + 900 * MS, 900 * MS)
        named = {trap(ours).conn: trap.__name__ for trap in EXPECTED}
        ours.config(LOG_END, "still here")
    return named


@pytest.fixture(scope="module")
def found(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, Any]]:
    """Verdict of each trap, and the summary."""
    directory = tmp_path_factory.mktemp("traps")
    named = write_traps(directory / "server")
    result = audit(spark, check([directory / "server"], now_ns=WALL), None, directory / "out", Settings())
    rows = result.connections.select("conn", "verdict").collect()
    return {named[row.conn]: row.verdict for row in rows}, result.summary


@pytest.mark.parametrize("trap", EXPECTED, ids=lambda trap: trap.__name__)
def test_each_trap_gets_its_verdict(found: tuple[dict[str, str], dict[str, Any]], trap: Trap) -> None:
    assert found[0][trap.__name__] == EXPECTED[trap]


def test_every_row_that_was_read_is_accounted_for(found: tuple[dict[str, str], dict[str, Any]]) -> None:
    summary = found[1]
    assert sum(summary["verdicts"].values()) == summary["connections"] == len(EXPECTED)
    changes_of_a_timeout = 9  # one a change, but none for a reap that has none
    assert summary["rows_of_writers"] == 2 + 6 + changes_of_a_timeout
    assert summary["rows_read"] == summary["rows"] + summary["rows_of_writers"]
    assert f"{summary['rows_read']:,} rows read" in as_text(summary)
    assert set(summary["verdicts"]) == set(VERDICTS)


def test_rows_that_belong_to_no_known_run_fail_the_audit(spark: Any, tmp_path: Path) -> None:
    for writer in (5, 6):
        with journal(tmp_path / "server", writer) as ours:
            opened(ours, S).reap(7 * S, 6 * S)
            ours.drain(8 * S)
    inputs = check([tmp_path / "server"], now_ns=WALL)
    inputs.runs.pop()  # as if one file held the rows of two writers, and only one were known
    summary = audit(spark, inputs, None, tmp_path / "out", Settings()).summary
    assert (summary["rows_read"], summary["rows"], summary["rows_of_writers"]) == (6, 2, 1)
    assert summary["result"] == "fail"
    assert any("3 row(s) were judged by no rule" in reason for reason in summary["reasons"])


# ---- which files are looked through ----------------------------------------------------------------------------------


@pytest.fixture
def looked_through(monkeypatch: pytest.MonkeyPatch) -> list[Inputs]:
    """What audits look through for silences beyond their timeout."""
    seen: list[Inputs] = []

    def noted(spark: Any, inputs: Inputs) -> Any:
        seen.append(inputs)
        return read_events(spark, inputs)

    monkeypatch.setattr("reaper.pipeline.audit.silences.read_events", noted)
    return seen


def audited(spark: Any, inputs: Inputs, out: Path) -> tuple[Any, list[Any]]:
    """The summary, and the rows of `connections/`."""
    result = audit(spark, inputs, None, out, Settings())
    return result.summary, sorted(map(tuple, result.connections.collect()))


def test_an_audit_looks_through_the_files_that_have_overdue_silences_and_no_other(
    spark: Any, tmp_path: Path, looked_through: list[Inputs]
) -> None:
    for writer in (1, 2, 3, 4):
        with journal(tmp_path / "raw" / f"{writer}", writer) as ours:
            opened(ours, S).reap(7 * S + writer % 2 * 5 * S, 6 * S)  # of 1 and 3: 5 s late
            log = opened(ours, LATER)
            log.averted(LATER + 5 * S + 500 * MS)
            log.touch(LATER + 5 * S + 500 * MS)
            log.close_peer(LATER + 6 * S)
    right, wrong = (check([tmp_path / "raw" / name for name in names], now_ns=WALL) for names in ("24", "1234"))
    summary, _ = audited(spark, right, tmp_path / "out")
    assert (summary["result"], looked_through) == ("pass", [])
    summary, rows = audited(spark, wrong, tmp_path / "out")
    assert (summary["verdicts"]["late"], summary["verdicts"]["ok_reaped"], summary["connections"]) == (2, 2, 8)
    (chosen,) = looked_through
    assert [facts.writer for facts in chosen.files] == [1, 3]

    tables = [tmp_path / "first", tmp_path / "second"]
    for names, table in zip(("12", "4"), tables, strict=True):
        compact(spark, check([tmp_path / "raw" / name for name in names], now_ns=WALL), table, 1)
    mixed = check([*tables, tmp_path / "raw" / "3"], now_ns=WALL)
    again, same = audited(spark, mixed, tmp_path / "out")
    assert (again, same) == (summary, rows)
    assert ([facts.writer for facts in looked_through[1].files], looked_through[1].tables) == ([1, 3], mixed.tables[:1])


def test_a_final_check_in_an_earlier_file_spares_the_silence_that_ends_in_a_later_one(
    spark: Any, tmp_path: Path
) -> None:
    with journal(tmp_path / "server", 1, rotate_bytes=1) as ours:
        log = opened(ours, LATER)
        log.averted(LATER + 5 * S + 500 * MS)
        ours.flush()
        log.reap(LATER + 11 * S + 200 * MS, LATER + 11 * S)
        ours.flush()
    inputs = check([tmp_path / "server"], now_ns=WALL)
    assert [(facts.averted, facts.overdue_ns) for facts in inputs.files] == [(1, None), (0, 6 * S + 200 * MS)]
    summary, _ = audited(spark, inputs, tmp_path / "out")
    assert summary["verdicts"]["ok_reaped"] == 1


def test_more_overdue_silences_than_the_driver_keeps_are_judged_where_they_lie(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[dict[str, str], dict[str, Any]]
) -> None:
    named = write_traps(tmp_path / "server")
    monkeypatch.setattr("reaper.pipeline.audit.silences.MOST_ROWS", 3)
    result = audit(spark, check([tmp_path / "server"], now_ns=WALL), None, tmp_path / "out", Settings())
    assert {named[row.conn]: row.verdict for row in result.connections.select("conn", "verdict").collect()} == found[0]
