"""How long a client that was told GOAWAY is waited for, in virtual time."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from reaper.servers.http2.leaving import Leaving


def test_a_client_that_has_everything_is_waited_for_as_long_as_drain_idle() -> None:
    leaving = Leaving(idle=4)
    assert [leaving.seconds(False, now) for now in (10, 11, 13, 14)] == [4, 3, 1, 0]


def test_a_client_is_waited_for_however_long_it_takes_an_answer() -> None:
    leaving = Leaving(idle=4)
    assert [leaving.seconds(True, now) for now in (10, 1000)] == [math.inf, math.inf]


def test_the_time_after_the_last_byte_begins_when_that_is_taken() -> None:
    leaving = Leaving(idle=4)
    leaving.seconds(True, 10)
    assert leaving.seconds(False, 20) == 4


def test_where_more_is_owed_that_time_begins_anew() -> None:
    leaving = Leaving(idle=4)
    leaving.seconds(False, 10)
    leaving.seconds(True, 13)
    assert leaving.seconds(False, 13) == 4


def test_nobody_is_waited_for_beyond_the_end_of_the_stop() -> None:
    owing, idle = Leaving(idle=4, end=12), Leaving(idle=4, end=12)
    assert [owing.seconds(True, now) for now in (10, 12, 15)] == [2, 0, 0]
    assert [idle.seconds(False, now) for now in (10, 12, 15)] == [2, 0, 0]


LOOKS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1)
"""Seconds since the look before, and whether something was owed then."""


@given(looks=LOOKS, idle=st.integers(0, 10), end=st.integers(0, 50) | st.just(math.inf))
def test_it_is_over_as_a_model_says_that_remembers_every_look(
    looks: list[tuple[int, bool]], idle: int, end: float
) -> None:
    leaving, now, seen = Leaving(idle, end), 0, list[tuple[int, bool]]()
    for pause, owed in looks:
        now += pause
        seen.append((now, owed))
        since_it_owed = [
            at for place, (at, _) in enumerate(seen) if not any(o for _, o in seen[place:])
        ]
        instants = [end, *(at + idle for at in since_it_owed)]
        assert leaving.seconds(owed, now) == max(min(instants) - now, 0)
