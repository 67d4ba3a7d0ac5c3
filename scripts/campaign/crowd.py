"""`python -m scripts.campaign.crowd HOST:PORT COUNT SOURCE`: so many clients, from one
address, that ask once, as a browser does, and stay idle.

When all have come it prints a line of JSON: how many were answered 200, how many
anything else, how many were lost. After a line on its standard input it prints how many
of the first are open still.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

PATIENCE = 20.0
"""Seconds for one connection, and for its answer."""
COOKIE = "session=" + "k" * 400
HEADERS = {
    "Host": "app.example",
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language": "en-US,en;q=0.5",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "keep-alive",
    "Upgrade-Insecure-Requests": "1",
    "Cookie": COOKIE,
}
REQUEST = "".join(
    ["GET / HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in HEADERS.items()), "\r\n"]
).encode()


async def application(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """The ASGI application that the crowd asks: the least there can be."""
    if scope["type"] == "http":
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


def answer(client: socket.socket) -> str:
    """The status that *client* is answered, once it has asked; `lost` if there is no
    answer.
    """
    heard = b""
    with suppress(OSError):
        client.sendall(REQUEST)
        while not ended(heard) and (more := client.recv(65536)):
            heard += more
    return heard[9:12].decode() if ended(heard) else "lost"


def ended(heard: bytes) -> bool:
    """Whether *heard* is a whole answer: what is left unread would look like an end."""
    head, blank, body = heard.partition(b"\r\n\r\n")
    return bool(blank) and f"content-length: {len(body)}" in head.decode().lower()


def come(
    address: tuple[str, int], count: int, source: str
) -> tuple[list[socket.socket], Counter[str]]:
    """*count* clients come from the address *source*: those that were answered 200, and
    how many were answered what.
    """
    kept, heard = [], Counter[str]()
    for _ in range(count):
        client = socket.socket()
        client.settimeout(PATIENCE)
        said = "lost"
        with suppress(OSError):
            client.bind((source, 0))
            client.connect(address)
            said = answer(client)
        heard[said] += 1
        if said == "200":
            kept.append(client)
        else:
            client.close()
    return kept, heard


def still_open(clients: Iterable[socket.socket]) -> int:
    """How many of *clients* the server has not ended."""
    look = select.poll()
    known = [client.fileno() for client in clients]
    for descriptor in known:
        look.register(descriptor, select.POLLRDHUP)
    return len(known) - len(look.poll(0))


def main() -> None:
    """Come, tell, wait, tell."""
    target, count, source = sys.argv[1:]
    host, _, port = target.rpartition(":")
    clients, heard = come((host, int(port)), int(count), source)
    print(json.dumps(heard), flush=True)
    sys.stdin.readline()
    print(still_open(clients), flush=True)


if __name__ == "__main__":
    main()
