"""Real clients near the keep-alive edge: the harness, and one guest with two posts of
each.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from scripts.guests.columns import COLUMNS
from scripts.guests.real.__main__ import (
    CLIENTS,
    HONOURS,
    OPTIONAL,
    OWN,
    compiled,
    distant,
    summed,
    table,
    tried,
)


@pytest.mark.slow
def test_every_real_client_posts_to_both_servers(tmp_path):
    clients = compiled(tmp_path)
    for name in CLIENTS:
        if name not in (*clients, *OPTIONAL):
            pytest.skip(f"the tool of {name} is not installed")
    found = tried(COLUMNS["uvicorn, h11"], OWN["uvicorn, h11"], clients, posts=1)
    asked = {name: [one[how][0] for how in ("stock", "guarded")] for name, one in found.items()}
    assert asked == {name: [2, 2] for name in clients}


def test_a_distant_server_answers_two_distances_later():
    async def main() -> tuple[bytes, float]:
        async def echo(reader, writer):
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, distant(server.sockets[0].getsockname()[1]) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            began = time.monotonic()
            writer.write(b"hello\n")
            said = await reader.read()
            writer.close()
            await writer.wait_closed()
            return said, time.monotonic() - began

    said, seconds = asyncio.run(main())
    assert said == b"hello\n"
    assert seconds >= 0.04


def test_losses_are_summed_over_guests_and_clients():
    one = {"stock": [21, 3], "guarded": [21, 1]}
    assert summed({"lost": {"a": {"x": one, "y": one}, "b": {"x": one}}}) == (9, 3)


def test_the_page_says_what_the_clients_lost_that_read_the_hint():
    one = {"stock": [21, 3], "guarded": [21, 1]}
    about = {"commit": "c", "date": "", "cpus": 2, "python": "", "load_before": 0, "load_after": 0}
    lost = {"a": {"http.client": one, HONOURS[0]: one}}
    words = table({"about": about, "posts": 20, "lost": lost})
    assert "Of 42 posts to each, the stock servers lost 6 and the guarded ones 2" in words
    assert "the clients that read the hint lost 3 and 1" in words
