"""HTTP servers that are asked, not told: which phase a connection is in is found out when it comes due.

The rule of this module: *the server says whose turn it is, the kernel says since when*. While the server works nothing
is due. While the client has to send a request, only what the server sent counts: dripped bytes do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..asyncio import transports
from ..asyncio.protocols import Gate, Guard
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..config.settings import Timeouts
from ..policy import Phase

Ask = Callable[[Any], Phase]
"""What the connection of this transport waits for: IN_FLIGHT, BODY or TUNNEL, or KEEP_ALIVE for a request."""

ASKED = ("first_byte", "headers", "keep_alive", "body", "tunnel")
"""The timeouts of which one is in force, by the server's word."""


class PolledGuard(Guard):
    """A connection of an HTTP server that is asked.

    Its limits are `timeouts` of the config: `first_byte` until something is received, `keep_alive` between two
    requests, `headers` for one that has begun, `body`, `tunnel`, and `write`. That one has begun is noticed when the
    limit before it is over: a request that is dripped is closed within `keep_alive` + `headers`.
    """

    __slots__ = ("_ask", "_begun", "_timeouts")

    def __init__(self, reaper: AsyncioReaper, transport: Any, timeouts: Timeouts, ask: Ask) -> None:
        self._ask = ask
        self._timeouts = timeouts
        self._begun: int | None = None  # what the peer had acknowledged when its request was seen to have begun
        # Asked as often as the shortest of them may be over: what holds next is not known before.
        shortest = min(filter(None, (getattr(timeouts, name) for name in ASKED)), default=0.0)
        super().__init__(reaper, transport, shortest, lambda transport: ask(transport) is Phase.IN_FLIGHT)
        self._for_writing = (self._in_force("write"), "write")

    def _in_force(self, name: str) -> float | None:
        return self._driver.in_force(getattr(self._timeouts, name))

    def _moved(self, transport: Any, info: transports.TcpInfo) -> bool:
        phase = self._ask(transport)
        if phase in (Phase.BODY, Phase.TUNNEL):
            ago = info.received_ago if phase is Phase.BODY else min(info.received_ago, info.sent_ago)
            return self._pardoned(self._in_force(phase.value), ago, phase.value)
        if self._begun == info.acknowledged:
            return False  # the request that had begun has not come
        if info.received and info.received_ago < info.sent_ago - transports.STAMP:
            self._begun = info.acknowledged
            return self._pardoned(self._in_force("headers"), 0.0, "headers")
        name = "keep_alive" if info.received else "first_byte"
        return self._pardoned(self._in_force(name), info.sent_ago, name)


def guard(protocol_factory: Callable[[], Any], ask: Ask, *, reaper: AsyncioReaper | None = None) -> Callable[[], Any]:
    """As `reaper.asyncio.guard`, for the protocols of an HTTP server.

    Args:
        protocol_factory: The server's own.
        ask: Whose turn it is.
        reaper: Watches, by its config's `timeouts`; None: the loop's own.
    """

    def watch(transport: Any) -> None:
        watcher = reaper_of() if reaper is None else reaper
        PolledGuard(watcher, transport, watcher.config.timeouts, ask)

    return lambda: Gate(protocol_factory(), watch)
