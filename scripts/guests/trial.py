"""A column: a server stock and guarded, all kinds of clients at both, and what became
of them.

One rule: *what may be chance is tried again, alone*. A cell is red only if it was so
each time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.conform.control import Lag, control
from loadgen.conform.judge import End, judged
from loadgen.conform.kinds import (
    HIDDEN,
    HTTP_DIES,
    HTTP_LIVES,
    LEFT,
    LEFT_OTHERS,
    LIMIT,
    LINES,
    TICK,
    WEBSOCKETS,
)
from loadgen.conform.kinds_ends import AGES, OWN_LIMITS, SERVER_ENDS, STOPS, TLS, TUNNELS
from loadgen.conform.kinds_http2 import FLOODS, HTTP2, LEFT_HTTP2
from loadgen.conform.subject import ROUTES, SPOKEN, Limit, Subject, fitted
from loadgen.conform.verdicts import amiss, too_late
from loadgen.plan.acts import At, Kind
from loadgen.playing.client import OWN_LAG, PATIENCE, Address, Seen
from loadgen.playing.play import played

from ..serving import Server, free_port, serving
from ..tools import certificate
from .columns import LIMITS, UNSEEN, Column
from .lengths import LENGTHS

SUBJECT = Subject(
    ("", 0),
    speaks=frozenset(SPOKEN),
    limits={name: Limit(each) for name, each in LENGTHS.items()}
    | {"max_age": Limit(LIMIT), "flood": Limit(LIMIT)},
    tick=TICK,
    routes={name: name for name in (*ROUTES, "/tell?", "/told?", "/fork?")},
)
"""What every guarded server is."""
_ALL = (
    *HTTP_LIVES,
    *HIDDEN,
    *LEFT,
    *LEFT_OTHERS,
    *LEFT_HTTP2,
    *HTTP_DIES,
    *WEBSOCKETS,
    *LINES,
    *HTTP2,
    *FLOODS,
    *TUNNELS,
    *TLS,
    *STOPS,
    *AGES,
)
KINDS = {
    **{kind.name: fitted(kind, SUBJECT) for kind in (*_ALL, *OWN_LIMITS)},
    SERVER_ENDS.name: SERVER_ENDS,
}
"""Every kind, by name, in the order of the table; cut to the limits of the servers."""
TRIES = 3
LATE = 0.85 * LIMIT
"""Seconds by which a close may be late before its cell is red: less than a limit, so
that one that holds twice is told from one that holds, and more than a machine with
other work takes for a tick. How late each was is in the table.
"""
EARLY = 0.01
"""Seconds by which a close may be early: the clocks are two."""
BORNE = max(LENGTHS.values()) + 2 * TICK + 2.0
"""Seconds for which a client that no limit ends is borne, where a close may be late by
`LATE`.
"""
COARSE = 6.0
"""Seconds after which a dead client counts as held in a run that does not judge how
late its end came: on a machine that does something else besides, that says more of the
machine.
"""
HELD = max(LENGTHS.values()) + 1.0
"""Seconds after which the stock server holds one in such a run: nobody waits for it."""
APART = 0.01
"""Seconds between two clients that come: all at once they would make each other
late.
"""
LEAD = 1.0
"""Seconds for clients to come before the server is told to stop."""
BEFORE = 0.2
"""Seconds before its first act at which one of them connects: less than any limit."""
MOST_A_STOP = 8.0
"""Seconds after which a client, or a server, that a stop does not end is held."""


@dataclass(frozen=True)
class Cell:
    """One kind of clients at one server, stock and guarded, and what is wrong with
    it.
    """

    kind: Kind
    stock: End
    guarded: End
    lag: float
    late: float = LATE

    @property
    def wrong(self) -> str:
        """What the guarded server does worse; "" if nothing. A dead client is judged as
        by `conform`, and may be ended as early as stock ends it. A live one has to have
        what stock gives it, also where `conform` asks for less: an answer that says it
        is the last is no excuse.
        """
        kind, stock, guarded = self.kind, self.stock, self.guarded
        if kind.lives:
            lost = not guarded.kept and stock.kept and not self.doubt
            return f"lost what stock keeps: {guarded.about}" if lost else ""
        length = LENGTHS.get(kind.limit, LIMIT)
        most = self.limit + self.late
        if kind.world == "stop" and stock.after is not None:  # it waits for some, and then for us
            most = max(most, stock.after + LIMIT + self.late - self.lag)  # of which it has some
        of_stock = stock.early if stock.early is not None else BORNE
        ends = kind.done or kind.world == "stop"  # which takes nothing from it
        as_stock = replace(kind, done=ends or of_stock <= (guarded.early or 0) + 0.2)
        limit = Limit(length, most - length - TICK)
        if why := amiss(as_stock, guarded, limit, TICK, self.lag, EARLY):
            return why
        if self.by and not ends:
            return f"ended after {guarded.after:.2f} s, as `{self.by}` does, and not `{kind.limit}`"
        return ""

    @property
    def doubt(self) -> str:
        """Why it is not judged what a live client lost; "" if it is, or lost
        nothing.
        """
        if not self.kind.lives or self.guarded.kept:
            return ""
        return self.guarded.doubt or too_late(self.kind, SUBJECT, self.lag)

    @property
    def limit(self) -> float:
        """Seconds of the limit that ends it, with what a full buffer may hide."""
        length = LENGTHS.get(self.kind.limit, LIMIT)
        return max(length, UNSEEN) if self.kind.limit == "write" else length

    @property
    def by(self) -> str:
        """The longer limit in whose time it was ended, where its own had long been due;
        "": it was not.
        """
        after, early = self.guarded.after, self.guarded.early
        if self.kind.world != "limits" or after is None or early is None:
            return ""
        if early <= self.limit + TICK + self.lag:
            return ""
        return next(
            (
                name
                for name, each in LENGTHS.items()
                if each > self.limit and each - EARLY <= after and early <= each + TICK + self.lag
            ),
            "",
        )

    @property
    def lacks(self) -> str:
        """What HTTP allows, and the guarded server does not say; "" if nothing."""
        wanted, said = self.kind.says, self.guarded.says
        if wanted and not self.wrong and said < 400:
            return f"does not say {wanted}"
        return ""


@contextmanager
def pair(
    column: Column, folder: Path, limits: Mapping[str, str] = LIMITS
) -> Iterator[tuple[Server, Server]]:
    """The server of *column*, stock and guarded with *limits*, once both listen."""
    if "tls" in column.speaks:
        certificate(folder)
    plain = {k: v for k, v in os.environ.items() if not k.startswith("REAPER_")}
    ports = free_port(), free_port()
    with (
        serving(
            column.command(ports[0], folder, guarded=False),
            folder / "stock.log",
            port=ports[0],
            environment=plain | dict(column.unguarded or {}),
        ) as stock,
        serving(
            column.command(ports[1], folder, guarded=True),
            folder / "guarded.log",
            port=ports[1],
            environment=plain | dict(limits),
        ) as guarded,
    ):
        yield stock, guarded


async def at_both(
    kinds: Sequence[Kind], stock: Address, guarded: Address, lag: Lag, coarse: bool
) -> list[Cell]:
    """A client of each kind at each server, all at the same time."""
    borne, late = ((HELD, COARSE), COARSE) if coarse else ((BORNE, BORNE), LATE)
    lag.seconds = 0.0
    seen = await asyncio.gather(
        *(
            played(kind, where, PATIENCE if kind.lives else most, place * APART)
            for place, kind in enumerate(kinds)
            for where, most in zip((stock, guarded), borne, strict=True)
        )
    )
    return [
        Cell(
            kind,
            judged(kind, seen[2 * place]),
            judged(kind, seen[2 * place + 1]),
            lag.seconds,
            late,
        )
        for place, kind in enumerate(kinds)
    ]


async def tried(
    kinds: Iterable[Kind],
    stock: Address,
    guarded: Address,
    known: Callable[[Cell], bool] = lambda cell: False,
    tries: int = TRIES,
    *,
    coarse: bool = False,
) -> dict[str, Cell]:
    """The cells of *kinds*; what is wrong or in doubt is tried again, with less beside
    it, but not what is *known*. *coarse*: it is not judged how late the ends of dead
    clients came.
    """
    found: dict[str, Cell] = {}
    todo = list(kinds)
    async with control() as lag:
        for _ in range(tries):
            together = [kind for kind in todo if not kind.alone]
            for group in (together, *([kind] for kind in todo if kind.alone)):
                if group:
                    cells = await at_both(group, stock, guarded, lag, coarse)
                    found |= {cell.kind.name: cell for cell in cells}
            cells = [found[kind.name] for kind in todo]
            todo = [cell.kind for cell in cells if unsettled(cell) and not known(cell)]
            if not todo:
                break
    return found


async def stopped(
    kinds: Sequence[Kind], stock: Server, guarded: Server, *, coarse: bool = False
) -> dict[str, Cell]:
    """The cells of *kinds*, whose clients are there when both servers are told to stop,
    and the servers' own.
    """
    loop, late = asyncio.get_running_loop(), COARSE if coarse else LATE
    servers = stock, guarded

    async def told(server: Server, stop: float) -> float | None:
        await asyncio.sleep(stop - loop.time())
        server.stop()
        until = stop + MOST_A_STOP
        while server.status is None and loop.time() < until:
            await asyncio.sleep(OWN_LAG / 2)
        return None if server.status is None else loop.time()

    async def one(kind: Kind, where: Address, place: int, stop: float) -> Seen:
        try:
            borne = PATIENCE if kind.lives else MOST_A_STOP
            first = min(act.seconds for act in kind.acts if isinstance(act, At))
            comes = stop - loop.time() + first - BEFORE + place % 8 * APART
            return await played(kind, where, borne, comes, stop)
        except OSError:  # it came too late: that proves nothing
            return Seen([(stop, stop)], ended=stop, how="refused", late=LEAD)

    async with control() as lag:  # which takes a while to start
        stop = loop.time() + LEAD + len(kinds) * APART
        asking = [
            one(kind, each.address, n, stop) for n, kind in enumerate(kinds) for each in servers
        ]
        ends = asyncio.gather(*(told(each, stop) for each in servers))
        seen = await asyncio.gather(*asking)
        last = loop.time()
        gone = await ends
    found: dict[str, Cell] = {}
    for n, each in enumerate(seen):  # a kernel holds the rest for who takes nothing
        each.ended = gone[n % 2] if each.ended is None else each.ended
    for n, kind in enumerate(kinds):
        of_stock, mine = (judged(kind, each, stop) for each in seen[2 * n : 2 * n + 2])
        found[kind.name] = Cell(kind, of_stock, mine, lag.seconds, late)
    of_stock, mine = (End(None, None if each is None else max(0.0, each - last)) for each in gone)
    return found | {SERVER_ENDS.name: Cell(SERVER_ENDS, of_stock, mine, lag.seconds, late)}


def unsettled(cell: Cell) -> bool:
    return bool(cell.wrong or cell.lacks or cell.doubt or cell.guarded.doubt or cell.stock.doubt)


def kinds_of(column: Column, *, quick: bool = False, world: str = "limits") -> list[Kind]:
    """The kinds that *column* understands, and that are tried in *world*."""
    return [
        kind
        for kind in KINDS.values()
        if kind.speaks in column.speaks
        and kind.world == world
        and (column.own or world != "own")
        and kind is not SERVER_ENDS
        and (kind.quick or not quick)
    ]
