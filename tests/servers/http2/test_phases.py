"""What a stream waits for, by what h2 and hypercorn or gunicorn know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("h2")

from h2.exceptions import StreamClosedError

from reaper.policy import Phase
from reaper.servers.gunicorn import http2_asgi as gunicorn
from reaper.servers.http2.frames import Frames
from reaper.servers.hypercorn.http2 import Session


def phase(unsent: bytes, window: int | None) -> Phase:
    """Of a stream with *unsent* bytes, whose client takes *window* more; None: it has
    ended.
    """

    def left(number: int) -> int:
        if window is None:
            raise StreamClosedError(number)
        return window

    session = Session.__new__(Session)
    protocol: Any = SimpleNamespace(
        streams={1: SimpleNamespace()},
        stream_buffers={1: SimpleNamespace(buffer=unsent)},
        connection=SimpleNamespace(local_flow_control_window=left),
    )
    session._protocol, session.frames = protocol, Frames()
    return session.phase_of_stream(1)


def test_an_answer_whose_window_is_shut_waits_for_its_client() -> None:
    assert phase(b"much", 0) is Phase.WRITE
    assert phase(b"much", -5) is Phase.WRITE  # the client has made its window smaller


def test_an_answer_that_may_be_sent_waits_for_the_server() -> None:
    assert phase(b"much", 1) is Phase.IN_FLIGHT


def test_an_answer_on_a_stream_that_has_ended_waits_for_nobody() -> None:
    assert phase(b"much", None) is Phase.IN_FLIGHT


def gunicorn_phase(window: int = 1, unended: bool = True, **known: Any) -> Phase:
    """Of a stream of gunicorn's whose body has yet to come, but for what is *known* of
    it.
    """
    noted = {"state": None, "response_complete": False, "response_headers_sent": False}
    stream = SimpleNamespace(**{**noted, "_body_chunks": [], **known})
    session = gunicorn.Session.__new__(gunicorn.Session)
    session._serving = SimpleNamespace(
        streams={1: stream},
        h2_conn=SimpleNamespace(local_flow_control_window=lambda number: window),
    )
    session.stalled, session.frames = {1}, Frames()
    session.frames.unended = {1} if unended else set()
    return session.phase_of_stream(1)


def test_a_body_that_is_yet_to_come_is_waited_for_under_gunicorn() -> None:
    assert gunicorn_phase() is Phase.BODY


def test_what_the_application_has_yet_to_read_waits_for_it_under_gunicorn() -> None:
    assert gunicorn_phase(_body_chunks=[b"much"]) is Phase.IN_FLIGHT
    assert gunicorn_phase(unended=False) is Phase.IN_FLIGHT


def test_an_answer_that_begins_before_the_body_ends_is_a_tunnel_under_gunicorn() -> None:
    assert gunicorn_phase(response_headers_sent=True) is Phase.TUNNEL


def test_a_shut_window_is_waited_for_first_under_gunicorn() -> None:
    assert gunicorn_phase(window=0, response_headers_sent=True) is Phase.WRITE
    assert gunicorn_phase(window=0, unended=False) is Phase.WRITE


def test_a_complete_answer_waits_for_nobody_under_gunicorn() -> None:
    assert gunicorn_phase(window=0, response_complete=True) is Phase.IN_FLIGHT


def uvicorn_phase(
    parked: int = 0, window: int = 1, of_all: int = 1, paused: bool = False, **known: Any
) -> Phase:
    """Of a stream of uvicorn's whose body has yet to come, but for what is *known* of
    it; its answer has *parked* bytes, and the client takes *window* more on it and
    *of_all* on the connection.
    """
    pytest.importorskip("uvicorn.protocols.http.zttp_h2_impl", exc_type=ImportError)
    from reaper.servers.uvicorn.http2 import Session as OfUvicorn

    noted = {"response_complete": False, "response_started": False, "more_body": True, "body": b""}
    session = OfUvicorn.__new__(OfUvicorn)
    protocol: Any = SimpleNamespace(
        cycles={1: SimpleNamespace(**{**noted, **known})}, flow=SimpleNamespace(read_paused=paused)
    )
    session._protocol, session.parked = protocol, {1: parked} if parked else {}
    session.connection = SimpleNamespace(
        send_window=of_all, stream=lambda number: SimpleNamespace(send_window=window)
    )
    return session.phase_of_stream(1)


def test_a_body_that_is_yet_to_come_is_waited_for_under_uvicorn() -> None:
    assert uvicorn_phase() is Phase.BODY
    assert uvicorn_phase(response_started=True) is Phase.TUNNEL


def test_what_the_application_has_yet_to_read_waits_for_it_under_uvicorn() -> None:
    assert uvicorn_phase(body=b"much") is Phase.IN_FLIGHT
    assert uvicorn_phase(more_body=False) is Phase.IN_FLIGHT


@pytest.mark.parametrize(("window", "of_all"), [(0, 1), (1, 0), (-5, 1)])
def test_a_shut_window_is_waited_for_first_under_uvicorn(window: int, of_all: int) -> None:
    assert uvicorn_phase(500, window, of_all, response_complete=True) is Phase.WRITE


def test_an_answer_that_may_be_sent_waits_for_nobody_under_uvicorn() -> None:
    assert uvicorn_phase(500, 1, 1) is Phase.IN_FLIGHT


def test_while_uvicorn_reads_nothing_nobody_is_waited_for() -> None:
    assert uvicorn_phase(paused=True) is Phase.IN_FLIGHT
    assert uvicorn_phase(500, 0, paused=True) is Phase.IN_FLIGHT
