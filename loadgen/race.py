"""`race`: reuse connections at the edge of the keep-alive, and count the requests that
are lost.

One rule: a request is lost if it went out on a connection that looked open and no
answer came, or a proxy's excuse (502, 503, 504). A connection that was seen to be
closed is not used, and nothing is sent twice.

Its clients are its own. Those of `clients` and of `playing` do more for each answer:
hundreds of them would reuse their connections later than they mean to, and lose more
requests by it.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from .clients import Speech
from .units import Target

PATIENCE = 20.0
LEAST_PAIRS = 100
"""Pairs that a rate is given of: with fewer, "none was lost" says nothing of a million.
"""
CONFIDENCE = 1.96
"""Standard deviations on each side of an interval that holds the true rate 95 times
of 100.
"""
EXCUSES = ("502", "503", "504")
"""Statuses by which a proxy says that its backend was gone."""


@dataclass
class Result:
    """What became of the second request of each pair.

    Attributes:
        reused: How many went out on the connection of the first request.
        fresh: How many went out on a new connection, because the first had been closed,
            or was too old by the server's own word.
        primes_lost: How many *first* requests got no answer. That is no race: they do
            not count.
        lost: How many second requests got no answer, or a proxy's excuse, by what
            happened.
        announced: What the server's `Keep-Alive` header says, such as "timeout=5".
        every: Whether each pair counts as tried, also those whose second request went
            out on a new connection: what is tried then is the server's own word, or
            what a proxy holds.
    """

    reused: int = 0
    fresh: int = 0
    primes_lost: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    announced: str = ""
    every: bool = False

    @property
    def tried(self) -> int:
        """How many pairs could show a loss."""
        return self.reused + self.fresh if self.every else self.reused

    @property
    def enough(self) -> bool:
        """Whether so many pairs were tried that a rate can be given."""
        return self.tried >= LEAST_PAIRS

    @property
    def per_million(self) -> float | None:
        """How many of a million requests would be lost; None if too few pairs were
        tried.
        """
        return 1e6 * self.lost.total() / (self.reused + self.fresh) if self.enough else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The least and the most of a million that the losses seen are consistent with
        (95 %).

        The interval is Wilson's (E. B. Wilson, JASA 22, 1927), which holds for no loss
        as well. None if too few pairs were tried.
        """
        if not self.enough:
            return None
        pairs, z = self.reused + self.fresh, CONFIDENCE
        rate = self.lost.total() / pairs
        middle = rate + z * z / (2 * pairs)
        half = z * math.sqrt(rate * (1 - rate) / pairs + (z / (2 * pairs)) ** 2)
        low, high = ((middle + side) / (1 + z * z / pairs) for side in (-half, half))
        return 1e6 * max(low, 0.0), 1e6 * min(high, 1.0)


class _Line:
    """The connection of one client."""

    def __init__(self, target: Target, speech: Speech, method: str) -> None:
        self.target, self.speech = target, speech
        host = speech.paths.host or str(target)
        # A byte, because a proxy may send a request without a body again, whatever its
        # method (Varnish does).
        length, body = ("", "") if method in ("GET", "HEAD") else ("Content-Length: 1\r\n", "x")
        self.request = (
            f"{method} {speech.paths.get} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n{body}".encode()
        )
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.timeout: float | None = None  # what the server has announced
        self.answered = 0.0

    async def ask(self) -> str:
        """Ask once; returns the status, or how it was lost: "closed", "reset",
        "silence".
        """
        try:
            async with asyncio.timeout(PATIENCE):
                if self.writer is None:
                    tls = self.speech.tls
                    self.reader, self.writer = await asyncio.open_connection(
                        self.target.host, self.target.port, ssl=tls.context() if tls else None,
                        server_hostname=tls.name if tls else None,
                    )  # fmt: skip
                assert self.reader is not None
                self.writer.write(self.request)
                head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
                if length := re.search(rb"\r\ncontent-length: *(\d+)", head):
                    await self.reader.readexactly(int(length[1]))
                elif b"chunked" in head:
                    await self.reader.readuntil(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return self.drop("closed")
        except TimeoutError:
            return self.drop("silence")
        except OSError:
            return self.drop("reset")
        self.answered = monotonic()
        timeout = re.search(rb"\r\nkeep-alive:[^\r]*timeout=(\d+)", head)
        self.timeout = float(timeout[1]) if timeout else None
        if b"connection: close" in head:
            self.drop("")
        return head.split(None, 2)[1].decode()

    def drop(self, why: str) -> str:
        """Close the connection, and return *why*."""
        if self.writer is not None:
            with suppress(Exception):
                self.writer.transport.abort()
        self.reader = self.writer = None
        return why

    @property
    def open(self) -> bool:
        """Whether the connection is open, as far as this side has seen."""
        return (
            self.writer is not None
            and not (self.reader and self.reader.at_eof())
            and not self.writer.is_closing()
        )


async def race(
    target: Target,
    speech: Speech,
    keep_alive: float,
    times: int,
    *,
    spread: float = 0.05,
    clients: int = 100,
    honour: bool = False,
    anew: bool = False,
    method: str = "GET",
    seed: int = 1,
) -> Result:
    """Ask twice on each connection, *keep_alive* seconds minus to plus *spread* apart,
    *times* times in all.

    Args:
        clients: so many at once, in rounds: the first requests of a round all at once,
            so that a proxy in between holds as many connections to its backend, all
            equally old.
        honour: a connection that is older than the server has announced is not used
            again.
        method: of the requests; a proxy repeats those that are safe to repeat, such as
            GET, and not a POST.
        anew: each request comes on a connection of its own: what is reused is what a
            proxy in between holds.
    """
    result, chance = Result(every=anew or honour), random.Random(seed)

    async def pair() -> None:
        line = _Line(target, speech, method)
        if await line.ask() != "200":
            result.primes_lost += 1
            line.drop("")
            return
        answered, timeout = line.answered, line.timeout
        result.announced = "" if timeout is None else f"timeout={timeout:g}"
        if anew:
            line.drop("")
        await asyncio.sleep(
            max(answered + keep_alive + spread * (2 * chance.random() - 1) - monotonic(), 0.0)
        )
        if not line.open or (honour and timeout is not None and monotonic() - answered >= timeout):
            line.drop("")
            result.fresh += 1
        else:
            result.reused += 1
        status = await line.ask()
        if not status.isdigit() or status in EXCUSES:
            result.lost[status] += 1
        line.drop("")

    for begun in range(0, times, clients):
        await asyncio.gather(*(pair() for _ in range(min(clients, times - begun))))
    return result
