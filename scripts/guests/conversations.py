"""`python -m scripts.guests.conversations [--only COLUMN] [--count 10000] [--seed 1]`:
random valid conversations in HTTP/2, each with a stock server and a guarded one.

One rule: *per stream the same bytes and the same end*. A conversation is made of its
seed alone, and no rest in it is as long as a limit, so the guard has no part in it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from loadgen.plan.acts import (
    HELLO,
    Act,
    Ask,
    Begin,
    Body,
    Cancel,
    Kind,
    Open,
    Pings,
    Rest,
    Settings,
    Trailers,
    Want,
)
from loadgen.playing.client import Address
from loadgen.playing.play import played
from reaper.config.flags import Parser

from ..serving import DidNotStart
from .columns import COLUMNS, LIMITS, PHASES, Column
from .trial import pair

PATIENCE = 20.0
"""Seconds for a whole conversation; a busy machine is slow, and that is no end."""
AT_ONCE = 20
TRIES = 10
"""How often what differs is held again, until it does not, or the stock server has lost
something, too: a busy one has timeouts of its own, and both may end a connection for
bytes that they read at once, and not for the same bytes one after the other.
"""
CHANCE = 2
"""How often a guarded server may end where stock did not: both end by chance."""
MOST_ENDS = 200
"""How often a server is started anew."""
LONGER = LIMITS | {f"REAPER_TIMEOUTS_{phase}": "10s" for phase in PHASES}
"""The settings of the guarded server: limits that no rest comes near."""
H2 = {column.name: column for column in COLUMNS.values() if "http2" in column.speaks}


def conversation(seed: int) -> Kind:
    """The conversation of that seed."""
    random = Random(seed)
    window = random.choice((1, 500, 5_000, 65_535, 1_000_000))
    most = min(60_000, max(20, 20 * window))
    acts: list[Act] = [_begin(random, window)]
    wants: list[Want] = []
    plans = [_plan(random, most) for _ in range(random.randint(1, 6))]
    begun: dict[int, int] = {}
    while plans:
        place = random.randrange(len(plans))
        plan, want = plans[place]
        step = plan.pop(0)
        if id(plan) not in begun:
            begun[id(plan)] = len(wants)
            wants.append(want)
        number = begun[id(plan)]
        if isinstance(step, Body):
            step = Body(number, step.data, step.end, step.padding)
        elif isinstance(step, Trailers):
            step = Trailers(number)
        elif isinstance(step, Cancel):
            step = Cancel(number)
        acts.append(step)
        if not plan:
            plans = [each for each in plans if each[0] is not plan]
        if random.random() < 0.3:
            acts.append(_noise(random))
    acts += [Settings(1_000_000), Open(1_000_000)]  # nothing waits for a window in the end
    return Kind(name=f"seed {seed}", speaks="http2", acts=tuple(acts), answers=tuple(wants))


def _begin(random: Random, window: int) -> Begin:
    """Half of those whose windows are wide enough for that have a reader that lags."""
    if window < 5_000 or random.random() < 0.5:
        return Begin(window=window)
    lags, piece = random.choice((0.05, 0.2, 0.5)), random.choice((40, 512, 4096))
    return Begin(window=window, lags=lags, piece=piece)


Plan = tuple[list[Act], Want]


def _plan(random: Random, most: int) -> Plan:
    """What is done on one stream, and what has to come."""
    pieces = random.choice((1, 1, 1, 2, 3))
    cancels = random.random() < 0.12
    if random.random() < 0.5:
        size = random.randint(0, most)
        path, want = random.choice(
            (
                ("/", Want(b"hello")),
                (f"/some?{size}", Want(bytes(size))),
                ("/slow?0.03", Want(b"hello")),
                ("/pause?0.03", Want(b"firstafter")),
                ("/drops?5", Want(b"0123456789" * 5)),
            )
        )
        acts: list[Act] = [Ask(path, pieces=pieces)]
    else:
        body = random.randbytes(random.randint(0, min(most, 30_000)))
        acts, want = [Ask("/echo", "POST", end=False, pieces=pieces)], Want(body)
        trails, rest = random.random() < 0.3, body
        while rest:
            size = random.randint(1, max(1, len(body) // 2))
            piece, rest = rest[:size], rest[size:]
            acts.append(Body(0, piece, end=not rest and not trails, padding=_padding(random)))
        if trails:
            acts.append(Trailers(0))
        elif not body:
            acts.append(Body(0, b"", padding=_padding(random)))
    if cancels:
        acts = [*acts[: random.randint(1, len(acts))], Cancel(0)]
        want = Want(None, status=0)
    return acts, want


def _padding(random: Random) -> int | None:
    return random.randint(0, 255) if random.random() < 0.3 else None


def _noise(random: Random) -> Act:
    """What moves nothing, and is allowed at any time."""
    return random.choice(
        (
            Pings(1),
            Settings(random.choice((0, 1_000, 65_535, 200_000))),
            Open(random.randint(1, 50_000)),
            Rest(random.choice((0.0, 0.01, 0.05, 0.3))),
        )
    )


@dataclass
class Compared:
    """What became of some conversations.

    Attributes:
        count: How many were held.
        differ: Those that the guarded server lost or changed, and the stock one never.
        stock: Those that the stock server lost, too: by chance, as on bytes that it
            reads at once or not.
        ended: How often a server ended while it was asked, and was started anew.
    """

    count: int = 0
    differ: list[str] = field(default_factory=list)
    stock: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)

    @property
    def wrong(self) -> list[str]:
        """What is the guard's doing."""
        more = self.ended["guarded"] > 2 * self.ended["stock"] + CHANCE
        return self.differ + (["the guarded server ends more often"] if more else [])

    def __str__(self) -> str:
        ended = ", ".join(f"the {how} server ended {n} times" for how, n in self.ended.items())
        return (
            f"{self.count:,} conversations; {len(self.differ)} differ, {len(self.stock)} that stock"
            f" loses, too{'; ' if ended else ''}{ended}"
        )


async def held(seed: int, stock: Address, guarded: Address) -> tuple[str, bool]:
    """How the conversation of *seed* differs at the two servers, "" if it does not; and
    whether the stock server lost something.
    """
    kind = conversation(seed)
    one, other = await asyncio.gather(*(played(kind, each, PATIENCE) for each in (stock, guarded)))
    words, lost = "", False
    for number, want in enumerate(kind.answers):
        if want.status:  # one that the client cancels may have got any part of its answer
            of_stock, mine = (
                seen.streams[number] if number < len(seen.streams) else (0, b"", "none")
                for seen in (one, other)
            )
            lost = lost or of_stock != (want.status, want.body, "whole")
            if of_stock != mine and not words:
                words = f"seed {seed}, stream {number}: {_words(mine)}, stock {_words(of_stock)}"
    return words, lost


async def _both_answer(*servers: Address) -> None:
    """Raises ConnectionRefusedError: one does not."""
    if not all(await asyncio.gather(*map(answers, servers))):
        raise ConnectionRefusedError


def _words(stream: tuple[int, bytes, str]) -> str:
    status, body, end = stream
    return f"{status}, {len(body)} bytes, {end or 'no end'}"


async def compare(
    seeds: Sequence[int],
    stock: Address,
    guarded: Address,
    found: Compared,
    at_once: int = AT_ONCE,
    until: float = 0,
) -> None:
    """Hold the conversations of *seeds*, and put what became of them into *found*, some
    at a time. *until*: an instant of the monotonic clock at which no more are begun; 0:
    none.
    """
    for place in range(0, len(seeds), at_once):
        some = seeds[place : place + at_once]
        said = await asyncio.gather(*(held(seed, stock, guarded) for seed in some))
        if any(words for words, _ in said):  # one that ends may listen a moment longer
            await _both_answer(stock, guarded)
        lists: list[tuple[list[str], str]] = []
        for seed, (first, lost) in zip(some, said, strict=True):
            words, again = first, first
            for _ in range(TRIES):
                if not again or lost:
                    break
                words = again
                again, lost = await held(seed, stock, guarded)
                await _both_answer(stock, guarded)
            if first and lost:
                lists.append((found.stock, words))
            elif again:
                lists.append((found.differ, words))
        for into, words in lists:  # not before all were held: a server may end
            into.append(words)
        found.count += len(some)
        if until and time.monotonic() > until:
            break


class Died(RuntimeError):
    """A server ends whenever it is asked; the message says which."""


def tried(column: Column, seeds: range, until: float = 0) -> Compared:
    """The conversations of *seeds* with the two servers of *column*, which are started
    for that, and anew when one has ended. Raises Died.
    """
    found, at_once = Compared(), AT_ONCE
    while found.count < len(seeds):
        left = seeds[found.count :]
        if at_once == 1:  # one of these has ended a server: which, they say alone
            left = left[:AT_ONCE]
        before = found.count
        with (
            tempfile.TemporaryDirectory() as folder,
            pair(column, Path(folder), LONGER) as (stock, guarded),
        ):
            try:
                asyncio.run(compare(left, stock.address, guarded.address, found, at_once, until))
                at_once = AT_ONCE
            except ConnectionRefusedError as error:
                which = [
                    how
                    for how, server in (("stock", stock), ("guarded", guarded))
                    if not asyncio.run(answers(server.address))
                ]
                found.ended.update(which)
                if at_once == 1 and found.count == before:
                    of = found.differ if which == ["guarded"] else found.stock
                    of.append(f"seed {left[0]}: ends the {' and the '.join(which)} server")
                    found.count += 1
                at_once = 1
                if found.ended.total() > MOST_ENDS:
                    raise Died(f"the {' and the '.join(which)} server has ended") from error
        if until and time.monotonic() > until:
            break
    return found


async def answers(address: Address) -> bool:
    """Whether whoever listens at *address* answers a request."""
    kind = Kind(name="asks", speaks="http2", acts=(Begin(), Ask()), answers=(HELLO,))
    try:
        seen = await played(kind, address, PATIENCE)
    except OSError:
        return False
    return bool(seen.answers) and seen.answers[0][0] == 200


def main() -> int:
    """Compare. Exit status: 0 no conversation differs, 1 one does, 2 bad arguments, or
    a server that does not start, or ends each time.
    """
    parser = Parser(
        prog="python -m scripts.guests.conversations", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", metavar="COLUMN", choices=tuple(H2), help="this guest alone")
    parser.add_argument("--count", type=int, default=10_000, help="of each guest; default 10,000")
    parser.add_argument("--seed", type=int, default=1, help="the first; default 1")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count {options.count}: must be 1 or more")
    seeds, wrong = range(options.seed, options.seed + options.count), 0
    for column in [H2[options.only]] if options.only else H2.values():
        try:
            found = tried(column, seeds)
        except (DidNotStart, Died) as error:
            print(f"{column.name}: {error}", file=sys.stderr)
            return 2
        wrong += len(found.wrong)
        print(f"{column.name}: seeds from {options.seed}: {found}")
        print(*(f"  {each}" for each in found.wrong), sep="\n")
        print(*(f"  stock, too: {each}" for each in found.stock), sep="\n", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
