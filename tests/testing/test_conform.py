"""`reaper.testing.conform`: the load generator's kinds of clients in any test."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from loadgen.conform.apps import http_app as http
from reaper.testing import NotConforming
from reaper.testing.conform import check

ONLY = ("pipelines three", "asks by HEAD")


@contextmanager
def served(handler: type[http.Handler] = http.Handler) -> Iterator[tuple[str, int]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield ("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


class Talks(http.Handler):
    """It answers HEAD with a body."""

    def do_HEAD(self) -> None:  # noqa: N802 - as its base class calls it
        self.command = "GET"
        self.do_GET()


@pytest.mark.slow
def test_a_server_that_is_right_passes_and_says_what_was_not_judged() -> None:
    found = check(served, limits={"keep_alive": 1.0}, only=(*ONLY, "sends half a head"))
    assert len(found.right) == 3
    assert "--headers" in found.not_judged["sends half a head"]


@pytest.mark.slow
def test_a_server_that_is_wrong_with_one_kind_fails_by_its_name() -> None:
    with served(Talks) as where, pytest.raises(NotConforming, match=r"asks by HEAD.*RFC 9110"):
        check(where, limits={"keep_alive": 1.0}, only=ONLY)


@pytest.mark.slow
def test_a_command_may_start_the_server() -> None:
    command = [sys.executable, str(Path(http.__file__)), "{port}"]
    assert check(command, limits={"keep_alive": 1.0}, only=("pipelines three",)).right


def test_a_wrong_argument_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match="--list shows them"):
        check("127.0.0.1:1", only=("no such kind",))
