"""`probe --listen`: this program is the backend of a proxy, and measures how *that*
treats idle connections.

One rule: every request is answered at once, nothing else is said, and no connection is
closed here first. A wait runs from the last byte of an answer to the close as this
machine saw it. What the proxy was given last on a connection tells which limit ended
it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic

from .units import Target, seconds

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\n"
    b"Content-Length: 2\r\n%s\r\nok"
)
"""What every request is answered with; the place in it is for one more header."""
HEADINGS = ("closes its idle connection after", "reused", "ends with", "closed", "requests")


@dataclass
class Held:
    """One connection that the proxy opened.

    Attributes:
        opened: The instant at which it was accepted, in seconds on the monotonic clock.
        answered: The instant of the latest answer; 0.0 before the first.
        requests: How many came on it.
        gaps: The silences after which the proxy used it again, in seconds.
        closed: The instant of its end; 0.0 while it is open.
        how: "FIN" or "RST"; empty while it is open.
    """

    opened: float
    answered: float = 0.0
    requests: int = 0
    gaps: list[float] = field(default_factory=list)
    closed: float = 0.0
    how: str = ""


@dataclass
class Upstream:
    """What a proxy did with its connections, while this backend waited for *waited*
    seconds.
    """

    connections: list[Held]
    waited: float

    @property
    def idles(self) -> list[float]:
        """For how many seconds each connection was idle that the proxy closed;
        ascending.
        """
        return sorted(
            held.closed - held.answered
            for held in self.connections
            if held.closed and held.answered
        )

    def reused(self) -> str:
        """Say after which silence, at most, the proxy used a connection again."""
        gaps = [gap for held in self.connections for gap in held.gaps]
        return f"after {seconds(max(gaps))}" if gaps else "never"

    def row(self) -> tuple[str, ...]:
        """The cells below `HEADINGS`."""
        idles = self.idles
        used = [held for held in self.connections if held.requests]
        observed = (
            f"{idles[0]:.3f}-{idles[-1]:.3f}s"
            if idles
            else f"still open after {seconds(self.waited)}"
        )
        ends = "/".join(sorted({held.how for held in used if held.how})) or "-"
        closed = f"{sum(bool(held.closed) for held in used)}/{len(used)}"
        return observed, self.reused(), ends, closed, f"{sum(held.requests for held in used)}"


async def _serve(
    held: Held, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes
) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            now = monotonic()
            if length := re.search(rb"\r\ncontent-length: *(\d+)", head.lower()):
                await reader.readexactly(int(length[1]))
            if held.answered:
                held.gaps.append(now - held.answered)
            held.requests += 1
            held.answered = monotonic()
            writer.write(answer)
    except (asyncio.IncompleteReadError, OSError) as error:
        held.closed = monotonic()
        held.how = "RST" if isinstance(error, OSError) else "FIN"
    finally:
        writer.close()


async def listen(
    target: Target,
    wait: float,
    keep_alive: float | None = None,
    ready: Callable[[Target], None] = lambda where: None,
) -> Upstream:
    """Serve as the backend at *target* until the proxy has closed every connection that
    it used.

    Args:
        target: Where to listen; port 0 is any that is free.
        wait: Seconds after the latest request after which the proxy is not waited for
            any longer.
        keep_alive: Seconds to announce as `Keep-Alive: timeout=`; None announces
            nothing.
        ready: Called with the address as soon as this listens.
    """
    held: list[Held] = []
    answer = ANSWER % (b"" if keep_alive is None else b"Keep-Alive: timeout=%d\r\n" % keep_alive)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(Held(monotonic()))
        await _serve(held[-1], reader, writer, answer)

    server = await asyncio.start_server(serve, target.host, target.port, family=target.family)
    with closing(server):  # `async with` would wait, since Python 3.12, for what stays open
        ready(target._replace(port=server.sockets[0].getsockname()[1]))
        begun = monotonic()
        while True:
            await asyncio.sleep(0.1)
            used = [each for each in held if each.requests]
            since = monotonic() - max((each.answered for each in used), default=begun)
            if since > wait or (used and all(each.closed for each in used) and since > 1.0):
                return Upstream(held, wait)
