"""As `stalled_timeout`, on trio: it looks at its sockets before it looks at deadlines,
and so a timeout around a read keeps what came while the loop stood still.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from functools import partial

import trio

CLIENTS, IDLE = 100, 0.5


async def echo(stream: trio.SocketStream) -> None:
    async with stream:
        with contextlib.suppress(trio.TooSlowError):
            while True:
                with trio.fail_after(IDLE):
                    data = await stream.receive_some(100)
                if not data:
                    break
                await stream.send_all(data)


async def answered() -> int:
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, echo, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        address = listeners[0].socket.getsockname()
        clients = [socket.create_connection(address) for _ in range(CLIENTS)]
        await trio.sleep(IDLE / 5)  # all are accepted, and none is due
        sender = threading.Thread(target=lambda: [client.sendall(b"x") for client in clients])
        sender.start()
        time.sleep(3 * IDLE)  # the stall: nothing is read, and no timer fires
        await trio.sleep(IDLE / 5)
        got = 0
        for client in clients:
            client.setblocking(False)
            with client, contextlib.suppress(OSError):  # not answered, or reset
                got += client.recv(1) == b"x"
        await trio.sleep(IDLE / 5)  # the handlers hear of the ends
        nursery.cancel_scope.cancel()
    return got


if __name__ == "__main__":
    print(f"trio.fail_after     {trio.run(answered)} of {CLIENTS} clients got their answer")
