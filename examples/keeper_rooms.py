"""Sessions of a hub: rooms with a history, which clients come to by WebSocket, leave
and come back to. A room is in use while anybody is in it, however quiet it is, and is
kept for a while after the last one has left: who reconnects finds its history.

    python -m examples.keeper_rooms 8080, then: python -m websockets ws://127.0.0.1:8080/lobby
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass, field

from websockets.asyncio.server import ServerConnection, broadcast, serve

import reaper.asyncio


@dataclass
class Room:
    history: list[str] = field(default_factory=list)
    members: set[ServerConnection] = field(default_factory=set)


def end(name: str, room: Room, reason: str) -> None:
    print(f"{name}: {len(room.history)} messages forgotten, {reason}", flush=True)


async def main(port: int, idle: float = 1800.0) -> None:
    async with reaper.asyncio.open_keeper(
        lambda name: Room(), end, idle=idle, tick=idle / 10
    ) as rooms:

        async def talk(socket: ServerConnection) -> None:
            name = socket.request.path if socket.request else "/"
            async with rooms.use(name) as room:
                room.members.add(socket)
                try:
                    for line in room.history:
                        await socket.send(line)
                    async for message in socket:
                        room.history.append(str(message))
                        broadcast(room.members, str(message))
                finally:
                    room.members.discard(socket)

        async with serve(talk, "127.0.0.1", port):
            await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), *map(float, sys.argv[2:])))
