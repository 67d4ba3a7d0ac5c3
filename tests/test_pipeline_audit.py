"""Traps for an audit: connections that look right and are wrong, and the other way round. One audit judges all that a
server's journal alone must tell, one all that takes both sides; and journals whose files, clocks or peers are at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from pipeline_traffic import MS, WALL, Clock, S, journal

from reaper.journal import ConnectionLog, Journal
from reaper.pipeline.audit.run import Audit, Settings, as_text, audit
from reaper.pipeline.audit.verdicts import VERDICTS
from reaper.pipeline.read.frames import read_events
from reaper.pipeline.read.inputs import Inputs, check
from reaper.pipeline.read.span import Span

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


def spared_and_forgotten(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER, 30_000)
    log.averted(LATER + 30 * S + 100 * MS)
    log.close_peer(LATER + 98 * S)  # 68 s of nothing after the check
    return log


def spared_twice_and_in_time(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.averted(LATER + 5 * S + 500 * MS)
    log.averted(LATER + 11 * S)
    log.touch(LATER + 13 * S)
    log.close_peer(LATER + 14 * S)
    return log


def spared_and_reaped_at_once(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.averted(LATER + 5 * S + 500 * MS)
    log.reap(LATER + 5 * S + 700 * MS, LATER + 5 * S + 700 * MS)
    return log


def idle_until_its_deadline(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER, 30_000)
    log.touch(LATER + 20 * S)
    log.reap(LATER + 100 * S, LATER + 100 * S, "max_age", deadline=True)
    return log


def busy_until_its_deadline(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER, 30_000)
    log.touch(LATER + 20 * S)
    log.timeout_ms = 0
    log.reap(LATER + 100 * S, LATER + 100 * S, "max_age", deadline=True)
    return log


def reaped_by_a_timeout_that_was_never_in_force(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER, 30_000)
    log._timeout_ms = 5000  # no row says that it was changed
    log.reap(LATER + 6 * S, LATER + 5 * S)
    return log


def reaped_late_by_a_timeout_that_was_never_in_force(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log._timeout_ms = 30_000
    log.reap(LATER + 31 * S, LATER + 30 * S)
    return log


def reaped_by_a_timeout_that_a_row_changed(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER, 30_000)
    log.timeout_ms = 5000
    log.reap(LATER + 6 * S, LATER + 5 * S)
    return log


def active_before_it_was_opened(ours: Journal) -> ConnectionLog:
    log = opened(ours, LATER)
    log.gap(LATER - 3 * S, LATER - S)
    log.close_peer(LATER + S)
    return log


def silent_since_a_stall_long_ago(ours: Journal) -> ConnectionLog:
    return opened(ours, LOG_END - 12 * S)  # the loop stood still for longer, but not then


EXPECTED: dict[Trap, str] = {
    spared_and_forgotten: "missed",
    spared_twice_and_in_time: "ok_closed",
    spared_and_reaped_at_once: "early",
    idle_until_its_deadline: "missed",
    busy_until_its_deadline: "ok_reaped",
    reaped_by_a_timeout_that_was_never_in_force: "early",
    reaped_late_by_a_timeout_that_was_never_in_force: "late",
    reaped_by_a_timeout_that_a_row_changed: "ok_reaped",
    active_before_it_was_opened: "unknown",
    silent_since_a_stall_long_ago: "lost",
    final_check_of_another_silence: "missed",
    final_check_too_late: "missed",
    spared_and_read_late: "missed",
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


def write_traps(directory: Path, traps: Iterable[Trap] = EXPECTED, mode: str = "full") -> dict[int, str]:
    """A journal of *traps*; connection -> name of its trap."""
    with journal(directory, 1, mode=mode) as ours:
        ours.stall(STALL[1], STALL[1] - STALL[0])
        for second in range(2, 24, 4):
            ours.stall(SHORT + second * S + 900 * MS, 900 * MS)
        named = {trap(ours).conn: trap.__name__ for trap in traps}
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


def verdicts_of(spark: Any, directory: Path, traps: Iterable[Trap], mode: str) -> dict[str, str]:
    named = write_traps(directory / "server", traps, mode)
    result = audit(spark, check([directory / "server"], now_ns=WALL), None, directory / "out", Settings())
    return {named[row.conn]: row.verdict for row in result.connections.select("conn", "verdict").collect()}


def test_alone_in_its_journal_each_trap_gets_the_same_verdict(spark: Any, tmp_path: Path) -> None:
    for trap, verdict in EXPECTED.items():
        assert verdicts_of(spark, tmp_path / trap.__name__, [trap], "full") == {trap.__name__: verdict}


IN_GAPS_MODE: dict[Trap, str] = {
    reaped_by_a_timeout_that_was_never_in_force: "ok_reaped",
    reaped_late_by_a_timeout_that_was_never_in_force: "ok_reaped",
    silent_since_a_stall_long_ago: "open_at_end",
    retimed_to_five_seconds: "open_at_end",
    retimed_to_five_seconds_and_silent: "open_at_end",
}
"""What a journal cannot know that writes neither short silences nor changes of a timeout."""


def test_in_gaps_mode_the_verdicts_are_the_same_but_where_no_row_could_tell(spark: Any, tmp_path: Path) -> None:
    wanted = {trap.__name__: verdict for trap, verdict in {**EXPECTED, **IN_GAPS_MODE}.items()}
    assert verdicts_of(spark, tmp_path, EXPECTED, "gaps") == wanted


def test_every_row_that_was_read_is_accounted_for(found: tuple[dict[str, str], dict[str, Any]]) -> None:
    summary = found[1]
    assert sum(summary["verdicts"].values()) == summary["connections"] == len(EXPECTED)
    changes_of_a_timeout = 12  # one a change and one before a deadline that came too late, none for a reap without
    assert summary["rows_of_writers"] == 2 + 6 + changes_of_a_timeout
    assert summary["rows_read"] == summary["rows"] + summary["rows_of_writers"]
    assert f"{summary['rows_read']:,} rows read" in as_text(summary)
    assert set(summary["verdicts"]) == set(VERDICTS)


# ---- both sides ------------------------------------------------------------------------------------------------------

Twice = Callable[[Journal, Journal, int], ConnectionLog]


def both(ours: Journal, theirs: Journal, peer: int, at: int = LATER) -> tuple[ConnectionLog, ConnectionLog]:
    return ours.open(at, 5000, "echo", peer=peer), theirs.open(at, 5000, "echo", peer=peer)


def sent_a_byte_that_was_never_noticed(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer)
    seen.touch(LATER + 3 * S)
    log.reap(LATER + 6 * S, LATER + 6 * S)
    seen.close_peer(LATER + 6 * S + MS)
    return log


def sent_as_the_reap_was_on_its_way(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer)
    seen.touch(LATER + 6 * S - 10 * MS)
    log.reap(LATER + 6 * S, LATER + 6 * S)
    seen.close_peer(LATER + 6 * S + MS)
    return log


def active_to_the_server_and_silent_to_the_client(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer)
    log.touch(LATER + 57 * S)
    seen.close_app(LATER + 60 * S)
    log.close_peer(LATER + 60 * S + MS)
    return log


def closed_by_the_server_which_says_nothing(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer)
    seen.close_peer(LATER + 8 * S)
    return log


def seen_four_seconds_after_it_was_due(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer)
    log.reap(LATER + 5 * S + 10 * MS, LATER + 5 * S)
    seen.close_peer(LATER + 9 * S)
    return log


def never_closed_as_its_client_knows(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer, S)
    seen.touch(10 * S)
    seen.close_app(2990 * S)
    return log


def never_closed_but_its_client_sends(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer, S)
    seen.touch(2999 * S)
    return log


def never_closed_and_no_timeout_in_force(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    seen = theirs.open(S, 0, "echo", peer=peer)
    seen.close_app(2990 * S)
    return ours.open(S, 5000, "echo", peer=peer)


def seen_late_by_a_client_that_was_stalled(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer, 100 * S)
    log.reap(105 * S + 500 * MS, 105 * S)
    seen.close_peer(108 * S)
    return log


def seen_later_than_that_stall(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer, 100 * S)
    log.reap(105 * S + 500 * MS, 105 * S)
    seen.close_peer(110 * S)
    return log


def left_in_time_and_noticed_later(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer)
    seen.close_app(LATER + 4 * S)
    log.close_peer(LATER + 7 * S)
    return log


def late_by_what_both_sides_share_of_a_stall(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer, 200 * S)
    log.reap(206 * S, 205 * S)
    seen.close_peer(209 * S)
    return log


def ordinary(ours: Journal, theirs: Journal, peer: int) -> ConnectionLog:
    log, seen = both(ours, theirs, peer)
    log.reap(LATER + 5 * S + 500 * MS, LATER + 5 * S)
    seen.close_peer(LATER + 5 * S + 501 * MS)
    return log


JOINED: dict[Twice, str] = {
    sent_a_byte_that_was_never_noticed: "early",
    sent_as_the_reap_was_on_its_way: "ok_reaped",
    active_to_the_server_and_silent_to_the_client: "missed",
    closed_by_the_server_which_says_nothing: "lost",
    seen_four_seconds_after_it_was_due: "late",
    never_closed_as_its_client_knows: "lost",
    never_closed_but_its_client_sends: "open_at_end",
    never_closed_and_no_timeout_in_force: "open_at_end",
    seen_late_by_a_client_that_was_stalled: "ok_reaped",
    seen_later_than_that_stall: "late",
    left_in_time_and_noticed_later: "ok_closed",
    late_by_what_both_sides_share_of_a_stall: "late",
    ordinary: "ok_reaped",
}
ORDINARY = 20


def write_both(directory: Path, ahead: int = 0, mode: str = "gaps") -> dict[int, str]:
    """Both sides of every case, the client's clock *ahead*; connection -> name of its case."""
    client = Clock(step=ahead)
    with (
        journal(directory / "server", 1, mode=mode) as ours,
        journal(directory / "client", 2, client, mode=mode) as theirs,
    ):
        theirs.stall(108 * S, 2 * S)
        for side in (ours, theirs):
            side.stall(209 * S, 2 * S)
        named = {case(ours, theirs, peer).conn: case.__name__ for peer, case in enumerate(JOINED)}
        for peer in range(100, 100 + ORDINARY):
            named[ordinary(ours, theirs, peer).conn] = ordinary.__name__
        for side in (ours, theirs):
            side.config(LOG_END, "still here")
    return named


@pytest.mark.parametrize(("ahead", "mode"), [(0, "gaps"), (3 * S, "full")], ids=["one clock", "a clock 3 s ahead"])
def test_what_both_sides_tell_together_gets_its_verdict(spark: Any, tmp_path: Path, ahead: int, mode: str) -> None:
    named = write_both(tmp_path, ahead, mode)
    result = joined(spark, tmp_path)
    found = {named[row.conn]: row.verdict for row in result.connections.select("conn", "verdict").collect()}
    wanted = {case.__name__: verdict for case, verdict in JOINED.items()}
    if mode == "full":  # the server's own log tells that nothing came
        wanted["never_closed_but_its_client_sends"] = wanted["never_closed_and_no_timeout_in_force"] = "lost"
    assert found == wanted
    pairs = len(JOINED) + ORDINARY
    assert result.summary["joined"] == {"pairs": pairs, "server_only": 0, "client_only": 0, "crossed": 1}
    assert result.summary["clock"]["skew_s"]["estimate"] == pytest.approx(-ahead / S, abs=0.002)


# ---- what cannot be judged -------------------------------------------------------------------------------------------


def joined(spark: Any, directory: Path) -> Audit:
    server, client = (check([directory / side], now_ns=WALL) for side in ("server", "client"))
    return audit(spark, server, client, directory / "out", Settings())


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
        (range(1, 42), "0 of the server's 40 connection(s) and 1 of the client's 41 have no counterpart"),
        (range(1, 40), "1 of the server's 40 connection(s) and 0 of the client's 39 have no counterpart"),
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
    summary = joined(spark, tmp_path).summary
    assert (summary["result"], summary["verdicts"]["ok_reaped"]) == ("inconclusive", 40)
    assert any(reason in text for text in summary["reasons"])
    assert "audit: INCONCLUSIVE" in as_text(summary)


def without_anchors(path: Path) -> None:
    table = pq.read_table(path)
    kept = {key: value for key, value in table.schema.metadata.items() if b"anchors" not in key}
    pq.write_table(table.replace_schema_metadata(kept), path)


def test_a_file_without_anchors_leaves_every_other_run_on_its_clock(spark: Any, tmp_path: Path) -> None:
    named = write_both(tmp_path, 3 * S)
    one_sided(tmp_path / "server", 5, range(500, 501))
    (lone,) = (path for path in (tmp_path / "server").glob("*.parquet") if "w0000005" in path.name)
    without_anchors(lone)
    result = joined(spark, tmp_path)
    rows = result.connections.select("conn", "verdict").collect()
    found = {named[row.conn]: row.verdict for row in rows if row.conn in named}
    assert found == {case.__name__: verdict for case, verdict in JOINED.items()}
    assert (result.summary["result"], result.summary["joined"]["server_only"]) == ("fail", 1)
    assert any("1 run(s) have no anchors" in reason for reason in result.summary["reasons"])


def three_files(directory: Path) -> list[Path]:
    """A run of three files: a connection with a row in each, and one that is overdue in the second."""
    with journal(directory, 1, rotate_bytes=1) as ours:
        log, wrong = opened(ours, S), opened(ours, S)
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
def test_a_file_missing_between_others_is_named_and_accuses_no_server(spark: Any, tmp_path: Path, how: str) -> None:
    middle = three_files(tmp_path / "server")[1]
    if how == "gone":
        middle.unlink()
    else:
        table = pq.read_table(middle)
        pq.write_table(table.set_column(0, "t", pa.array([1 << 61] * table.num_rows)), middle)
    inputs = check([tmp_path / "server"], now_ns=WALL)
    summary, _ = audited(spark, inputs, tmp_path / "out")
    assert {verdict: n for verdict, n in summary["verdicts"].items() if n} == {"unknown": 2}
    assert summary["result"] == "inconclusive"
    if how == "gone":
        assert [(hole["writer"], hole["serials"]) for hole in summary["holes"]] == [(1, [2])]
        assert any("1 file(s) of run" in reason and "number 2" in reason for reason in summary["reasons"])
        first = check([tmp_path / "server"], now_ns=WALL, span=Span(None, WALL + 2 * S))
        assert first.holes == []
    else:
        assert summary["holes"] == []
        assert "put aside" in summary["reasons"][0]


def test_oldest_files_that_retention_took_are_no_hole(tmp_path: Path) -> None:
    three_files(tmp_path / "server")[0].unlink()
    assert check([tmp_path / "server"], now_ns=WALL).holes == []


def test_rows_that_belong_to_no_known_run_leave_the_audit_inconclusive(spark: Any, tmp_path: Path) -> None:
    for writer in (5, 6):
        with journal(tmp_path / "server", writer) as ours:
            opened(ours, S).reap(7 * S, 6 * S)
            ours.drain(8 * S)
    inputs = check([tmp_path / "server"], now_ns=WALL)
    inputs.runs.pop()  # as if one file held the rows of two writers, and only one were known
    summary = audit(spark, inputs, None, tmp_path / "out", Settings()).summary
    assert (summary["rows_read"], summary["rows"], summary["rows_of_writers"]) == (6, 2, 1)
    assert summary["result"] == "inconclusive"
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
    summary, _ = audited(spark, wrong, tmp_path / "out")
    assert (summary["verdicts"]["late"], summary["verdicts"]["ok_reaped"], summary["connections"]) == (2, 2, 8)
    (chosen,) = looked_through
    assert [facts.writer for facts in chosen.files] == [1, 3]


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
    assert [(facts.averted, facts.overdue_ns) for facts in inputs.files] == [(1, 500 * MS), (0, 6 * S + 200 * MS)]
    summary, _ = audited(spark, inputs, tmp_path / "out")
    assert summary["verdicts"]["ok_reaped"] == 1
