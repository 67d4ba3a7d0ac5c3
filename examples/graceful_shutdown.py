"""SIGTERM: no new connections; idle ones end at once, busy ones when they are answered,
and all after five seconds.

python -m examples.graceful_shutdown 8080
"""

from __future__ import annotations

import signal
import sys
from functools import partial

import trio

import reaper.trio


async def answer(stream: reaper.trio.WatchedStream) -> None:
    try:
        async for question in stream:  # while it waits here it is idle, otherwise busy
            await trio.sleep(1)
            await stream.send_all(question.upper())
    except trio.BrokenResourceError:
        pass  # the client reset the connection


async def main(port: int) -> None:
    async with reaper.trio.open_reaper(tick=0.5) as r, trio.open_nursery() as handlers:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as accepting:
                serve = partial(trio.serve_tcp, host="127.0.0.1", handler_nursery=handlers)
                accepting.start_soon(serve, r.watched(answer, idle=2), port)
                async for _ in signals:
                    break
                accepting.cancel_scope.cancel()
        await r.drain(timeout=5)
    print("all have gone", flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
