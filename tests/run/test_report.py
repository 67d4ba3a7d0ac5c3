"""What is said of a server that is guarded."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from reaper.run import channel, report


class NoSocket:
    """What a program's test may hand to a server in a socket's place: its number is
    another's.
    """

    def fileno(self) -> object:
        return True

    def getsockname(self) -> object:
        return ("127.0.0.1", 1)


def test_what_is_no_socket_is_not_reported_as_a_place_that_is_guarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(report, "_say", lambda message, text: heard.append(message))
    with socket.create_server(("127.0.0.1", 0)) as listening, open("/dev/null") as file:
        report.guarded("odd", [NoSocket(), file, listening], {})
        assert heard[0]["inodes"] == [os.fstat(listening.fileno()).st_ino]
        assert heard[0]["places"] == [f"127.0.0.1:{listening.getsockname()[1]}"]


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name at which a process speaks for its group, in a group that no other test
    has.
    """
    monkeypatch.setattr(report, "_spokesman", [])
    monkeypatch.setattr(os, "getpgrp", lambda: f"of-a-test-{os.getpid()}")
    return f"\0reaper-run-{os.getuid()}-{os.getpgrp()}"


def test_the_first_of_a_group_speaks_for_the_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report._may_speak()
    assert report._may_speak(), "it goes on speaking"
    spokesman = report._spokesman
    monkeypatch.setattr(report, "_spokesman", [])
    assert not report._may_speak()
    spokesman[0].close()


@pytest.mark.parametrize("listens", [False, True])
def test_a_name_that_another_user_has_taken_silences_nobody(
    listens: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can guess the name, and bind it before the server does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
        taken.bind(name)
        if listens:
            taken.listen()
            uid = os.geteuid() + 1
            monkeypatch.setattr(channel, "peer", lambda sock: (1, uid, uid))
        assert report._may_speak()
        assert report._spokesman == []
