"""Streams of HTTP/2 under gunicorn's guarded workers: clients that hold them, and one
that lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("h2")

import reaper.gunicorn
from loadgen.drive.wire import Tls
from loadgen.units import parse_target
from tests.helpers.http2_clients import (
    LATE,
    LIMIT,
    SETTINGS,
    SPEECH,
    STREAM_RESET,
    played,
    played_in_time,
)
from tests.helpers.neighbours import one_takes_nothing
from tests.helpers.servers_here import worker
from tests.servers.gunicorn.test_http2 import APPLICATIONS

pytestmark = pytest.mark.slow


@contextmanager
def serving(name: str, **given: str) -> Iterator[str]:
    """Where a worker of that *name* listens that takes HTTP/2."""
    kind = getattr(reaper.gunicorn, name)
    with pytest.MonkeyPatch.context() as patch:
        for setting, value in SETTINGS.items():
            patch.setenv(f"REAPER_{setting}", value)
        with worker(kind, APPLICATIONS[name], http_protocols="h1,h2", **given) as running:
            host, port = running.address[:2]
            yield f"{host}:{port}"


@pytest.fixture(scope="module", params=APPLICATIONS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a worker of each kind listens that takes HTTP/2 in clear text."""
    with serving(request.param, http2_cleartext="prior-knowledge") as address:
        yield address


def test_a_stream_whose_client_gives_nothing_is_reset_by_its_timeout(target: str) -> None:
    kinds = ("half_body", "empty_body", "unopened", "unopened_pings")
    found, lag = played_in_time(target, *kinds)
    for ended in found:
        assert (ended.how, STREAM_RESET in ended.said) == ("closed", True), ended
        assert ended.borne is not None
        assert LIMIT <= ended.borne <= LIMIT + LATE + lag, ended


@pytest.mark.parametrize("name", APPLICATIONS)
def test_over_tls_a_stream_whose_client_gives_nothing_is_reset_likewise(
    name: str, certificate: tuple[str, str]
) -> None:
    speech = replace(SPEECH, tls=Tls("localhost", certificate[0]))
    with serving(name, certfile=certificate[0], keyfile=certificate[1]) as target:
        found, lag = played_in_time(target, "half_body", "unopened_pings", speech=speech)
    for ended in found:
        assert (ended.how, STREAM_RESET in ended.said) == ("closed", True), ended
        assert (ended.borne or 0.0) <= LIMIT + LATE + lag, ended


def test_a_stream_whose_body_drips_is_reset_by_the_least_rate(target: str) -> None:
    (ended,), lag = played_in_time(target, "dripped_body")
    assert (ended.how, STREAM_RESET in ended.said) == ("closed", True), ended
    assert (ended.borne or 0.0) <= 5 + LIMIT + LATE + lag, ended


def test_a_stream_whose_client_reads_slowly_is_kept(target: str) -> None:
    (ended,) = played(target, "slow_reader", patience=3 * LIMIT)
    assert ended.how == "left"


def test_a_stream_that_is_due_does_not_end_its_neighbour(target: str) -> None:
    ended = one_takes_nothing(parse_target(target), SPEECH, LIMIT, 3 * LIMIT + LATE)
    assert ended == ([1], 1)
