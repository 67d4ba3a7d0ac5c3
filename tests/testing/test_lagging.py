"""What grants a client of a test another try: its own lag, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.helpers import lagging
from tests.helpers.lagging import TRIES, Lagged, in_time, speaking_in_time


def test_who_lagged_comes_again_and_ten_that_lagged_are_an_error() -> None:
    number = itertools.count(1)

    def lags(times: int) -> int:
        if (tries := next(number)) <= times:
            raise Lagged
        return tries

    assert in_time(lambda: lags(2)) == 3
    with pytest.raises(AssertionError, match="held the client up"):
        in_time(lambda: lags(100))
    assert next(number) == 3 + TRIES + 1


@pytest.mark.parametrize("kind", [AssertionError, ConnectionResetError])
def test_who_was_cut_is_excused_by_its_own_silence_alone(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = 0, 0
    monkeypatch.setattr(lagging, "time", type("Clock", (), {"monotonic": lambda: now}))

    def cut(speaks: Callable[[], None], *silences: int) -> None:
        nonlocal now, tries
        tries += 1
        now += silences[min(tries, len(silences)) - 1]
        speaks()
        raise kind

    with pytest.raises(kind):
        speaking_in_time(lambda speaks: cut(speaks, 9), 10)
    assert tries == 1
    tries = 0
    with pytest.raises(kind):
        speaking_in_time(lambda speaks: cut(speaks, 10, 20, 5), 10)
    assert tries == 3
