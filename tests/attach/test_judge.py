"""The judge of other servers' connections: pure, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from reaper.attach.judge import NONE, Limits, Memory, judge
from reaper.attach.tcpinfo import ESTABLISHED, JIFFIES_AGAINST_US, Snapshot
from reaper.errors import InvalidArgument

JIFFY = 0.004
GRAIN = JIFFIES_AGAINST_US * JIFFY
IDLE = Limits(idle=10.0, grain=GRAIN)
FRESH = Memory(0.0)


def look(
    now: float,
    *,
    received: float | None = None,
    sent: float | None = None,
    opened: float = 0.0,
    count: int = 1,
    acked: int = 0,
    unread: int = 0,
    queued: int = 0,
    took: float = 0.0,
) -> Snapshot:
    """A look that began at *now*; *received* and *sent* are instants, None: never."""
    heard, spoke = (opened if at is None else at for at in (received, sent))
    count = 0 if received is None else count
    after = now + took
    ago = after - heard, after - spoke
    return Snapshot(
        ESTABLISHED, *ago, count, acked, unread, queued, now, after, sent=int(sent is not None)
    )


def test_a_peer_is_due_one_timeout_and_the_kernels_grain_after_the_answer() -> None:
    verdict, _ = judge(look(5.0, received=1.0, sent=1.0), FRESH, IDLE)
    assert (verdict.due, verdict.reason) == (False, "idle")
    assert verdict.at == pytest.approx(11.0 + GRAIN)
    assert judge(look(verdict.at, received=1.0, sent=1.0), FRESH, IDLE)[0].due
    assert not judge(look(verdict.at - GRAIN / 2, received=1.0, sent=1.0), FRESH, IDLE)[0].due


ANYHOW = Limits(idle=10.0, grain=GRAIN, even_unanswered=True)
TURNS = {
    "the server is at work": (False, IDLE, look(500.0, received=1.0, sent=0.5)),
    "it is not asked whether it answered": (True, ANYHOW, look(11.1, received=1.0, sent=0.5)),
    "then the peer's bytes alone count": (True, ANYHOW, look(11.1, received=1.0, sent=11.0)),
    "what is unread is the server's affair": (
        False,
        IDLE,
        look(100.0, received=1.0, sent=2.0, unread=1),
    ),
    "and anyhow": (False, ANYHOW, look(100.0, received=1.0, sent=2.0, unread=1)),
    "a first question within the jiffy of the connect, and not one byte sent": (
        False,
        IDLE,
        look(50.0, received=0.0),
    ),
}


@pytest.mark.parametrize(("theirs", "limits", "seen"), TURNS.values(), ids=TURNS)
def test_a_peer_is_due_only_where_it_is_its_turn(
    theirs: bool, limits: Limits, seen: Snapshot
) -> None:
    verdict, _ = judge(seen, FRESH, limits)
    assert (verdict.due, verdict.peers_turn) == (theirs, theirs)


def test_a_server_at_work_is_looked_at_again_a_timeout_later() -> None:
    verdict, known = judge(look(500.0, received=1.0, sent=0.5), FRESH, IDLE)
    assert verdict.at == 510.0
    # The answer comes late; the peer has its whole timeout from there.
    verdict, known = judge(look(510.0, received=1.0, sent=505.0, acked=9), known, IDLE)
    assert not verdict.due
    assert verdict.at == pytest.approx(515.0 + GRAIN)
    assert judge(look(515.0 + 2 * GRAIN, received=1.0, sent=505.0, acked=9), known, IDLE)[0].due


@pytest.mark.parametrize("limits", [IDLE, Limits(max_age=10.0, grain=GRAIN)])
@pytest.mark.parametrize(("answered", "closes"), [(True, True), (False, False), (None, False)])
def test_equal_stamps_are_the_peers_turn_only_where_the_socket_says_so(
    answered: bool | None, closes: bool, limits: Limits
) -> None:
    seen = look(50.0, received=1.0, sent=1.0)._replace(answered=answered)
    verdict, _ = judge(seen, FRESH, limits)
    assert (verdict.due and verdict.sure) == closes
    assert verdict.due or answered is False


def test_the_peers_turn_stays_so_until_something_comes() -> None:
    _, known = judge(look(5.0, received=1.0, sent=1.0)._replace(answered=True), FRESH, IDLE)
    later = look(50.0, received=1.0, sent=1.0)
    assert judge(later, known, IDLE)[0].peers_turn is True
    assert judge(later._replace(received=2), known, IDLE)[0].peers_turn is None


def test_a_push_on_its_way_gives_the_peer_its_timeout_once_and_further_ones_do_not() -> None:
    _, known = judge(look(5.0, received=1.0, sent=2.0), FRESH, IDLE)
    verdict, known = judge(look(12.1, received=1.0, sent=12.0, queued=7), known, IDLE)
    assert not verdict.due
    assert verdict.at == pytest.approx(22.0 + GRAIN)
    for queued in (14, 7):  # another push, or the first one again
        assert judge(look(22.1, received=1.0, sent=22.0, queued=queued), known, IDLE)[0].due


def test_who_pauses_its_reading_is_ended_by_the_shorter_of_idle_and_write() -> None:
    for idle, write, reason in ((4.0, 60.0, "idle"), (60.0, 4.0, "write")):
        limits = Limits(idle=idle, write=write, grain=GRAIN)
        known = FRESH
        for now, due in ((5.0, False), (8.9, False), (9.1, True)):
            paused = look(now, received=1.0, sent=5.0, acked=50, queued=100)
            verdict, known = judge(paused, known, limits)
            assert (verdict.due, verdict.reason) == (due, reason)


def test_a_download_that_the_peer_acknowledges_is_not_idle() -> None:
    known = FRESH
    for second in range(5, 100, 10):
        verdict, known = judge(
            look(float(second), received=1.0, sent=second - 0.1, acked=second), known, IDLE
        )
        assert not verdict.due


def test_a_connection_without_a_byte_is_due_by_the_first_byte_limit() -> None:
    limits = Limits(idle=60.0, first_byte=10.0, grain=GRAIN)
    verdict, _ = judge(look(3.0, opened=2.0), Memory(3.0), limits)
    assert verdict.reason == "first_byte"
    assert verdict.at == pytest.approx(12.0 + GRAIN)
    verdict, _ = judge(look(12.1, opened=2.0), Memory(3.0), limits)
    assert (verdict.due, verdict.reason) == (True, "first_byte")
    assert not judge(look(12.1, opened=2.0, received=2.5, sent=2.6), Memory(3.0), limits)[0].due
    assert not judge(look(12.1, opened=2.0, unread=1), Memory(3.0), limits)[0].due


@pytest.mark.parametrize(
    "limits", [Limits(first_byte=10.0, grain=GRAIN), Limits(max_age=10.0, grain=GRAIN)]
)
def test_nothing_is_due_before_its_limit_after_the_opening_that_was_first_reported(
    limits: Limits,
) -> None:
    # One look at many connections took 70 ms, so the opening is known to 70 ms.
    _, known = judge(look(3.0, opened=2.0, took=0.07), Memory(3.07), limits)
    later = look(12.0 + 2 * GRAIN, opened=1.95)
    assert judge(later, known, limits)[0].at == known.opened + 10.0
    assert judge(later, known, limits)[1].opened == known.opened


def test_age_counts_from_the_earliest_proof_of_the_opening_and_waits_for_the_answer() -> None:
    limits = Limits(max_age=100.0, grain=GRAIN)
    _, known = judge(look(50.0, received=40.0, sent=30.0), Memory(50.0), limits)
    assert known.opened == pytest.approx(30.0 + GRAIN)
    verdict, known = judge(look(131.0, received=130.0, sent=129.0), known, limits)
    assert (verdict.due, verdict.at) == (False, 132.0)
    verdict, _ = judge(look(132.0, received=130.0, sent=131.5), known, limits)
    assert (verdict.due, verdict.reason) == (True, "max_age")


def test_a_peer_that_takes_nothing_is_due_after_that_was_seen_for_the_limit() -> None:
    limits = Limits(write=10.0, grain=GRAIN)
    verdict, known = judge(look(5.0, received=1.0, sent=1.0, queued=100, acked=50), FRESH, limits)
    assert (verdict.due, verdict.at) == (False, 15.0)
    assert (
        judge(look(15.0, received=1.0, sent=1.0, queued=100, acked=50), known, limits)[0].reason
        == "write"
    )
    verdict, _ = judge(look(15.0, received=1.0, sent=1.0, queued=100, acked=51), known, limits)
    assert (verdict.due, verdict.at) == (False, 25.0)
    verdict, known = judge(look(15.0, received=1.0, sent=1.0, acked=150), known, limits)
    assert (verdict.due, known.stalled) == (False, NONE)


def test_a_request_that_drips_is_due_by_its_rate_and_a_server_at_work_is_not() -> None:
    limits = Limits(min_in_rate=240.0, min_in_grace=5.0, grain=GRAIN)
    _, known = judge(look(1.0, received=1.0, count=200), FRESH, limits)
    _, known = judge(look(6.0, received=1.0, count=200), known, limits)
    at_work, _ = judge(look(60.0, received=1.0, count=200), known, limits)
    assert not at_work.due
    dripping, _ = judge(look(11.0, received=10.5, count=210), known, limits)
    assert (dripping.due, dripping.reason) == (True, "min_in_rate")
    fast, _ = judge(look(11.0, received=10.5, count=200 + 240 * 10), known, limits)
    assert not fast.due
    answered, _ = judge(look(11.0, received=10.5, sent=9.0, count=210), known, limits)
    assert not answered.due
    # The server does not read: then the peer may not send, however much it would like
    # to.
    held_back, unread = judge(look(11.0, received=10.5, count=210, unread=10), known, limits)
    assert (held_back.due, unread.slow) == (False, NONE)


VANISHED = Limits(vanished=60.0, capped=True, grain=GRAIN)


def network(now: float, answered: float, **seen: Any) -> Snapshot:
    """A look at a connection whose peer's kernel answered last at *answered*."""
    return look(now, received=0.0, sent=0.0)._replace(ack_ago=now - answered, **seen)


@pytest.mark.parametrize("silent_since", [1.0, -10_000.0])
def test_a_kernel_that_was_not_asked_has_not_vanished(silent_since: float) -> None:
    verdict, _ = judge(network(100.0, silent_since), FRESH, VANISHED)
    assert (verdict.due, verdict.at) == (False, 145.0)


def test_a_vanished_peer_is_due_a_limit_after_the_first_question_it_can_have_missed() -> None:
    """Its network went away up to `asks` seconds after it answered last: the time
    counts from there.
    """
    known = FRESH._replace(asks=True)
    verdict, known = judge(network(160.0, 100.0, probes=3), known, VANISHED)
    assert not verdict.due
    assert 100.0 + VANISHED.asks + 60.0 <= verdict.at <= 100.0 + 60.0 * 1.25
    verdict, _ = judge(network(verdict.at + 0.01, 100.0, probes=5), known, VANISHED)
    assert (verdict.due, verdict.reason, verdict.sure) == (True, "vanished", True)
    assert not judge(network(verdict.at + 0.01, 170.0, probes=1), known, VANISHED)[0].due


def test_without_our_keep_alives_time_counts_from_the_first_unanswered_probe_seen() -> None:
    verdict, known = judge(network(1000.0, 100.0, probes=1), FRESH, VANISHED)
    assert (verdict.due, verdict.at) == (False, 1060.0)
    # The answer to the only probe may be on its way.
    assert not judge(network(1060.1, 100.0, probes=1), known, VANISHED)[0].due
    assert judge(network(1060.1, 100.0, probes=2), known, VANISHED)[0].due


def test_data_that_is_retransmitted_in_vain_is_due_a_limit_after_it_was_sent_first() -> None:
    verdict, known = judge(
        network(145.0, 10.0, in_vain=20.0)._replace(sent_ago=7.0, queued=9), FRESH, VANISHED
    )
    assert (verdict.due, verdict.at) == (False, 185.0)
    last = network(185.1, 10.0, in_vain=60.1)._replace(queued=9)
    assert judge(last._replace(sent_ago=20.0), known, VANISHED)[0].due
    # The network may be back since: the latest retransmission was early, or its answer
    # is on its way.
    assert not judge(last._replace(sent_ago=35.0), known, VANISHED)[0].due
    assert not judge(last._replace(sent_ago=0.1), known, VANISHED)[0].due
    assert not judge(last._replace(ack_ago=1.0), known, VANISHED)[0].due


def test_a_stopped_peer_whose_window_is_probed_twice_in_four_minutes_is_not_due() -> None:
    limits = Limits(vanished=60.0, grain=GRAIN)
    known = FRESH._replace(asks=True)
    for now in range(100, 1000, 4):
        answered = now - now % 120
        verdict, known = judge(
            network(now, answered, probes=int(not now % 120))._replace(queued=9), known, limits
        )
        assert not verdict.due


def test_our_own_stop_in_the_middle_of_a_look_makes_nothing_due() -> None:
    """The kernel answered at 12, and we went on at 900."""
    verdict, _ = judge(look(5.0, received=4.0, sent=4.0)._replace(after=900.0), FRESH, IDLE)
    assert (verdict.due, verdict.since >= 4.0) == (False, True)


@pytest.mark.parametrize(
    "wrong", [{"idle": -1.0}, {"idle": float("nan")}, {"write": float("inf")}, {}]
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Limits(**wrong)
