"""What real servers count is enough: an audit of their journals in `gaps` mode leaves
no time without a row unjudged. It does where their count is forged.

Clients speak every tick, so that hardly any silence has a row.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
import trio

import reaper.asyncio
import reaper.trio
from reaper.journal import Journal
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.read.inputs import check
from tests.helpers.server_process import Process
from tests.pipeline.test_kinds import changed, column

pytestmark = pytest.mark.slow

TICK, THRESHOLD, IDLE = 0.1, 1.0, 2.0
KEPT = 60.0
"""The keep-alive of a server in a process of its own: a pause of its client's is none
of its loop's, and may be longer than `IDLE`.
"""
SPOKEN = 35
"""Words of a client, a tick apart: the time without a row that no count explains is
then beyond the threshold several times.
"""


def written(place: Path, clock: Callable[[], int]) -> Journal:
    return Journal(place / "server", tick=TICK, gap_threshold=THRESHOLD, clock_ns=clock)


def on_asyncio(place: Path) -> None:
    """Two clients of a guarded server of streams: one talks, one is silent."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def main() -> None:
        with written(place, reaper.asyncio.journal_clock()) as journal:
            async with reaper.asyncio.open_reaper(tick=TICK, journal=journal) as r:
                server = await reaper.asyncio.start_server(
                    echo, "127.0.0.1", 0, idle=IDLE, reaper=r
                )
                address = server.sockets[0].getsockname()
                silent, other = await asyncio.open_connection(*address)
                heard, writer = await asyncio.open_connection(*address)
                for _ in range(SPOKEN):
                    writer.write(b"x")
                    await heard.read(1)
                    await asyncio.sleep(TICK)
                writer.close()
                assert await silent.read() == b""
                other.close()
                for each in (writer, other):
                    with suppress(ConnectionError):
                        await each.wait_closed()
                server.close()

    asyncio.run(main())


def on_trio(place: Path) -> None:
    """The same of a trio server."""

    async def echo(stream: Any) -> None:
        async for data in stream:
            await stream.send_all(data)

    async def main() -> None:
        with written(place, reaper.trio.journal_clock()) as journal:
            async with (
                reaper.trio.open_reaper(tick=TICK, journal=journal) as r,
                trio.open_nursery() as nursery,
            ):
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                handler = r.watched(echo, idle=IDLE)
                nursery.start_soon(trio.serve_listeners, handler, [listener])
                address = listener.socket.getsockname()
                silent, talks = [await trio.open_tcp_stream(*address) for _ in range(2)]
                async with silent, talks:
                    for _ in range(SPOKEN):
                        await talks.send_all(b"x")
                        await talks.receive_some(1)
                        await trio.sleep(TICK)
                    await talks.aclose()
                    assert await silent.receive_some(1) == b""
                nursery.cancel_scope.cancel()

    trio.run(main)


def over_http(place: Path) -> None:
    """Requests of one connection, to the reference server's process."""
    config = place / "reaper.toml"
    place.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[reaper]\ntick = "{TICK}s"\n[timeouts]\nkeep_alive = "{KEPT}s"\n')
    journal = place / "server"
    process = Process(
        *("http", "--config", str(config), "--port", "0", "--workers", "1"),
        *("--journal", str(journal)),
    )
    try:
        asked = http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)
        for _ in range(SPOKEN):
            asked.request("GET", "/")
            asked.getresponse().read()
            time.sleep(TICK)
        asked.close()
    finally:
        assert process.stop() == 0


SERVERS = {"asyncio": on_asyncio, "trio": on_trio, "http": over_http}


def without_stalls(table: pa.Table) -> pa.Table:
    reasons = table["reason"].cast(pa.string())
    return table.filter(pa.compute.fill_null(pa.compute.not_equal(reasons, "stall"), True))


def paused(place: Path) -> bool:
    """Whether the one that speaks was silent beyond the threshold, for its machine
    stood still. That has a row, which divides the time that has none.
    """
    files = (place / "server").glob("*.parquet")
    return any("activity" in pq.read_table(path)["kind"].to_pylist() for path in files)


@pytest.mark.parametrize("name", SERVERS)
def test_what_a_server_counts_explains_its_time_without_a_row(
    spark: Any, tmp_path: Path, name: str
) -> None:
    def answered(place: Path) -> dict[str, Any]:
        inputs = check([place / "server"])
        return audit(spark, inputs, None, place / "out", Settings()).summary

    for number in range(1, 6):
        place = tmp_path / f"{number}"
        SERVERS[name](place)
        summary = answered(place)
        assert (summary["result"], summary["reasons"]) == ("pass", [])
        if not paused(place):
            break
    # Nor does a stall of a busy machine explain it.
    uncounted = column("n", 0, ("close_peer", "close_app", "reap", "config"))
    forged = changed(lambda _: None, lambda table: uncounted(without_stalls(table)))
    forged(place)
    summary = answered(place)
    assert summary["result"] != "pass"
    said = "more than its activities, as counted, can have left"
    assert any(said in reason for reason in summary["reasons"])
