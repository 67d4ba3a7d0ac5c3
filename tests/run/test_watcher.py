"""The watcher of `reaper run`: which limits hold from outside, whom it believes, what it asks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from typing import Any

import pytest

from reaper.attach import kernel
from reaper.config import ReaperConfig
from reaper.run.watcher import Watcher, outside_limits


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"idle": 600.0, "first_byte": 0.0, "stalled_write": 60.0, "tick": 1.0}),
        ({"timeouts.keep_alive": "5s"}, {"idle": 5.0}),
        ({"timeouts.keep_alive": "5s", "timeouts.idle": "3s"}, {"idle": 3.0}),
        ({"timeouts.keep_alive": "5s", "attach.idle": "9s"}, {"idle": 9.0}),
        ({"timeouts.first_byte": "500ms"}, {"first_byte": 0.5, "tick": 0.5}),
    ],
)
def test_from_outside_hold_the_limits_that_were_asked_for_or_suit_any_protocol(
    given: dict[str, object], expected: dict[str, float]
) -> None:
    found = outside_limits(ReaperConfig.load(overrides=given))
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_watcher_hears_the_command_and_its_children_alone_and_no_nonsense() -> None:
    ours, ears = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, ears:
        ears.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        said = json.dumps(
            {"guarded": "odd\x1b[2J", "inodes": [7], "places": [], "limits": "none"}
        ).encode()
        for command, expected in ((os.getpid(), {7}), (os.getppid(), {7}), (2**22, set())):
            lines: list[str] = []
            watcher = Watcher(command, -1, ReaperConfig(), ears, lines.append)
            for words in (b"[]", b"{}", b"\xff", said):
                ours.send(words)
                watcher._take()
            assert watcher.inside == expected
            assert not any("\x1b" in line for line in lines)


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
    lines: list[str] = []
    with (
        subprocess.Popen(["sleep", "0.5"]) as child,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears,
    ):
        Watcher(child.pid, os.pidfd_open(child.pid), ReaperConfig(), ears, lines.append).run()
    for sock in opened:
        sock.close()
    assert (len(opened), lines) == (2, [])  # one for dumps and one for looks
