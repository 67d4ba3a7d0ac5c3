"""What a stream of hypercorn waits for, by what hypercorn and h2 know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("h2")

from h2.exceptions import StreamClosedError

from reaper.policy import Phase
from reaper.servers.http2.hypercorn import Session


def phase(unsent: bytes, window: int | None) -> Phase:
    """Of a stream with *unsent* bytes, whose client takes *window* more; None: it has ended."""

    def left(number: int) -> int:
        if window is None:
            raise StreamClosedError(number)
        return window

    session = Session.__new__(Session)
    protocol: Any = SimpleNamespace(
        streams={1: SimpleNamespace()},
        stream_buffers={1: SimpleNamespace(buffer=unsent)},
        connection=SimpleNamespace(streams={}, local_flow_control_window=left),
    )
    session._protocol = protocol
    return session._phase_of(1)


def test_an_answer_whose_window_is_shut_waits_for_its_client() -> None:
    assert phase(b"much", 0) is Phase.WRITE
    assert phase(b"much", -5) is Phase.WRITE  # the client has made its window smaller


def test_an_answer_that_may_be_sent_waits_for_the_server() -> None:
    assert phase(b"much", 1) is Phase.IN_FLIGHT


def test_an_answer_on_a_stream_that_has_ended_waits_for_nobody() -> None:
    assert phase(b"much", None) is Phase.IN_FLIGHT
