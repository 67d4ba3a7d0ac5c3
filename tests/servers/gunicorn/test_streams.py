"""Streams of HTTP/2 under gunicorn's guarded workers: clients that hold them, and one
that lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("h2")

import reaper.gunicorn
from loadgen.clients import Ended, Speech
from loadgen.drive.protocols import Paths
from loadgen.drive.wire import Tls
from loadgen.http2 import play
from loadgen.units import parse_target
from tests.helpers.neighbours import one_takes_nothing
from tests.helpers.servers_here import worker
from tests.servers.gunicorn.test_http2 import APPLICATIONS
from tests.servers.test_other_servers import LIMITS

pytestmark = pytest.mark.slow

LIMIT = 2.0
"""Seconds: every timeout of the server."""
LATE = 3.0
"""Seconds after its timeout by which a stream is ended at the latest, on a machine that
is busy.
"""
SPEECH = Speech("http2", Paths("/", post="/echo", much="/big"))
STREAM_RESET = b"RST_STREAM 8"


@contextmanager
def serving(name: str, **given: str) -> Iterator[str]:
    """Where a worker of that *name* listens that takes HTTP/2."""
    kind = getattr(reaper.gunicorn, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REAPER_TICK", "250ms")
        # A full buffer then hides no reader for long, and this rate cuts nobody.
        patch.setenv("REAPER_LIMITS_MIN_OUT_RATE", "1000000")
        patch.setenv("REAPER_LIMITS_MIN_OUT_GRACE", "1m")
        for limit in LIMITS:
            patch.setenv(f"REAPER_TIMEOUTS_{limit}", f"{LIMIT:g}s")
        with worker(kind, APPLICATIONS[name], http_protocols="h1,h2", **given) as running:
            host, port = running.address[:2]
            yield f"{host}:{port}"


@pytest.fixture(scope="module", params=APPLICATIONS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a worker of each kind listens that takes HTTP/2 in clear text."""
    with serving(request.param, http2_cleartext="prior-knowledge") as address:
        yield address


def played(
    target: str, *kinds: str, patience: float = LIMIT + LATE, speech: Speech = SPEECH
) -> list[Ended]:
    """What became of a client of each of *kinds*, all at the same time."""

    async def run() -> list[Ended]:
        return await asyncio.gather(
            *(play(kind, parse_target(target), speech, patience) for kind in kinds)
        )

    return asyncio.run(run())


def test_a_stream_whose_client_gives_nothing_is_reset_by_its_timeout(target: str) -> None:
    for ended in played(target, "half_body", "empty_body", "unopened", "unopened_pings"):
        assert (ended.how, STREAM_RESET in ended.said) == ("closed", True), ended
        assert ended.borne is not None
        assert LIMIT <= ended.borne <= LIMIT + LATE, ended


@pytest.mark.parametrize("name", APPLICATIONS)
def test_over_tls_a_stream_whose_client_gives_nothing_is_reset_likewise(
    name: str, certificate: tuple[str, str]
) -> None:
    speech = replace(SPEECH, tls=Tls("localhost", certificate[0]))
    with serving(name, certfile=certificate[0], keyfile=certificate[1]) as target:
        for ended in played(target, "half_body", "unopened_pings", speech=speech):
            assert (ended.how, STREAM_RESET in ended.said) == ("closed", True), ended


def test_a_stream_whose_body_drips_is_reset_by_the_least_rate(target: str) -> None:
    (ended,) = played(target, "dripped_body", patience=5 + LIMIT + LATE)
    assert (ended.how, STREAM_RESET in ended.said) == ("closed", True), ended


def test_a_stream_whose_client_reads_slowly_is_kept(target: str) -> None:
    (ended,) = played(target, "slow_reader", patience=3 * LIMIT)
    assert ended.how == "left"


def test_a_stream_that_is_due_does_not_end_its_neighbour(target: str) -> None:
    ended = one_takes_nothing(parse_target(target), SPEECH, LIMIT, 3 * LIMIT + LATE)
    assert ended == ([1], 1)
