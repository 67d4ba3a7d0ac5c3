"""What a guarded server reports, as ASGI applications to mount: Prometheus' text, and
JSON for `reaper top`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ..asyncio.reaper import AsyncioReaper
from ..driver.status import survey
from ..metrics import CONTENT_TYPE, LoopStatistics, exposition, families, merged
from ..status import JSON, Page, document
from .workers import Workers

Application = Callable[[Any, Any, Any], Awaitable[None]]


def text(servers: Iterable[LoopStatistics]) -> str:
    """The metrics of *servers* as text; several have a label `server` (0, 1, ...)."""
    known = list(servers)
    several = len(known) > 1
    return exposition(
        ({"server": str(n)} if several else {}, families(each)) for n, each in enumerate(known)
    )


class Reports:
    """The metrics and the status of the servers of this process and of their other
    workers.

    Args:
        reapers: Returns the reapers of this process; called for each request.
    Attributes:
        metrics, status: ASGI applications that answer every GET. With several workers
            each sample has the label `worker`, the process id. A worker that has had no
            connection yet has nothing to report.
    """

    def __init__(self, reapers: Callable[[], Iterable[AsyncioReaper]]) -> None:
        self._reapers = reapers
        self._siblings: Workers | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.metrics: Application = _application(self._metrics_of_all)
        self.status: Application = _application(self._status_of_all)

    def join(self) -> None:
        """Let the other workers ask this process, which has a connection now. To be
        called within the running loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._siblings = Workers({"/metrics": self._metrics, "/status": self._status})

    async def _metrics(self) -> tuple[str, bytes]:
        return CONTENT_TYPE, text(reaper.statistics() for reaper in self._reapers()).encode()

    async def _status(self) -> tuple[str, bytes]:
        surveys = [await survey(reaper, worker=os.getpid()) for reaper in self._reapers()]
        return JSON, json.dumps(surveys).encode()

    async def _metrics_of_all(self) -> tuple[str, bytes]:
        kind, own = await self._metrics()
        others = {} if self._siblings is None else await self._siblings.ask("/metrics")
        if not others:
            return kind, own
        said = {
            str(pid): found.decode() for pid, found in sorted({**others, os.getpid(): own}.items())
        }
        return kind, merged(said, "worker").encode()

    async def _status_of_all(self) -> tuple[str, bytes]:
        _, own = await self._status()
        others = {} if self._siblings is None else await self._siblings.ask("/status")
        surveys = [
            survey for found in (own, *others.values()) if found for survey in json.loads(found)
        ]
        missing = [pid for pid, found in others.items() if not found]
        return JSON, document("asgi", sorted(surveys, key=lambda survey: survey["worker"]), missing)


_STOPPING: list[bool] = []
"""Not empty once this process is about to stop."""


def note_stopping() -> None:
    """From now on `ready` answers 503."""
    _STOPPING.append(True)


async def stopping(seconds: float) -> None:
    """Call `note_stopping`, then wait *seconds*, that is `timeouts.drain_delay`. New
    clients are served while it waits.
    """
    note_stopping()
    await asyncio.sleep(seconds)


async def ready(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application for a readiness probe: 200, and 503 once this process is to
    stop.
    """
    if _STOPPING:
        await _respond(send, 503, "text/plain", b"stopping\n")
    else:
        await _respond(send, 200, "text/plain", b"ready\n")


async def _respond(send: Any, status: int, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _application(page: Page) -> Application:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        """Answer GET with what the workers of this server report, everything else
        with 405.
        """
        if scope["type"] != "http":
            raise RuntimeError(f"this application answers HTTP requests, not {scope['type']}")
        found = scope["method"] in ("GET", "HEAD")
        kind, body = (
            await page() if found else ("text/plain; charset=utf-8", b"405 Method Not Allowed\n")
        )
        await _respond(send, 200 if found else 405, kind, body)

    return answer
