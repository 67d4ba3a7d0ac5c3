"""Plays every kind of clients at a server, many side by side, and judges each.

One rule: *what was red is tried again with less beside it*, in the end alone; red is
what was so each time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from ..plan.acts import At, Kind
from ..playing.client import Seen
from ..playing.play import played
from .control import Lag, control
from .kinds import HTTP_DIES, HTTP_LIVES, LINES, WEBSOCKETS
from .kinds_ends import AGES, OWN_LIMITS, SERVER_ENDS, STOPS, TLS, TUNNELS
from .kinds_http2 import HTTP2
from .subject import NotJudged, Subject, fitted
from .verdicts import NOT_JUDGED, RIGHT, WRONG, Verdict, judge, too_far

ALL = (*HTTP_LIVES, *HTTP_DIES, *WEBSOCKETS, *LINES, *HTTP2, *TUNNELS, *TLS, *OWN_LIMITS, *AGES)
KINDS = tuple(kind for kind in (*ALL, *STOPS, SERVER_ENDS) if not kind.alone)
"""Every kind that needs nothing of a server but what any may have, in their order.
Those that have it fork are for servers of Python alone.
"""
TRIES = 3
APART = 0.015
"""Seconds between two clients that come: all at once they would make each other
late.
"""
ALONE = 6
"""Clients side by side at the last try."""
LEAD = 1.0
"""Seconds for clients to come before the server is told to stop."""
BEFORE = 0.2
"""Seconds before its first act at which a client connects: less than any limit."""
RELOADS = tuple(
    replace(kind, name=kind.name.replace("at a stop: ", "at a reload: "))
    for kind in STOPS
    if kind.lives
)
"""The clients that a reload must not hurt."""


class Stops(Protocol):
    """A server that can be told to stop."""

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""

    def told(self, number: int) -> None:
        """Send it a signal."""


Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""


def silent(what: str, done: int, of: int) -> None:
    """Shows no progress."""


async def conform(
    subject: Subject,
    kinds: Iterable[Kind] = KINDS,
    progress: Progress = silent,
    tries: int = TRIES,
) -> list[Verdict]:
    """A verdict on each of *kinds* that is no matter of a stop, in their order.

    Raises:
        OSError: nobody listens any more.
    """
    found: dict[str, Verdict] = {}
    todo: list[tuple[Kind, Kind]] = []
    for kind in kinds:
        if kind.world != "stop":
            try:
                todo.append((kind, fitted(kind, subject)))
            except NotJudged as why:
                found[kind.name] = Verdict(kind, NOT_JUDGED, str(why), tries=0)
    order = [kind.name for kind in kinds if kind.world != "stop"]
    async with control(min(1.0, subject.longest)) as lag:
        for number in range(1, tries + 1):
            what = "every kind of clients" if number == 1 else "again, with less beside it"
            at_once = ALONE if 1 < number == tries else len(todo)
            for place in range(0, len(todo), max(1, at_once)):
                some = todo[place : place + at_once]
                said = await together(some, subject, lag, progress, what)
                found |= {each.kind.name: replace(each, tries=number) for each in said}
            todo = [each for each in todo if not settled(found[each[0].name])]
    return [found[name] for name in order]


def settled(verdict: Verdict) -> bool:
    """Whether another try would say nothing new."""
    return verdict.word == RIGHT or verdict.tries == 0


async def together(
    kinds: Sequence[tuple[Kind, Kind]],
    subject: Subject,
    lag: Lag,
    progress: Progress,
    what: str,
) -> list[Verdict]:
    """A client of each kind, all at the same time."""
    lag.seconds, done = 0.0, 0

    async def one(place: int, kind: Kind) -> Seen:
        nonlocal done
        borne = too_far(kind, subject)
        seen = await played(kind, subject.address, borne, place * APART, tls=subject.tls)
        done += 1
        progress(what, done, len(kinds))
        return seen

    seen = await asyncio.gather(*(one(place, kind) for place, (_, kind) in enumerate(kinds)))
    return [
        replace(judge(cut, each, subject, lag.seconds), kind=kind)
        for (kind, cut), each in zip(kinds, seen, strict=True)
    ]


async def stopped(
    subject: Subject,
    server: Stops,
    kinds: Iterable[Kind] = KINDS,
    progress: Progress = silent,
    number: int = signal.SIGTERM,
    *,
    ends: bool = True,
) -> list[Verdict]:
    """A verdict on each of *kinds* whose clients are there when *server* is told to
    stop, which it then is.

    Args:
        number: The signal.
        ends: Whether the server ends then; it serves on after a reload.
    """
    loop, found, todo = asyncio.get_running_loop(), [], []
    for kind in kinds:
        if kind.world == "stop" and kind is not SERVER_ENDS:
            try:
                todo.append((kind, fitted(kind, subject)))
            except NotJudged as why:
                found.append(Verdict(kind, NOT_JUDGED, str(why), tries=0))

    async def told(stop: float) -> float | None:
        await asyncio.sleep(stop - loop.time())
        server.told(number)
        until = stop + subject.drain + subject.tick
        while ends and server.status is None and loop.time() < until:
            await asyncio.sleep(0.02)
        return None if server.status is None else loop.time()

    async def one(place: int, kind: Kind, stop: float) -> Seen:
        try:
            borne = too_far(kind, subject)
            first = min(act.seconds for act in kind.acts if isinstance(act, At))
            comes = stop - loop.time() + first - BEFORE + place % 8 * APART
            return await played(kind, subject.address, borne, comes, stop, subject.tls)
        except OSError:  # it came too late: that proves nothing
            return Seen([(stop, stop)], ended=stop, how="refused", late=LEAD)

    async with control() as lag:  # which takes a while to start
        stop = loop.time() + LEAD
        ending = asyncio.ensure_future(told(stop))
        coming = (one(place, kind, stop) for place, (_, kind) in enumerate(todo))
        seen = await asyncio.gather(*coming)
        last, gone = loop.time(), await ending
    progress("clients at a stop", len(todo), len(todo))
    for each in seen:  # a kernel holds the rest for who takes nothing
        each.ended = gone if each.ended is None else each.ended
    found += [
        replace(judge(cut, each, subject, lag.seconds, stop), kind=kind)
        for (kind, cut), each in zip(todo, seen, strict=True)
    ]
    if ends and SERVER_ENDS in kinds:
        after = None if gone is None else max(0.0, gone - last)
        held = f"it is there {subject.drain:g} s after the signal" if gone is None else ""
        word = WRONG if held else RIGHT
        found.append(Verdict(SERVER_ENDS, word, held, "", subject.drain, after, lag.seconds))
    return found
