"""The accept loop: which errors it survives."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from reaper.trio.accepting import accept_burst, after


def test_errors_of_accept_are_sorted_into_three_kinds() -> None:
    kinds = {
        name: after(OSError(number, ""))
        for name, number in vars(errno).items()
        if name.startswith("E")
    }
    survived = "ECONNABORTED EPROTO ENETDOWN ENOPROTOOPT EHOSTDOWN ENONET EHOSTUNREACH"
    more = "EOPNOTSUPP ENETUNREACH ETIMEDOUT EPERM ECONNRESET"
    assert {kinds[name] for name in [*survived.split(), *more.split()]} == {"next"}
    assert {kinds[name] for name in ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM")} == {"pause"}
    assert {kinds[name] for name in ("EBADF", "EINVAL", "ENOTSOCK", "EFAULT")} == {"raise"}


class Faulty:
    """A listening socket whose accepts fail as listed, and then find nothing."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)

    def accept(self) -> tuple[Any, None]:
        if not self.outcomes:
            raise BlockingIOError
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, int):
            raise OSError(outcome, "as listed")
        return outcome, None


def burst_of(*outcomes: Any) -> tuple[list[socket.socket], list[OSError], bool]:
    listening: Any = Faulty(*outcomes)
    return accept_burst(listening)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_burst_passes_over_broken_connections(pair: tuple[socket.socket, socket.socket]) -> None:
    accepted, errors, pause = burst_of(errno.ECONNABORTED, pair[0], errno.EPROTO)
    assert (accepted, [e.errno for e in errors]) == ([pair[0]], [errno.ECONNABORTED, errno.EPROTO])
    assert not pause
    assert not pair[0].getblocking()


def test_a_burst_that_ends_for_want_of_descriptors_is_followed_by_a_pause(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert burst_of(pair[0], errno.EMFILE, pair[1])[2]


def test_a_burst_of_nothing_but_errors_does_not_spin() -> None:
    assert burst_of(*[errno.EOPNOTSUPP] * 100)[2]


def test_an_error_of_the_listener_closes_what_was_accepted_before(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with pytest.raises(OSError, match="as listed"):
        burst_of(pair[0], errno.EBADF)
    assert pair[0].fileno() == -1
