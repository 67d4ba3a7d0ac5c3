"""Clients of which most leave before their answer, at random instants and in all
manners.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from dataclasses import dataclass, field
from typing import Any

from reaper.driver.sockets import reset_on_close

PATIENCE = 90.0
"""Seconds that a client that stays waits for its answer."""


@dataclass
class Outcome:
    """What the clients saw.

    Attributes:
        left: How many left before their answer came.
        early: How many were answered before they would have left.
        stayed, answered: How many never left; how many of them had their own answer.
        waited, heard: The same of those that sent a FIN, and went on waiting.
        wrong: What those were told that had no answer of their own; the first few.
    """

    left: int = 0
    early: int = 0
    stayed: int = 0
    answered: int = 0
    waited: int = 0
    heard: int = 0
    wrong: list[str] = field(default_factory=list)


async def leave(
    host: str, port: int, count: int, at_once: int, longest: float, seed: int
) -> Outcome:
    """Have *count* clients ask for `/work`, *at_once* at a time.

    Of ten, one stays, one sends a FIN and waits, and eight leave at an instant drawn
    from 0 to *longest* seconds: half by a close, half by a reset.
    """
    chance = random.Random(seed)
    outcome = Outcome()
    turn = asyncio.Semaphore(at_once)

    async def client(number: int) -> None:
        async with turn:
            await _client(outcome, host, port, number, chance.random() * longest)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(client(number))
    return outcome


async def _client(outcome: Outcome, host: str, port: int, number: int, patience: float) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    manner = number % 10
    try:
        writer.write(f"GET /work?n={number} HTTP/1.1\r\nhost: h\r\n\r\n".encode())
        if manner < 2:
            if manner == 1:
                outcome.waited += 1
                writer.write_eof()
            else:
                outcome.stayed += 1
            said = await _answer(reader)
            if said.endswith(str(number).encode()):
                outcome.answered += manner == 0
                outcome.heard += manner == 1
            elif len(outcome.wrong) < 5:
                outcome.wrong.append(f"{number}: {said[-80:]!r}")
            return
        try:
            await asyncio.wait_for(reader.read(1), patience)
            outcome.early += 1
        except TimeoutError:
            outcome.left += 1
        if manner % 2:
            found: socket.socket = writer.get_extra_info("socket")
            reset_on_close(found)
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """All of one answer, or what came of it."""
    said = b""
    try:
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            while head.startswith(b"HTTP/1.1 100"):
                head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    said = await reader.readexactly(int(line.partition(b":")[2]))
    except (OSError, EOFError, TimeoutError) as error:
        return repr(error).encode()
    return said


async def state_of(host: str, port: int) -> dict[str, Any]:
    """What the application says of its requests."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /state HTTP/1.1\r\nhost: h\r\n\r\n")
    found: dict[str, Any] = json.loads(await _answer(reader))
    writer.close()
    return found
