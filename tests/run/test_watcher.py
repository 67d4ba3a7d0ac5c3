"""The watcher of `reaper run`: which limits hold from outside, whom it believes, what
it asks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
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
    """Stands for the ears of a watcher: it hears *said* at once, and then waits for the
    end.
    """

    def __init__(self, *said: bytes) -> None:
        self._said = said

    def words(self, end: int) -> Iterator[bytes]:
        yield from self._said
        os.waitid(os.P_PIDFD, end, os.WEXITED | os.WNOWAIT)


def watched(
    command: list[str], *said: bytes, config: ReaperConfig | None = None, **options: Any
) -> tuple[Watcher, list[str]]:
    """A watcher that has watched *command* to its end, and the lines that it
    printed.
    """
    lines: list[str] = []
    with subprocess.Popen(command) as child:
        pidfd = os.pidfd_open(child.pid)
        ears: Any = Mouth(*said)
        found = Watcher(child.pid, pidfd, config or ReaperConfig(), ears, lines.append, **options)
        found.leave = child.wait  # a zombie would still be watched
        found.run()
        os.close(pidfd)
    return found, lines


def test_what_a_server_says_is_printed_once_and_cannot_move_the_cursor() -> None:
    word = json.dumps(GUARDED).encode()
    found, lines = watched(["sleep", "0.2"], word, b"[]", word)
    assert found.inside == {7}
    assert lines == ["odd\\x1b[2J on its sockets is guarded from inside: none"]


UNTIL_TOLD = """
import os, sys, time
for _ in range(400):  # 20 s
    if os.path.exists(sys.argv[1]):
        break
    time.sleep(0.05)
"""


def test_the_watcher_of_a_command_that_listens_nowhere_asks_one_kernel_and_is_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[socket.socket] = []
    open_one, enough = kernel._open, tmp_path / "enough"

    def noted() -> Any:
        opened.append(open_one())
        if len(opened) == 2:
            threading.Timer(0.3, enough.touch).start()  # a third would be seen by then
        return opened[-1]

    monkeypatch.setattr(kernel, "_open", noted)
    monkeypatch.setattr("reaper.run.watcher.POLL", 0.01)
    _, lines = watched([sys.executable, "-c", UNTIL_TOLD, str(enough)])
    assert (len(opened), lines) == (2, [])  # one for dumps and one for looks


def test_without_psutil_the_line_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "reaper.attach.targets", raising=False)  # imported anew
    _, lines = watched(["sleep", "0.1"])
    (line,) = lines
    assert line.endswith("guarding from outside needs psutil: pip install 'idle-reaper[attach]'")


def test_a_command_that_is_about_to_end_is_not_said_to_be_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int, *_: object, **__: object) -> None:
        raise kernel.Refusal("its descriptors may not be read")

    monkeypatch.setattr("reaper.attach.targets.ByPid", refuse)
    monkeypatch.setattr(watcher, "POLL", 0.0)
    monkeypatch.setattr(watcher, "SETTLES", 60.0)
    _, lines = watched(["sleep", "0.5"])
    assert lines == []


LISTENS = """
import socket, sys, time
first = socket.create_server(('127.0.0.1', 0))
time.sleep(2)
first.close()
time.sleep(1)
again = socket.create_server(('127.0.0.1', 0))
time.sleep(1)
"""


@pytest.mark.slow
def test_a_command_that_listens_anew_makes_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "POLL", 0.05)
    monkeypatch.setattr(watcher, "SETTLES", 0.1)
    monkeypatch.setattr(watcher, "LONGEST", 0.1)
    limits = ReaperConfig.load(overrides={"attach.idle": "200ms", "attach.tick": "50ms"})
    lines = watched([sys.executable, "-c", LISTENS], config=limits)[1]
    assert len(lines) == 3
    assert "has 0.1 s to say that it guards itself; after that it is watched" in lines[0]
    assert "is guarded from outside: idle 200ms" in lines[1]
    assert lines[2] == "this also cuts an answer that has begun and pauses for 200ms"


@pytest.mark.slow
def test_a_watcher_that_attaches_to_nothing_says_what_is_not_guarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "POLL", 0.05)
    monkeypatch.setattr(watcher, "SETTLES", 0.1)
    monkeypatch.setattr(watcher, "LONGEST", 0.1)
    _, (line,) = watched([sys.executable, "-c", LISTENS], attaches=False)
    assert line.endswith(" is not guarded: --inside was given")


@pytest.mark.slow
def test_a_python_that_serves_in_another_language_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watcher, "POLL", 0.05)
    monkeypatch.setattr(watcher, "SETTLES", 0.1)
    monkeypatch.setattr(watcher, "LONGEST", 60.0)
    module = tmp_path / "_granian.cpython.so"
    module.write_bytes(b"x")
    loads = f"import mmap; file = open({str(module)!r}); held = mmap.mmap(file.fileno(), 1, prot=1)"
    limits = ReaperConfig.load(overrides={"attach.idle": "200ms", "attach.tick": "50ms"})
    _, lines = watched([sys.executable, "-c", f"{loads}\n{LISTENS}"], config=limits)
    assert "is guarded from outside: idle 200ms" in lines[0]


class Held:
    """Stands for a target: this process holds the socket *sock*."""

    def __init__(self, sock: socket.socket) -> None:
        self._place = os.getpid(), sock.fileno()

    def find(self, inode: int) -> tuple[int, int]:
        return self._place


@pytest.mark.parametrize("seconds", [0, 3])
def test_a_listener_whose_clients_the_kernel_hides_is_recognised(seconds: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, seconds)
        assert watcher.defers_accept(Held(sock), 0) == bool(seconds)
