"""The verdict claims what the bounds prove, and nothing else. It is made of pure
functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.judge.records import How, Record
from loadgen.judge.stalls import BUCKET, Answers, Stalls
from loadgen.judge.verdict import GRAIN, Finding, Verdict, judge, judge_all
from loadgen.plan.behaviours import Behaviour
from loadgen.plan.plan import Law, make_plan
from loadgen.plan.scenario import from_mix

LAW = Law(timeout=5.0, tick=1.0)
SILENT = from_mix("silent").clients[0].behaviour(LAW.timeout, 100.0)
UNREAD = from_mix("unread").clients[0].behaviour(LAW.timeout, 100.0)
NONE = Stalls()
AGED = replace(LAW, max_age=4.0)


def record(closed_by: float, **more: Any) -> Record:
    """One that the server read at 100 s and closed then, unless *more* says
    otherwise.
    """
    closed = Record(0, 0, How.FIN, True, False, 1, 99.0, 99.0, 100.0, 100.0, closed_by, closed_by)
    return closed._replace(**more)


def judged(
    seen: Record,
    own: Stalls = NONE,
    server: Stalls = NONE,
    law: Law = LAW,
    behaviour: Behaviour = SILENT,
) -> Finding:
    return judge(seen, behaviour, law, own, server)


def stalled(*lags: tuple[float, float]) -> Stalls:
    """Those in which something came at an instant, so many seconds late."""
    stalls = Stalls()
    for instant, lag in lags:
        stalls.add(instant, lag)
    return stalls


def verdict_on(*seen: Record, own: Stalls = NONE, server: Stalls = NONE) -> Verdict:
    """On silent clients, one for each record, whose processes had the same lag."""
    plan = make_plan(from_mix("silent"), max(len(seen), 1), LAW, 20.0, 1, 1)
    return judge_all(plan, seen, [own], server)


LATE, LONG_LATE = record(106.3), record(5107.0, sent=5000.0, seen=5000.0)
MIDDLE = stalled((103.0, 1.5))
CLAIMS: dict[str, list[tuple[Record, dict[str, Any], str]]] = {
    "the law ends where it says": [
        (record(104.999), {}, "early"),
        (record(105.0), {}, "reaped"),
        (record(106.0), {}, "reaped"),
        (record(106.0 + GRAIN / 2), {}, "reaped"),
        (record(106.1), {}, "late"),
    ],
    "time in our own queue is not held against the server": [
        (record(106.3, closed_after=105.9), {}, "reaped"),
        (record(106.3, closed_after=106.2), {}, "late"),
    ],
    "own lag counts only in the window it fell into": [
        (LATE, {"own": stalled((106.2, 0.4))}, "excused"),
        (LATE, {"own": stalled((103.0, 0.4))}, "late"),
        (LATE, {"own": stalled((107.0, 0.4))}, "late"),
    ],
    "a stall excuses no reap that is late in a window of its own": [
        *(
            (LONG_LATE, dict.fromkeys(("own", "server"), stalled((at, 200.0))), "late")
            for at in (200.0, 4996.0)
        ),
        (LONG_LATE, {"own": stalled((5106.0, 101.0))}, "excused"),
    ],
    "a stalled server is within the law but named": [
        (LATE, {"server": stalled((106.2, 0.4))}, "excused")
    ],
    "a stall in the middle of a silence puts the reap off by its length": [
        (record(107.4), {"server": MIDDLE}, "excused"),
        (record(107.6), {"server": MIDDLE}, "late"),
        (record(107.4), {"own": MIDDLE}, "late"),
        (record(107.4), {"server": stalled((99.0, 1.5))}, "late"),
    ],
    "a late answer says that the byte was read late": [
        (record(106.8, seen=100.9), {}, "excused"),
        (record(106.8, seen=100.5), {}, "late"),
    ],
    "an overdue connection is missed only when no bound leaves room": [
        (record(104.0, how=How.OPEN), {}, "alive"),
        (record(105.5, how=How.OPEN), {}, "undecided"),
        (record(108.0, how=How.OPEN), {}, "missed"),
        (record(108.0, how=How.OPEN, seen=103.0), {}, "undecided"),
        (record(200.0, final=False, how=How.OPEN), {}, "alive"),
    ],
    "a live connection that is closed is a false reap": [
        (record(103.0, final=False), {}, "false"),
        (record(103.0, final=False, overslept=True), {}, "own_lag"),
        (record(105.1, final=False), {}, "own_lag"),
    ],
    "of the age that is named even a live connection may be closed": [
        (record(102.9, final=False), {"law": AGED}, "false"),
        (record(103.0, final=False), {"law": AGED}, "announced"),
    ],
    "what the law says nothing about is never judged": [
        (record(103.0, final=False), {"behaviour": UNREAD}, "unjudged"),
    ],
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_close_is_judged_by_what_its_bounds_prove(claim: str) -> None:
    for seen, given_, category in CLAIMS[claim]:
        found = judged(seen, **given_)
        assert ("excused" if found.excused else found.category) == category, (seen, given_)
        assert found.category == "reaped" or not found.excused


@given(closed_by=st.floats(100, 104.99), lag=st.floats(0, 10))
def test_nothing_excuses_an_early_close(closed_by: float, lag: float) -> None:
    stalls = stalled((closed_by, lag))
    seen = record(closed_by, seen=closed_by, closed_after=100)
    assert judged(seen, stalls, stalls).category == "early"


def test_a_tolerated_early_close_keeps_its_raw_figure() -> None:
    finding = judged(record(104.9995), law=Law(5.0, 1.0, tolerance=0.001))
    assert finding.category == "reaped"
    assert finding.lateness == pytest.approx(-0.0005)


@given(
    lags=st.lists(st.tuples(st.floats(0, 500), st.floats(0, 20)), max_size=20),
    start=st.floats(0, 500),
    length=st.floats(0, 500),
)
def test_a_window_of_any_length_holds_what_its_tenths_of_a_second_hold(
    lags: list[tuple[float, float]], start: float, length: float
) -> None:
    stalls = stalled(*lags)
    first, last = int(start / BUCKET), int((start + length) / BUCKET) + 1
    inside = [lag for instant, lag in lags if first <= int(instant / BUCKET) <= last]
    assert stalls.between(start, start + length) == max(inside, default=0.0)


@pytest.mark.parametrize("excused", [0, 1, 2])
def test_more_than_one_reap_in_a_hundred_excused_proves_nothing(excused: int) -> None:
    records = [record(106.3 if number < excused else 105.5) for number in range(100)]
    verdict = verdict_on(*records, server=stalled((106.2, 0.4)))
    assert (verdict.excused, bool(verdict.doubts()), verdict.reasons(LAW)) == (
        excused,
        excused > 1,
        [],
    )


def test_one_slow_answer_among_many_is_no_stall_of_the_server() -> None:
    answers = Answers()
    for number in range(100):
        answers.add(100.0 + number / 100, 0.001)
    answers.add(100.9, 0.8)
    assert answers.supported().longest == 0.0
    for _ in range(6):
        answers.add(100.9, 0.7)
    assert answers.supported().longest == 0.8


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.05, 5)), max_size=8),
    st.floats(0, 30),
    st.floats(0, 30),
)
def test_stalls_that_overlap_count_each_second_once(
    pieces: list[tuple[float, float]], start: float, length: float
) -> None:
    stalls = stalled(*pieces)
    spans = [((b + 0.5) * BUCKET - lag, (b + 0.5) * BUCKET) for b, lag in stalls.worst.items()]
    grid = [start + length * (number + 0.5) / 2000 for number in range(2000)]
    exact = sum(any(low <= at < high for low, high in spans) for at in grid) * length / 2000
    assert stalls.total(start, start + length) == pytest.approx(
        exact, abs=0.02 + 0.001 * length * len(spans)
    )


def test_the_pace_of_a_busy_machine_is_no_stall() -> None:
    assert stalled(*((number * 0.01, 0.04) for number in range(1000))).total(0.0, 10.0) == 0.0


def test_counts_are_those_of_the_findings_and_every_violation_is_a_reason() -> None:
    records = [
        record(104.0),
        record(105.5),
        record(107.0),
        record(120.0, how=How.OPEN),
        record(103.0, final=False),
    ]
    verdict = verdict_on(*records)
    assert (verdict.expected, verdict.observed, verdict.beyond_tick) == (4, 4, 1)
    assert verdict.lateness == sorted(verdict.lateness)
    assert [reason.split(":")[0] for reason in verdict.reasons(LAW)] == [
        "1 early",
        "1 late",
        "1 missed",
        "1 false",
    ]
    assert len(verdict.violations) == 4


def test_only_the_process_that_held_a_connection_excuses_it() -> None:
    plan = make_plan(from_mix("silent"), 2, LAW, 20.0, 1, 1)
    records = [record(106.3)._replace(connection=number) for number in (0, 1)]
    verdict = judge_all(plan, records, [stalled((106.2, 0.4)), NONE], NONE)
    assert (verdict.categories["reaped"], verdict.categories["late"]) == (1, 1)


def test_a_run_that_showed_nothing_does_not_pass() -> None:
    assert not verdict_on().shown
    assert any(
        "own lag" in doubt
        for doubt in verdict_on(record(103.0, final=False, overslept=True)).doubts()
    )
