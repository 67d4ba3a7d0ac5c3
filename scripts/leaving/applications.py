"""Applications that hold something while they answer: FastAPI below a
`BaseHTTPMiddleware`, Django on ASGI, and a pool of two database connections, to SQLite
and to PostgreSQL.

`/work` takes a while and answers with the number it was asked with, `/state` says what
has become of all that came.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

WORK = 2.0
"""Seconds that a request of the first two takes."""
QUERY = float(os.environ.get("LEAVING_QUERY", "0.004"))
"""Seconds for which a request of the last two holds one of the two connections."""
CONNECTIONS = 2
DATABASE = "LEAVING_DATABASE"
"""The variable that has the address of the PostgreSQL server."""
LENGTHS = "django.middleware.common.CommonMiddleware"
"""Gives each answer its length."""


class State:
    """What has become of the requests.

    Attributes:
        begun, done, cancelled, failed: How many.
        worked: Seconds that their handlers have run, together.
        error: The last that one raised.
    """

    def __init__(self) -> None:
        self.begun = self.done = self.cancelled = self.failed = 0
        self.worked = 0.0
        self.error = ""

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """One request."""
        self.begun += 1
        since = time.monotonic()
        try:
            yield
            self.done += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except Exception as error:
            self.failed += 1
            self.error = repr(error)
            raise
        finally:
            self.worked += time.monotonic() - since

    def seen(self, **more: object) -> dict[str, object]:
        """All of it, and *more*."""
        return {**vars(self), **more}


def fastapi() -> Any:
    """FastAPI, a middleware of Starlette's kind around it."""
    from fastapi import FastAPI, Request
    from starlette.middleware.base import BaseHTTPMiddleware

    state = State()
    app = FastAPI()

    async def passed(request: Request, call_next: Callable[[Request], Any]) -> Any:
        response = await call_next(request)
        response.headers["x-passed"] = "yes"
        return response

    app.add_middleware(BaseHTTPMiddleware, dispatch=passed)

    @app.get("/work")
    async def work(n: int) -> int:
        async with state.counted():
            await asyncio.sleep(WORK)
        return n

    @app.get("/state")
    async def seen() -> dict[str, object]:
        return state.seen()

    return app


def django() -> Any:
    """Django's ASGI handler with an asynchronous view."""
    from django import setup
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpRequest, HttpResponse, JsonResponse
    from django.urls import path

    state = State()

    async def work(request: HttpRequest) -> HttpResponse:
        async with state.counted():
            await asyncio.sleep(WORK)
        return HttpResponse(request.GET["n"])

    async def seen(request: HttpRequest) -> HttpResponse:
        return JsonResponse(state.seen())

    class Urls:
        urlpatterns = (path("work", work), path("state", seen))

    if not settings.configured:
        settings.configure(
            ROOT_URLCONF=Urls, ALLOWED_HOSTS=["*"], SECRET_KEY="trial", MIDDLEWARE=[LENGTHS]
        )
        setup(set_prefix=False)
    return get_asgi_application()


def database() -> Any:
    """FastAPI with a pool of `CONNECTIONS` connections to a database in memory."""
    address = "sqlite+aiosqlite:///file:leaving?mode=memory&cache=shared&uri=true"
    return _pooled(address, "select cast(:n as integer)", QUERY)


def postgresql() -> Any:
    """The same with PostgreSQL, in which the query itself takes its time: it is
    cancelled in the middle.
    """
    query = f"select cast(:n as integer) from pg_sleep({QUERY})"
    return _pooled(os.environ[DATABASE], query, 0.0)


def _pooled(address: str, query: str, pause: float) -> Any:
    """A request holds a connection for *pause* seconds, and then for *query*."""
    from fastapi import FastAPI
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import AsyncAdaptedQueuePool

    state = State()
    engine = create_async_engine(
        address,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=60,
    )
    app = FastAPI()

    @app.get("/work")
    async def work(n: int) -> int:
        async with state.counted(), engine.begin() as connection:
            await asyncio.sleep(pause)
            found = await connection.scalar(text(query), {"n": n})
        return int(found or 0)

    @app.get("/state")
    async def seen() -> dict[str, object]:
        pool: Any = engine.pool
        return state.seen(out=pool.checkedout())

    return app


APPLICATIONS: dict[str, Callable[[], Any]] = {
    "fastapi": fastapi,
    "django": django,
    "database": database,
    "postgresql": postgresql,
}
