"""Prometheus (needs prometheus-client): what the reaper did, on a port of its own.

python -m examples.prometheus_metrics 8080 9100
"""

from __future__ import annotations

import sys

import prometheus_client
import trio

import reaper.trio
from reaper.metrics import ReaperCollector


async def echo(stream: reaper.trio.WatchedStream) -> None:
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass  # the client reset the connection


async def main(port: int, metrics: int) -> None:
    async with reaper.trio.open_reaper(tick=0.5) as r:
        # Its thread reads counters that the loop writes: each is one number, and none
        # needs a lock.
        prometheus_client.REGISTRY.register(ReaperCollector(r.statistics))
        prometheus_client.start_http_server(metrics, addr="127.0.0.1")
        await trio.serve_tcp(r.watched(echo, idle=2), port, host="127.0.0.1")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]))
