"""One real client: `python -m scripts.guests.real.clients NAME PORT REST,REST,...`.

It posts, rests, and posts again on the connection that it keeps, and prints a line of
JSON: how many it `asked`, and how many it `lost`. Whatever a library does by itself it
may do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any


def _count(post: Callable[[], int], rests: list[float]) -> dict[str, int]:
    asked = lost = 0
    for rest in (0.0, *rests):
        time.sleep(rest)
        asked += 1
        try:
            lost += post() != 200
        except Exception:
            lost += 1
    return {"asked": asked, "lost": lost}


def http_client(port: int, rests: list[float]) -> dict[str, int]:
    """Python's own, which never looks whether its connection has been closed."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def post() -> int:
        try:
            connection.request("POST", "/echo", b"hello")
            with connection.getresponse() as response:
                response.read()
                return response.status
        except Exception:
            connection.close()
            raise

    return _count(post, rests)


def requests(port: int, rests: list[float]) -> dict[str, int]:
    """requests, with a session."""
    import requests as library

    session = library.Session()
    url = f"http://127.0.0.1:{port}/echo"
    return _count(lambda: session.post(url, data=b"hello", timeout=20).status_code, rests)


def httpx(port: int, rests: list[float]) -> dict[str, int]:
    """httpx, with a client that keeps connections for longer than the server."""
    import httpx as library

    limits = library.Limits(keepalive_expiry=60)
    with library.Client(limits=limits, timeout=20, trust_env=False) as client:
        url = f"http://127.0.0.1:{port}/echo"
        return _count(lambda: client.post(url, content=b"hello").status_code, rests)


def curl(port: int, rests: list[float]) -> dict[str, int]:
    """libcurl, by pycurl, with one handle: it keeps its connection, and sends again
    what a connection that it had kept did not take.
    """
    pycurl: Any = import_module("pycurl")
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, f"http://127.0.0.1:{port}/echo")
    handle.setopt(pycurl.POSTFIELDS, "hello")
    handle.setopt(pycurl.WRITEFUNCTION, len)
    handle.setopt(pycurl.TIMEOUT, 20)

    def post() -> int:
        handle.perform()
        return int(handle.getinfo(pycurl.RESPONSE_CODE))

    return _count(post, rests)


def aiohttp(port: int, rests: list[float]) -> dict[str, int]:
    """aiohttp, with a session that keeps connections for longer than the server."""
    import aiohttp as library

    async def main() -> dict[str, int]:
        asked = lost = 0
        connector = library.TCPConnector(keepalive_timeout=60)
        async with library.ClientSession(connector=connector) as session:
            for rest in (0.0, *rests):
                await asyncio.sleep(rest)
                asked += 1
                try:
                    url = f"http://127.0.0.1:{port}/echo"
                    async with session.post(url, data=b"hello") as response:
                        await response.read()
                        lost += response.status != 200
                except Exception:
                    lost += 1
        return {"asked": asked, "lost": lost}

    return asyncio.run(main())


if __name__ == "__main__":
    chosen = globals()[sys.argv[1]]
    print(json.dumps(chosen(int(sys.argv[2]), [float(each) for each in sys.argv[3].split(",")])))
