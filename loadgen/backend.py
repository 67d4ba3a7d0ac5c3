"""`probe --listen`: be the backend of a proxy or a pool, and measure how *it* treats the connections it holds idle.

One rule: answer every request at once, say nothing else, never close first. A wait runs from the last byte of an answer
to the close as this machine saw it; what a connection was given to do last tells which limit ended it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from .units import Target, seconds

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\nContent-Length: 2\r\n%s\r\nok"


@dataclass
class Held:
    """One connection that the proxy opened.

    Attributes:
        opened: the instant; `answered`: that of the latest answer, 0.0 before the first.
        requests: how many came on it; `gaps`: the silences after which it was used again, seconds.
        closed: the instant of its end; 0.0: it is open. `how`: "FIN" or "RST".
    """

    opened: float
    answered: float = 0.0
    requests: int = 0
    gaps: list[float] = field(default_factory=list)
    closed: float = 0.0
    how: str = ""

    @property
    def idle(self) -> float | None:
        """Seconds that it was held idle before the proxy closed it; None where it did not, or where it was not used."""
        return self.closed - self.answered if self.closed and self.answered else None


@dataclass
class Upstream:
    """What a proxy did with its connections to this backend."""

    connections: list[Held]
    waited: float

    @property
    def idles(self) -> list[float]:
        """How long each connection that it closed was idle, ascending."""
        return sorted(held.idle for held in self.connections if held.idle is not None)

    @property
    def reused(self) -> float | None:
        """The longest silence after which a connection was used again, seconds."""
        return max((gap for held in self.connections for gap in held.gaps), default=None)

    def row(self) -> tuple[str, ...]:
        """Under HEADINGS."""
        idles = self.idles
        used = [held for held in self.connections if held.requests]
        still = sum(not held.closed for held in used)
        observed = f"{idles[0]:.3f}-{idles[-1]:.3f}s" if idles else f"still open after {seconds(self.waited)}"
        ends = "/".join(sorted({held.how for held in used if held.how})) or "-"
        reused = "never" if self.reused is None else f"after {seconds(self.reused)}"
        return observed, reused, ends, f"{len(used) - still}/{len(used)}", f"{sum(h.requests for h in used)}"


HEADINGS = ("closes its idle connection after", "reused", "ends with", "closed", "requests")


class _Backend(asyncio.Protocol):
    def __init__(self, held: list[Held], timeout: float | None) -> None:
        self.all = held
        self.data = b""
        self.left = 0  # of a request's body
        self.answer = ANSWER % (b"" if timeout is None else b"Keep-Alive: timeout=%d\r\n" % timeout)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.held = Held(monotonic())
        self.all.append(self.held)

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        self.data += data
        while True:
            skipped = min(self.left, len(self.data))
            self.data, self.left = self.data[skipped:], self.left - skipped
            head, end, rest = self.data.partition(b"\r\n\r\n")
            if not end:
                return
            self.data = rest
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self.left = int(lengths[0].split(b":")[1]) if lengths else 0
            if self.held.answered:
                self.held.gaps.append(now - self.held.answered)
            self.held.requests += 1
            self.held.answered = monotonic()
            self.transport.write(self.answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.held.closed = monotonic()
        self.held.how = "FIN" if error is None else "RST"


async def listen(
    target: Target, wait: float, keep_alive: float | None = None, ready: Callable[[Target], None] = lambda where: None
) -> Upstream:
    """Be the backend at *target* (port 0: any) until every connection that was used has been closed, or has been idle
    for *wait* seconds; at the latest *wait* seconds after the latest request. *keep_alive*: seconds to announce.

    *ready* is called with the address when it listens.
    """
    held: list[Held] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Backend(held, keep_alive), target.host, target.port, family=target.family
    )
    async with server:
        ready(target._replace(port=server.sockets[0].getsockname()[1]))
        begun = monotonic()
        while True:
            await asyncio.sleep(0.1)
            now = monotonic()
            used = [each for each in held if each.requests]
            latest = max((each.answered for each in used), default=begun)
            if now - latest > wait or (used and all(each.closed for each in used) and now - latest > 1.0):
                break
    return Upstream(held, wait)
