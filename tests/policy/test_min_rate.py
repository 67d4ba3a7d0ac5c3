"""What a full buffer may hide of a reader, and for how long nothing need be heard of
it.
"""

from __future__ import annotations

import pytest

from reaper.policy.min_rate import HIDDEN, hidden, patience


@pytest.mark.parametrize(
    ("taken", "segment", "most"),
    [
        (0, 1448, 0),
        (3000, 1448, 3000),  # no buffer holds more than was taken
        (60_000, 1448, 5792),  # four segments
        (200_000, 1448, 16_384),  # a sixteenth, in whole steps
        (10**9, 1448, HIDDEN),
        (100_000, 47_413, 106_496),  # the loopback
        (10**9, 47_413, HIDDEN),
        (40_000, 0, 40_960),  # a window of HTTP/2: all that was sent
    ],
)
def test_a_buffer_hides_what_opens_no_window(taken: int, segment: int, most: int) -> None:
    assert hidden(taken, segment) == most


@pytest.mark.parametrize(
    ("timeout", "rate", "unseen", "seconds"),
    [
        (60.0, 240.0, 5792, 60.0),
        (60.0, 240.0, 100_000, 100_000 / 240),
        (0.0, 240.0, 100_000, 0.0),  # off
        (60.0, 0.0, 100_000, 60.0),  # no least rate
    ],
)
def test_a_reader_has_what_it_may_have_read_unseen_at_the_least_rate(
    timeout: float, rate: float, unseen: int, seconds: float
) -> None:
    assert patience(timeout, rate, unseen) == seconds
