"""Stops of servers below `reaper run`, as `scripts.stops` tries them, with answers that
take less time. What else a stop promises is in test_streams.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.stops.trial import Seen, tried
from scripts.stops.words import LAST

pytestmark = pytest.mark.slow

SHORT = {"REAPER_TICK": "250ms", "STOPS_ANSWER": "2"}
RELOAD = {"STOPS_ANSWER": "4"}
"""Of a reload the server may hear a second later, when it looks at its files again."""


def stop(server: str, how: str, tmp_path: Path, sockets: int = 0, **settings: str) -> Seen:
    limits = {f"REAPER_TIMEOUTS_{name.upper()}": value for name, value in settings.items()}
    if how == "reload":
        limits |= RELOAD
    return tried(server, tmp_path, how, settings=SHORT | limits, sockets=sockets, patience=60)


STOPS = [
    *(("hypercorn, trio", how) for how in ("SIGTERM", "Ctrl-C", "reload")),
    ("uvicorn", "Ctrl-C"),
    ("uvicorn", "reload"),
    ("hypercorn", "reload"),
]
"""Those that test_streams.py does not have."""


@pytest.mark.parametrize(("server", "how"), STOPS)
def test_the_stream_says_goodbye_the_answers_are_whole_and_the_process_ends(
    server: str, how: str, tmp_path: Path
) -> None:
    seen = stop(server, how, tmp_path, drain_streams="20s")
    (stream,) = seen.streams
    assert stream.whole
    assert LAST in stream.data
    assert [each.whole for each in seen.answers] == [True, True], seen.log
    assert stream.ended is not None
    assert all(each.ended is not None and stream.ended < each.ended for each in seen.answers)
    assert seen.lifespan
    assert seen.gone is not None
    assert (seen.back is not None) is (how == "reload")
    assert "Traceback" not in seen.log


def test_aiohttp_below_reaper_run_ends_its_streams_and_answers_the_others(tmp_path: Path) -> None:
    seen = stop("aiohttp", "SIGTERM", tmp_path, sockets=1, drain_streams="500ms")
    assert [each.whole for each in (*seen.streams, *seen.answers)] == [True] * 3, seen.log
    assert [each.code for each in seen.sockets] == [1012]
    assert seen.lifespan
    assert seen.gone is not None


def test_hypercorn_on_trio_tells_websockets_spread_over_the_window(tmp_path: Path) -> None:
    seen = stop("hypercorn, trio", "SIGTERM", tmp_path, sockets=20, drain_window="3s")
    assert [each.code for each in seen.sockets] == [1012] * 20, seen.log
    assert seen.spread > 1
    assert "Traceback" not in seen.log


def test_a_quick_stop_of_gunicorn_ends_the_lifespan_of_the_application(tmp_path: Path) -> None:
    seen = stop("gunicorn, asgi", "Ctrl-C", tmp_path)
    assert seen.lifespan, seen.log
    assert not any(each.whole for each in seen.answers)  # it is quick: nothing is waited for
