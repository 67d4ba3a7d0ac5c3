"""`python -m scripts.streams.readers HOST:PORT COUNT SECONDS`: so many readers, each of
a stream that is quiet for so long. At the end a line of JSON says what they heard.

One rule: *a stream is whole if its last event has come, and the last chunk after it*.
Any other end is a cut. The readers are the load generator's clients.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress

from loadgen.conform.judge import judged
from loadgen.plan.acts import Deaf, Hear, Kind, Rest, Send, Until, Want
from loadgen.plan.requests import get
from loadgen.playing.client import Address, Seen
from loadgen.playing.play import played

from .words import FIRST, LAST, PING

PATIENCE = 20.0
"""Seconds that a first event may take, and that the last end may be late."""
LAST_CHUNK = b"0\r\n\r\n"
AT_A_TIME = 50
"""Readers that come together."""
LOOK = 0.005
"""Seconds between two looks at those that come."""


def reader(seconds: str) -> Kind:
    """Who reads a stream that is quiet for so long, and leaves its pings to the kernel
    meanwhile: ten thousand that woke for each would keep proxies from running.
    """
    asks = Send(get(f"/quiet/{seconds}", "Connection: close"))
    acts = asks, Until(text=FIRST), Deaf(), Rest(float(seconds)), Hear()
    return Kind(name="reads", acts=acts, answers=(Want(None, ends=LAST),))


def began(seen: Seen) -> bool:
    """Whether its first event has come."""
    return len(seen.marks) > 2  # of the connect, and of what it asks


def whole(seen: Seen) -> bool:
    """Whether the stream has come to its proper end."""
    return bool(judged(reader("0"), seen).kept) and seen.data.endswith(LAST_CHUNK)


async def read(address: Address, count: int, seconds: str) -> list[Seen]:
    """What *count* readers have heard. They come a few at a time, and the next only
    when these have heard their first event: a proxy would give up what a burst keeps
    waiting.
    """
    kind, patience = reader(seconds), float(seconds) + 2 * PATIENCE
    found: list[Seen] = []
    playing: list[asyncio.Task[Seen]] = []
    for first in range(0, count, AT_A_TIME):
        few = [Seen() for _ in range(min(AT_A_TIME, count - first))]
        come = [asyncio.create_task(played(kind, address, patience, seen=seen)) for seen in few]
        found, playing = found + few, playing + come
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not all(
                    began(seen) or task.done() for seen, task in zip(few, come, strict=True)
                ):
                    await asyncio.sleep(LOOK)
    await asyncio.gather(*playing, return_exceptions=True)  # of one that cannot connect: OSError
    return found


def main() -> None:
    """Come, listen, tell."""
    target, count, seconds = sys.argv[1:]
    host, _, port = target.rpartition(":")
    seen = asyncio.run(read((host, int(port)), int(count), seconds))
    cut = [each for each in seen if began(each) and each.ended is not None and not whole(each)]
    told = {
        "began": sum(map(began, seen)),
        "whole": sum(map(whole, seen)),
        "cut": len(cut),
        "pings": sum(each.data.count(PING) for each in seen),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
