"""A small server in the same process, whose connections a test treats as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from loadgen.units import Target, parse_target

T = TypeVar("T")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(
    handler: Handler, run: Callable[[Target], Awaitable[T]], host: str = "127.0.0.1", **more: Any
) -> T:
    """What *run* returns, given the address of a server whose connections *handler*
    treats.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def both() -> T:
        async with await asyncio.start_server(serve, host, 0, **more) as server:
            return await run(parse_target(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))

    return asyncio.run(both())
