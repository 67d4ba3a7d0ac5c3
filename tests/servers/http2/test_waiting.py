"""What is waited for on a connection of HTTP/2, when its time is over as something
comes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from reaper.config import ReaperConfig
from reaper.policy import Phase
from reaper.policy.min_rate import NoSweep
from reaper.servers.http2.waiting import Carrier, Waiting
from tests.helpers.driver_loop import Loop

LIMIT = 50.0
"""Seconds: every timeout."""


class Trial:
    """Something that waits, on a connection whose client can send."""

    def __init__(self, phase: Phase) -> None:
        self.loop = Loop()
        self.ours, self.theirs = socket.socketpair()
        self.turn = self.more = 0
        self.ended: list[str] = []
        limits = {"REAPER_TIMEOUTS_BODY": "50s", "REAPER_TIMEOUTS_KEEP_ALIVE": "50s"}
        config = ReaperConfig.load(environ=limits)
        carrier = Carrier(self.loop.driver, config, NoSweep(), self.ours.fileno, lambda: None)
        self.waiting = Waiting(carrier, phase, lambda: "it", self.works, self.ended.append)

    def works(self) -> int:
        self.turn += self.more
        return self.turn

    def passes(self, until: float, **known: Any) -> list[str]:
        """Why it was ended at *until* seconds; what is *known* of it changes before."""
        for name, value in known.items():
            setattr(self, name, value)
        self.loop.run_until(until)
        return self.ended


@pytest.fixture(params=[Phase.KEEP_ALIVE, Phase.BODY], ids=["between streams", "in a body"])
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    made = Trial(request.param)
    with made.ours, made.theirs:
        yield made


def test_a_ping_that_is_unread_as_its_time_ends_buys_no_second_time(trial: Trial) -> None:
    trial.theirs.send(b"a PING")
    assert trial.passes(LIMIT + 0.9) == []
    trial.ours.recv(100)
    assert len(trial.passes(LIMIT + 1.5)) == 1


def test_a_request_that_is_unread_as_its_time_ends_is_waited_for(trial: Trial) -> None:
    trial.theirs.send(b"a request")
    assert trial.passes(LIMIT + 10) == []  # the server is slow
    trial.ours.recv(100)
    trial.waiting.enter(Phase.IN_FLIGHT)
    assert trial.passes(3 * LIMIT) == []


def test_a_ping_that_is_worked_off_as_its_time_ends_buys_no_second_time(trial: Trial) -> None:
    assert trial.passes(LIMIT + 0.9, turn=1) == []
    assert len(trial.passes(LIMIT + 1.5, turn=0)) == 1


def test_pings_that_are_worked_off_at_each_check_buy_no_second_time(trial: Trial) -> None:
    assert trial.passes(LIMIT + 5, more=1) == []
    assert len(trial.passes(LIMIT + 6, turn=0, more=0)) == 1


def test_a_server_that_reads_nothing_meanwhile_gives_a_second_time(trial: Trial) -> None:
    assert trial.passes(LIMIT + 3, turn=1) == []
    assert trial.passes(2 * LIMIT, turn=0) == []
    assert len(trial.passes(2 * LIMIT + 4)) == 1
