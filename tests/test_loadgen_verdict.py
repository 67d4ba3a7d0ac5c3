"""The verdict: what the bounds prove is claimed, what they do not is not. Pure functions, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.judge.records import How, Record, RecordTable
from loadgen.judge.stalls import BUCKET, Answers, Stalls
from loadgen.judge.verdict import GRAIN, Finding, judge, judge_all
from loadgen.plan.behaviours import Behaviour
from loadgen.plan.plan import Law, make_plan
from loadgen.plan.scenario import from_mix

LAW = Law(timeout=5.0, tick=1.0)
SILENT: Behaviour = from_mix("silent").clients[0].behaviour(LAW.timeout, 100.0)
UNREAD: Behaviour = from_mix("unread").clients[0].behaviour(LAW.timeout, 100.0)
NONE = Stalls()


def record(
    closed_by: float,
    *,
    how: How = How.FIN,
    final: bool = True,
    overslept: bool = False,
    sent: float = 100.0,
    seen: float = 100.0,
    closed_after: float | None = None,
) -> Record:
    after = closed_by if closed_after is None else closed_after
    return Record(0, 0, how, final, overslept, 1, 99.0, 99.0, sent, seen, after, closed_by)


def judged(seen: Record, own: Stalls = NONE, server: Stalls = NONE, law: Law = LAW) -> Finding:
    return judge(seen, SILENT, law, own, server)


def stalled(instant: float, lag: float) -> Stalls:
    stalls = Stalls()
    stalls.add(instant, lag)
    return stalls


@pytest.mark.parametrize(
    ("closed_by", "category"),
    [(104.999, "early"), (105.0, "reaped"), (106.0, "reaped"), (106.0 + GRAIN / 2, "reaped"), (106.1, "late")],
)
def test_the_law_ends_where_it_says(closed_by: float, category: str) -> None:
    assert judged(record(closed_by)).category == category


@given(closed_by=st.floats(100, 104.99), lag=st.floats(0, 10))
def test_nothing_excuses_an_early_close(closed_by: float, lag: float) -> None:
    stalls = stalled(closed_by, lag)
    seen = record(closed_by, seen=closed_by, closed_after=100)
    assert judged(seen, stalls, stalls).category == "early"


def test_a_tolerated_early_close_keeps_its_raw_figure() -> None:
    finding = judged(record(104.9995), law=Law(5.0, 1.0, tolerance=0.001))
    assert finding.category == "reaped"
    assert finding.lateness == pytest.approx(-0.0005)


def test_time_in_our_own_queue_is_not_held_against_the_server() -> None:
    assert judged(record(106.3, closed_after=105.9)).category == "reaped"
    assert judged(record(106.3, closed_after=106.2)).category == "late"


def test_own_lag_counts_only_in_the_window_it_fell_into() -> None:
    assert judged(record(106.3), stalled(106.2, 0.4)).category == "reaped"
    assert judged(record(106.3), stalled(103.0, 0.4)).category == "late"
    assert judged(record(106.3), stalled(107.0, 0.4)).category == "late"


@pytest.mark.parametrize("ago", [4800.0, 4.0])
def test_a_stall_excuses_no_reap_that_is_late_in_a_window_of_its_own(ago: float) -> None:
    elsewhere = stalled(5000.0 - ago, 200.0)
    seen = record(5107.0, sent=5000.0, seen=5000.0)  # 102 s late
    assert judged(seen, elsewhere, elsewhere).category == "late"
    assert judged(seen, stalled(5106.0, 101.0)).category == "reaped"


@given(
    lags=st.lists(st.tuples(st.floats(0, 500), st.floats(0, 20)), max_size=20),
    start=st.floats(0, 500),
    length=st.floats(0, 500),
)
def test_a_window_of_any_length_holds_what_its_tenths_of_a_second_hold(
    lags: list[tuple[float, float]], start: float, length: float
) -> None:
    stalls = Stalls()
    for instant, lag in lags:
        stalls.add(instant, lag)
    first, last = int(start / BUCKET), int((start + length) / BUCKET) + 1
    inside = [lag for instant, lag in lags if first <= int(instant / BUCKET) <= last]
    assert stalls.between(start, start + length) == max(inside, default=0.0)


@pytest.mark.parametrize("excused", [0, 1, 2])
def test_more_than_one_reap_in_a_hundred_excused_proves_nothing(excused: int) -> None:
    plan = make_plan(from_mix("silent"), 100, LAW, 20.0, 1, 1)
    records = [record(106.3 if number < excused else 105.5) for number in range(100)]
    verdict = judge_all(plan, records, [NONE], stalled(106.2, 0.4))
    assert (verdict.excused, bool(verdict.doubts()), verdict.reasons(LAW)) == (excused, excused > 1, [])


def test_one_slow_answer_among_many_is_no_stall_of_the_server() -> None:
    answers = Answers()
    for number in range(100):
        answers.add(100.0 + number / 100, 0.001)
    answers.add(100.9, 0.8)
    assert answers.supported().longest == 0.0
    for _ in range(6):
        answers.add(100.9, 0.7)
    assert answers.supported().longest == 0.8


def test_a_stalled_server_is_within_the_law_but_named() -> None:
    finding = judged(record(106.3), server=stalled(106.2, 0.4))
    assert finding == ("reaped", pytest.approx(1.3), True)
    assert judged(record(106.3), own=stalled(106.2, 0.4)).excused


def test_a_stall_in_the_middle_of_a_silence_puts_the_reap_off_by_its_length() -> None:
    stall = stalled(103.0, 1.5)
    assert judged(record(107.4), server=stall) == ("reaped", pytest.approx(2.4), True)
    assert judged(record(107.6), server=stall).category == "late"
    assert judged(record(107.4), own=stall).category == "late"
    assert judged(record(107.4), server=stalled(99.0, 1.5)).category == "late"


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.05, 5)), max_size=8), st.floats(0, 30), st.floats(0, 30))
def test_stalls_that_overlap_count_each_second_once(
    pieces: list[tuple[float, float]], start: float, length: float
) -> None:
    stalls = Stalls()
    for instant, lag in pieces:
        stalls.add(instant, lag)
    spans = [((b + 0.5) * BUCKET - lag, (b + 0.5) * BUCKET) for b, lag in stalls.worst.items()]
    grid = [start + length * (number + 0.5) / 2000 for number in range(2000)]
    exact = sum(any(low <= at < high for low, high in spans) for at in grid) * length / 2000
    assert stalls.total(start, start + length) == pytest.approx(exact, abs=0.02 + 0.001 * length * len(spans))


def test_the_pace_of_a_busy_machine_is_no_stall() -> None:
    stalls = Stalls()
    for number in range(1000):
        stalls.add(number * 0.01, 0.04)
    assert stalls.total(0.0, 10.0) == 0.0


def test_a_late_answer_says_that_the_byte_was_read_late() -> None:
    assert judged(record(106.8, seen=100.9)).category == "reaped"
    assert judged(record(106.8, seen=100.5)).category == "late"


def test_an_overdue_connection_is_missed_only_when_no_bound_leaves_room() -> None:
    assert judged(record(104.0, how=How.OPEN)).category == "alive"
    assert judged(record(105.5, how=How.OPEN)).category == "undecided"
    assert judged(record(108.0, how=How.OPEN)).category == "missed"
    assert judged(record(108.0, how=How.OPEN, seen=103.0)).category == "undecided"


def test_a_live_connection_that_is_closed_is_a_false_reap() -> None:
    assert judged(record(103.0, final=False)).category == "false"
    assert judged(record(103.0, final=False, overslept=True)).category == "own_lag"
    assert judged(record(105.1, final=False)).category == "own_lag"
    aged = replace(LAW, max_age=4.0)
    assert judge(record(102.9, final=False), SILENT, aged, NONE, NONE).category == "false"
    assert judge(record(103.0, final=False), SILENT, aged, NONE, NONE).category == "announced"
    assert judged(record(200.0, final=False, how=How.OPEN)).category == "alive"


def test_what_the_law_says_nothing_about_is_never_judged() -> None:
    assert judge(record(103.0, final=False), UNREAD, LAW, NONE, NONE).category == "unjudged"


def test_counts_are_those_of_the_findings_and_every_violation_is_a_reason() -> None:
    plan = make_plan(from_mix("silent"), 1, LAW, 20.0, 1, 1)
    records = [record(104.0), record(105.5), record(107.0), record(120.0, how=How.OPEN), record(103.0, final=False)]
    verdict = judge_all(plan, records, [NONE], NONE)
    assert (verdict.expected, verdict.observed, verdict.beyond_tick) == (4, 4, 1)
    assert verdict.lateness == sorted(verdict.lateness)
    assert [reason.split(":")[0] for reason in verdict.reasons(LAW)] == ["1 early", "1 late", "1 missed", "1 false"]
    assert len(verdict.violations) == 4


def test_only_the_process_that_held_a_connection_excuses_it() -> None:
    plan = make_plan(from_mix("silent"), 2, LAW, 20.0, 1, 1)
    records = [record(106.3)._replace(connection=number) for number in (0, 1)]
    verdict = judge_all(plan, records, [stalled(106.2, 0.4), NONE], NONE)
    assert (verdict.categories["reaped"], verdict.categories["late"]) == (1, 1)


def test_a_run_that_showed_nothing_does_not_pass() -> None:
    plan = make_plan(from_mix("silent"), 1, LAW, 20.0, 1, 1)
    assert not judge_all(plan, [], [NONE], NONE).shown
    verdict = judge_all(plan, [record(103.0, final=False, overslept=True)], [NONE], NONE)
    assert any("own lag" in doubt for doubt in verdict.doubts())


def test_a_table_gives_back_the_records_it_was_given() -> None:
    table, more = RecordTable(), RecordTable()
    rows = [record(104.0 + number, overslept=number % 2 == 0) for number in range(5)]
    for row in rows[:2]:
        table.append(row)
    for row in rows[2:]:
        more.append(row)
    table.extend(more)
    assert list(table) == rows
