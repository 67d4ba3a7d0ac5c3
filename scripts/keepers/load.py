"""`python -m scripts.keepers.load [--seconds 20] [--worlds] [--document]`: the same
random calls to every kind of keeper, on the real clock.

Callers take a thing, hold it for a random while (now and then for longer than the
timeout), and let go. Ends take 20 to 150 ms, and one in forty raises. Another task
computes now and then for 30 ms, so that the loop is late. An account beside it says
which calls were cut: their thing's end began while they held it, or had begun before
they got it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

import reaper.asyncio
import reaper.threads
import reaper.trio
from scripts.keepers.kinds import KINDS
from scripts.marked import show

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "keeper.md"
BEGIN = "<!-- kinds: written by `python -m scripts.keepers.load --document`, do not edit -->"
END = "<!-- end of kinds -->"

IDLE, TICK = 0.5, 0.1
KEYS, CALLERS = 60, 40


@dataclass
class Held:
    """A thing, as the account knows it."""

    users: int = 0
    left: float = field(default_factory=time.monotonic)
    ended: bool = False
    cut: int = 0


class Account:
    """What became of the calls of one keeper. Any thread may call it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: int = 0
        self.cut: int = 0
        self.early: int = 0
        self.latest: float = 0.0
        self.longest_wait: float = 0.0
        self.twice: int = 0
        self.things: list[Held] = []
        self.forgot: int = 0  # `forgotten`, before the keeper was closed

    def made(self) -> Held:
        """A thing is made."""
        held = Held()
        with self.lock:
            self.things.append(held)
        return held

    def entered(self, held: Held, waited: float) -> None:
        """A call begins, which had to wait so long for that."""
        with self.lock:
            self.calls += 1
            self.cut += held.ended
            held.users += 1
            self.longest_wait = max(self.longest_wait, waited)

    def left(self, held: Held) -> None:
        """A call is over."""
        with self.lock:
            held.users -= 1
            held.left = time.monotonic()

    def ends(self, held: Held, reason: str) -> None:
        """The end of a thing begins."""
        now = time.monotonic()
        with self.lock:
            self.twice += held.ended
            self.cut += held.users
            held.ended = True
            if reason == "idle" and not held.users:
                self.early += now - held.left < IDLE - 1e-6
                self.latest = max(self.latest, now - held.left - IDLE)

    def forgotten(self) -> int:
        """Things that nobody has used for twice the timeout, and that are there."""
        now = time.monotonic()
        with self.lock:
            return sum(
                not held.ended and not held.users and now - held.left > 2 * IDLE + TICK
                for held in self.things
            )

    def told(self) -> dict[str, float]:
        """As JSON knows it."""
        return {
            "calls": self.calls,
            "cut": self.cut,
            "early": self.early,
            "twice": self.twice,
            "latest_s": round(self.latest, 3),
            "longest_wait_s": round(self.longest_wait, 3),
            "forgotten": self.forgot,
        }


def held_for(chance: random.Random) -> float:
    """Seconds of a call: mostly short, one in twelve longer than the timeout."""
    return chance.uniform(1.2, 2.5) * IDLE if chance.random() < 1 / 12 else chance.uniform(0, 0.1)


async def work(
    account: Account, door: Callable[..., Any], sleep: Any, spawn: Any, seconds: float
) -> None:
    """Call a keeper of a loop for so long."""
    chance = random.Random(1)

    async def make(key: Any) -> Held:
        await sleep(chance.uniform(0.0, 0.02))
        return account.made()

    async def end(key: Any, held: Held, reason: str = "idle") -> None:
        account.ends(held, reason)
        await sleep(chance.uniform(0.02, 0.15))
        if chance.random() < 1 / 40:
            raise RuntimeError("this end raises")

    until = time.monotonic() + seconds

    async def caller(number: int, keeper: Any) -> None:
        mine = random.Random(number)
        while time.monotonic() < until:
            asked = time.monotonic()
            with suppress(RuntimeError, KeyError):
                async with keeper.use(mine.randrange(KEYS)) as held:
                    account.entered(held, time.monotonic() - asked)
                    try:
                        await sleep(held_for(mine))
                    finally:
                        account.left(held)
            await sleep(mine.uniform(0, 2 * IDLE))

    async def computes() -> None:
        while time.monotonic() < until:
            await sleep(0.5)
            time.sleep(0.03)

    async with door(make, end, idle=IDLE, tick=TICK) as keeper:
        await spawn([lambda n=n: caller(n, keeper) for n in range(CALLERS)] + [computes])
        await sleep(2.5 * IDLE)
        account.forgot = account.forgotten()


def on_asyncio(door: Callable[..., Any], seconds: float) -> Account:
    """Play it on asyncio."""
    account = Account()

    async def spawn(bodies: list[Any]) -> None:
        await asyncio.gather(*(body() for body in bodies))

    asyncio.run(work(account, door, asyncio.sleep, spawn, seconds))
    return account


def on_trio(door: Callable[..., Any], seconds: float) -> Account:
    """Play it on trio."""
    account = Account()

    async def spawn(bodies: list[Any]) -> None:
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(body)

    trio.run(work, account, door, trio.sleep, spawn, seconds)
    return account


def in_threads(door: Callable[..., Any], seconds: float) -> Account:
    """Play it in threads."""
    account = Account()
    until = time.monotonic() + seconds

    def make(key: Any) -> Held:
        time.sleep(random.uniform(0.0, 0.02))
        return account.made()

    def end(key: Any, held: Held, reason: str) -> None:
        account.ends(held, reason)
        time.sleep(random.uniform(0.02, 0.15))
        if random.random() < 1 / 40:
            raise RuntimeError("this end raises")

    def caller(number: int) -> None:
        mine = random.Random(number)
        while time.monotonic() < until:
            asked = time.monotonic()
            with keeper.use(mine.randrange(KEYS)) as held:
                account.entered(held, time.monotonic() - asked)
                try:
                    time.sleep(held_for(mine))
                finally:
                    account.left(held)
            time.sleep(mine.uniform(0, 2 * IDLE))

    with door(make, end, idle=IDLE, tick=TICK) as keeper:
        threads = [threading.Thread(target=caller, args=(n,)) for n in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(2.5 * IDLE)
        account.forgot = account.forgotten()
    return account


WORLDS: dict[str, Callable[[float], Account]] = {
    "asyncio": lambda seconds: on_asyncio(reaper.asyncio.open_keeper, seconds),
    "trio": lambda seconds: on_trio(reaper.trio.open_keeper, seconds),
    "threads": lambda seconds: in_threads(reaper.threads.open_keeper, seconds),
}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The table of the page."""
    lines = [
        "| keeper | calls | cut | never ended | ended late by at most | longest wait |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['calls']} | {row['cut']} | {row['forgotten']} "
            f"| {row['latest_s']:.2f} s | {row['longest_wait_s']:.2f} s |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> int:
    """The command. Returns 1 if reaper's keeper ended one in use, early or twice."""
    parser = argparse.ArgumentParser(prog="python -m scripts.keepers.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument(
        "--worlds", action="store_true", help="reaper's keeper alone, in all three worlds"
    )
    parser.add_argument("--document", action="store_true", help=f"write it into {PAGE.name}")
    given = parser.parse_args(words)
    logging.getLogger("reaper").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    rows: dict[str, dict[str, Any]] = {}
    if not given.worlds:
        for name, kind in KINDS.items():
            account = on_asyncio(kind.open, given.seconds)
            rows[name] = account.told()
            print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
    wrong = 0
    for world, play in WORLDS.items():
        account = play(given.seconds)
        name = f"`reaper.{world}.open_keeper`"
        rows[name] = account.told()
        wrong += account.cut + account.early + account.twice
        print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
    show(PAGE, BEGIN, END, table(rows), document=given.document)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
