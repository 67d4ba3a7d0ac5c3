"""What a server holds after a thousand connections that it did not hold before.

One rule: *every object that the collector knows is counted, by its type*. A type is
held if it grew by a quarter of the connections, and did not grow so in the stock server
beside.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from loadgen.conform.kinds import OPENED
from loadgen.plan.acts import HELLO, Ask, Begin, Done, Kind, Reset, Send, Shut, Until, Want
from loadgen.plan.requests import frame, get
from loadgen.playing.client import PATIENCE, Address
from loadgen.playing.play import played

from .columns import Column

AT_ONCE = 50
"""Connections that are open together."""
WARM = 100
"""Connections before the first count: what a server makes once is no leak."""
WARM_UPS = 10
"""How often so many come, at most, until no thread is new."""
LOOKS, EVERY = 6, 1.0
"""How often the last count is taken, and the seconds between: some forget a moment
later.
"""
LONGEST = 30.0
"""Seconds for an answer: a server that holds much counts long."""
SHARE = 0.25
ENDS = ((), (Shut(),), (Reset(),))
"""How a client ends: by a close, after its end of file, by a reset."""


def _asks(speaks: str) -> Kind:
    """What asks for the objects."""
    if speaks in ("http", "tls"):
        path = get("/objects", "Connection: close")
        return Kind(name="objects", speaks=speaks, acts=(Send(path),), answers=(Want(None),))
    if speaks == "http2":
        acts = (Begin(), Ask("/objects"), Done(0))
        return Kind(name="objects", speaks=speaks, acts=acts, answers=(Want(None),))
    if speaks == "websocket":
        acts2 = (*OPENED, Send(frame(b"objects")), Until(text=b"}"))
        return Kind(name="objects", speaks=speaks, acts=acts2, hears=(b"}",))
    lines = (Send(b"objects\n"), Until(text=b"}\n"))
    return Kind(name="objects", speaks=speaks, acts=lines, hears=(b"}\n",))


def _comes(speaks: str, number: int) -> Kind:
    """One of the thousand: asks once, and ends in its way."""
    end = ENDS[number % len(ENDS)]
    if speaks in ("http", "tls"):
        return Kind(
            name="comes", speaks=speaks, acts=(Send(get()), Until(1), *end), answers=(HELLO,)
        )
    if speaks == "http2":
        acts = (Begin(), Ask(), Done(0), *end)
        return Kind(name="comes", speaks=speaks, acts=acts, answers=(HELLO,))
    if speaks == "websocket":
        talks = (*OPENED, Send(frame(b"one")), Until(text=b"one"), *end)
        return Kind(name="comes", speaks=speaks, acts=talks, hears=(b"one",))
    lines = (Send(b"one\n"), Until(text=b"one\n"), *end)
    return Kind(name="comes", speaks=speaks, acts=lines, hears=(b"one\n",))


async def counted(address: Address, speaks: str) -> Counter[str]:
    """The objects of a server, by type. Raises RuntimeError: it did not say."""
    seen = await played(_asks(speaks), address, LONGEST)
    said = seen.answers[0][1] if seen.answers else seen.data
    text = said[said.find(b"{") : said.rfind(b"}") + 1]
    if not text:
        raise RuntimeError(f"the server does not say what it holds: {said[-200:]!r}")
    return Counter(json.loads(text))


async def come(address: Address, speaks: str, count: int) -> None:
    """*count* connections that come, ask, and go."""
    for place in range(0, count, AT_ONCE):
        some = range(place, min(place + AT_ONCE, count))
        await asyncio.gather(*(played(_comes(speaks, each), address, PATIENCE) for each in some))


async def warmed(address: Address, speaks: str) -> Counter[str]:
    """The objects of a server that has started the threads of its pools.

    A pool starts a thread when all that it has are busy, up to its bound: no leak
    either.
    """
    found: Counter[str] = Counter()
    for _ in range(WARM_UPS):
        await come(address, speaks, WARM)
        before, found = found, await counted(address, speaks)
        if found["threading.Thread"] == before["threading.Thread"]:
            break
    return found


async def grown(address: Address, speaks: str, count: int) -> Counter[str]:
    """By how many objects each type has grown after *count* connections, where it is
    many.
    """
    before = await warmed(address, speaks)
    await come(address, speaks, count)
    more: Counter[str] = Counter()
    for _ in range(LOOKS):
        await asyncio.sleep(EVERY)
        more = (await counted(address, speaks)) - before
        more = Counter({kind: n for kind, n in more.items() if n > count * SHARE})
        if not more:
            break
    return more


async def held(column: Column, stock: Address, guarded: Address, count: int) -> Counter[str]:
    """What the guarded server of *column* holds after *count* connections, and the
    stock one not.
    """
    speaks = next(
        each for each in ("http", "http2", "websocket", "lines", "tls") if each in column.speaks
    )
    more = await grown(guarded, speaks, count)
    if not more:
        return more
    of_stock = await grown(stock, speaks, count)
    return Counter({kind: n for kind, n in more.items() if of_stock[kind] < n / 2})
