"""The watcher of `reaper run`: which limits hold from outside, whom it believes, what it asks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from reaper.attach import cuts, kernel
from reaper.config import ReaperConfig
from reaper.run import watcher
from reaper.run.watcher import Watcher, outside_limits, outside_text, understood


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"idle": 3600.0, "first_byte": 0.0, "stalled_write": 60.0, "tick": 1.0}),
        ({"timeouts.keep_alive": "5s"}, {"idle": 3600.0}),
        ({"timeouts.tunnel": "2h"}, {"idle": 7200.0}),
        ({"timeouts.tunnel": "0s"}, {"idle": 0.0}),
        ({"timeouts.keep_alive": "5s", "timeouts.idle": "3s"}, {"idle": 3.0}),
        ({"timeouts.idle": "3s", "attach.idle": "9s"}, {"idle": 9.0}),
        ({"timeouts.first_byte": "500ms"}, {"first_byte": 0.5, "tick": 0.5}),
        ({"limits.min_in_rate": "100"}, {"min_in_rate": 100.0}),
        ({"attach.min_in_rate": "50", "limits.min_in_rate": "100"}, {"min_in_rate": 50.0}),
        ({}, {"min_in_rate": 0.0}),
    ],
)
def test_from_outside_hold_the_limits_that_were_asked_for_or_suit_any_protocol(
    given: dict[str, object], expected: dict[str, float]
) -> None:
    found = outside_limits(ReaperConfig.load(overrides=given))
    assert {name: getattr(found, name) for name in expected} == expected


def test_an_idle_that_nobody_asked_for_is_as_attach_has_it() -> None:
    assert watcher.UNASKED == cuts.UNASKED_IDLE


UNASKED = "idle 1h, stalled_write 1m, vanished 1m"


@pytest.mark.parametrize(
    ("given", "defers", "said"),
    [
        ({}, False, UNASKED),
        (
            {"limits.min_in_rate": "100"},
            False,
            f"{UNASKED}, min_in_rate 100 B/s",
        ),
        (
            {"timeouts.keep_alive": "5s"},
            False,
            f"{UNASKED}; keep_alive holds inside only: outside give --idle",
        ),
        (
            {"timeouts.keep_alive": "5s", "timeouts.idle": "3s"},
            False,
            "idle 3s, stalled_write 1m, vanished 1m",
        ),
        (
            {"timeouts.first_byte": "5s"},
            True,
            f"{UNASKED}; first_byte cannot hold: its socket has TCP_DEFER_ACCEPT",
        ),
    ],
)
def test_the_line_says_what_holds_from_outside_and_what_does_not(
    given: dict[str, object], defers: bool, said: str
) -> None:
    assert outside_text(ReaperConfig.load(overrides=given), defers=defers) == said


GUARDED = {"guarded": "odd\x1b[2J", "inodes": [7, "8", None], "places": [], "limits": "none"}


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"7",
        b"null",
        b'{"guarded": 1}',
        b"[" * 50_000,
        b'{"a":' * 10_000,
        b'{"guarded": "a", "inodes": 3, "places": [], "limits": ""}',
        b'{"guarded": "a", "inodes": [], "places": 3, "limits": ""}',
    ],
)
def test_nonsense_is_not_understood_and_ends_nothing(nonsense: bytes) -> None:
    assert understood(nonsense) is None


def test_of_what_a_server_guards_only_numbers_are_believed() -> None:
    word = understood(json.dumps(GUARDED).encode())
    assert word is not None
    assert word.inodes == {7}


class Mouth:
    """Stands for the ears of a watcher: it hears *said* at once, and then waits for the end."""

    def __init__(self, *said: bytes) -> None:
        self._said = said

    def words(self, end: int) -> Iterator[bytes]:
        yield from self._said
        os.waitid(os.P_PIDFD, end, os.WEXITED | os.WNOWAIT)


def watched(command: list[str], *said: bytes, **options: Any) -> tuple[Watcher, list[str]]:
    """A watcher that has watched *command* to its end, and the lines that it printed."""
    lines: list[str] = []
    with subprocess.Popen(command) as child:
        pidfd = os.pidfd_open(child.pid)
        ears: Any = Mouth(*said)
        found = Watcher(child.pid, pidfd, ReaperConfig(), ears, lines.append, **options)
        found.run()
        os.close(pidfd)
    return found, lines


def test_what_a_server_says_is_printed_once_and_cannot_move_the_cursor() -> None:
    word = json.dumps(GUARDED).encode()
    found, lines = watched(["sleep", "0.2"], word, b"[]", word)
    assert found.inside == {7}
    assert lines == ["odd\\x1b[2J on its sockets is guarded from inside: none"]


def test_the_watcher_of_a_command_that_listens_nowhere_asks_one_kernel_and_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[socket.socket] = []
    open_one = kernel._open

    def noted() -> Any:
        opened.append(open_one())
        return opened[-1]

    monkeypatch.setattr(kernel, "_open", noted)
    monkeypatch.setattr("reaper.run.watcher.POLL", 0.01)
    _, lines = watched(["sleep", "0.5"])
    assert (len(opened), lines) == (2, [])  # one for dumps and one for looks
