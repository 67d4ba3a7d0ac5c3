"""Several streams of one connection, and the window that they share, in virtual time."""

from __future__ import annotations

import pytest

from reaper.config import ReaperConfig
from reaper.policy import Phase
from reaper.policy.min_rate import NoSweep
from reaper.servers.http2.connection import Connection
from reaper.servers.http2.waiting import Watch
from tests.helpers.driver_loop import Loop

LIMIT = 50.0
"""Seconds: `write`."""


class Trial(Connection):
    """A connection whose answers are all waited for by the window of the connection.

    Attributes:
        windows: By stream, what the client takes on it.
        reset: The streams that were reset.
    """

    def __init__(self, windows: dict[int, int]) -> None:
        self.loop = Loop()
        config = ReaperConfig.load(environ={"REAPER_TIMEOUTS_WRITE": "50s"})
        super().__init__(None, Watch(self.loop.driver, config, NoSweep(), lambda: -1, lambda: None))
        self.windows = windows
        self.reset: list[int] = []
        for number in windows:
            self.begin(number)
            self.look_at(number)

    def works(self) -> int:
        return 0

    def phase_of(self, number: int) -> Phase:
        return Phase.WRITE

    def window_of(self, number: int) -> int:
        return self.windows[number]

    def cancel(self, number: int) -> None:
        self.reset.append(number)

    def part(self) -> None:
        """Nothing is sent here."""

    def end(self, number: int, last: bool) -> None:
        """Nothing is closed here."""

    def reads_on(self, number: int, until: float) -> list[int]:
        """The streams that were reset by *until*, while the client takes bytes of *number* alone."""
        while self.loop.time < until:
            self.loop.run_until(self.loop.time + LIMIT / 2)
            self.sent(number, 100)
        return self.reset


def test_bytes_of_one_stream_are_the_activity_of_all_that_wait_for_the_same_window() -> None:
    assert Trial({1: 100, 3: 100, 5: 100}).reads_on(1, 4 * LIMIT) == []


def test_a_stream_whose_own_window_is_shut_waits_for_itself() -> None:
    assert Trial({1: 100, 3: 0, 5: 100}).reads_on(1, 4 * LIMIT) == [3]


def test_nobody_waits_for_a_shared_window_that_gives_no_byte() -> None:
    trial = Trial({1: 100, 3: 100})
    trial.sent(1, 0)
    trial.loop.run_until(2 * LIMIT)
    assert sorted(trial.reset) == [1, 3]


@pytest.mark.parametrize("ended", [True, False], ids=["that has ended", "that was reset"])
def test_a_stream_is_forgotten_by_those_that_share_its_window(ended: bool) -> None:
    trial = Trial({1: 100, 3: 100})
    if ended:
        trial.finish(3)
    else:
        trial.streams[3].reap("write")
    trial.sent(1, 100)
    assert list(trial.streams) == [1]
