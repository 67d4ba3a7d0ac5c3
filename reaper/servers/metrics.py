"""What a guarded server reports about itself, as an ASGI application to mount: Prometheus' text format.

The rule of this module: *text is made on demand*. It needs no other package.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ..metrics import CONTENT_TYPE, LoopStatistics, exposition, families


def text(servers: Iterable[LoopStatistics]) -> str:
    """The metrics of *servers*, each under its number if there are several."""
    known = list(servers)
    several = len(known) > 1
    return exposition(({"server": str(n)} if several else {}, families(each)) for n, each in enumerate(known))


def application(servers: Callable[[], Iterable[LoopStatistics]]) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """An ASGI application that answers every GET with the metrics of *servers*.

    It says what this process knows: with several workers each answers for itself.
    """

    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        """The metrics of this process."""
        if scope["type"] != "http":
            raise RuntimeError(f"metrics are asked for by HTTP, not by {scope['type']}")
        found = scope["method"] in ("GET", "HEAD")
        body = text(servers()).encode() if found else b"405 Method Not Allowed\n"
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if found else 405, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return metrics
