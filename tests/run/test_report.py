"""What is said of a server that is guarded."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from reaper.run import report


class NoSocket:
    """What a program's test may hand to a server in a socket's place: its number is another's."""

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
