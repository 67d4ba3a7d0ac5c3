"""Two streams of one HTTP/2 connection: one that takes nothing any more, and its neighbour."""

from __future__ import annotations

import asyncio

from loadgen.clients import Speech
from loadgen.http2 import Http2
from loadgen.units import Target


def one_takes_nothing(
    target: Target, speech: Speech, limit: float, patience: float
) -> tuple[list[int], int]:
    """Ask the server at *target* for much on stream 1, whose window is never opened again, and on
    stream 3 for an answer that takes longer than *limit*, seconds.

    Returns: the streams that were reset, in that order, and how many answers were whole.
    """
    reset: list[int] = []

    async def both(client: Http2) -> None:
        client.begin(1000)
        client.ask("/big")
        client.ask(f"/slow?{limit + 1.5:g}")
        await client.answered.wait()

    async def run() -> int:
        client = Http2(target, speech, "both")
        heard = client._heard

        def note(event: object) -> bool:
            if type(event).__name__ == "StreamReset":
                reset.append(event.stream_id)  # type: ignore[attr-defined]
            heard(event)
            return client.answered.is_set() or type(event).__name__ == "ConnectionTerminated"

        client._heard = note  # type: ignore[method-assign]
        return (await client.play(both, patience)).answered

    return reset, asyncio.run(run())
