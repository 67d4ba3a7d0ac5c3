"""Pooled clients, one for each server that is called: here httpx, and a database or
asyncssh is the same. A client that nobody uses is closed with its connections, before
the other side does it in the middle of a request. One that streams for an hour is in
use.

    python -m examples.keeper_clients http://127.0.0.1:8080/ http://127.0.0.1:8081/
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit

import httpx

import reaper.asyncio


def make(origin: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=origin)


async def end(origin: str, client: httpx.AsyncClient, reason: str) -> None:
    await client.aclose()
    print(f"{origin}: closed, {reason}")


async def main(urls: list[str], idle: float = 50.0) -> None:
    # max_age: addresses change behind a name; jitter: not all in the same instant.
    async with reaper.asyncio.open_keeper(
        make, end, idle=idle, tick=idle / 10, max_age=600, jitter=0.1, most=100
    ) as clients:

        async def get(url: str) -> None:
            parts = urlsplit(url)
            async with clients.use(f"{parts.scheme}://{parts.netloc}") as client:
                response = await client.get(parts.path or "/")
                print(url, response.status_code, len(response.content))

        await asyncio.gather(*(get(url) for url in urls * 3))
        print(len(clients), "clients for", len(urls) * 3, "requests")
        await asyncio.sleep(1.5 * idle)
        print(len(clients), "clients after a rest", flush=True)


if __name__ == "__main__":
    last = [float(sys.argv.pop())] if sys.argv[-1].replace(".", "").isdigit() else []
    asyncio.run(main(sys.argv[1:], *last))
