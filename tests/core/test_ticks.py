"""The one place that rounds."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from reaper.core.ticks import ms_to_seconds, seconds_to_ms_deadline, seconds_to_ms_now


@example(1001)  # ms / 1000 alone lies a rounding error below
@given(st.integers(0, 10**13) | st.floats(0.0, 1e10).map(lambda instant: int(instant * 1000.0)))
def test_whoever_wakes_for_a_deadline_in_ms_finds_that_it_is_time(
    ms: int,
) -> None:
    instant = ms_to_seconds(ms)
    assert seconds_to_ms_now(instant) == ms
    assert ms / 1000 <= instant <= ms / 1000 * (1 + 1e-15) + 1e-15
    assert ms_to_seconds(seconds_to_ms_deadline(instant)) >= instant


def test_deadlines_are_rounded_up_and_instants_down() -> None:
    assert (seconds_to_ms_now(0.0016), seconds_to_ms_deadline(1.9991)) == (1, 2000)
