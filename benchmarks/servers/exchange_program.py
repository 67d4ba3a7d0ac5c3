"""The program whose exchanges `exchanges.py` counts: one server in this process, its
clients in a child of its own.

    python -m benchmarks.servers.exchange_program KIND CONNECTIONS ROUNDS [counted]

One rule: *every round is the same*. In each, all clients send while the server stands
still, and the next begins when every task of the server waits again. So how many speak
at once, and what a pass of the loop finds, does not depend on how fast either side is:
callgrind and strace make this side slow, and not the clients.

*counted* is for callgrind, started with its instrumentation off: that is switched on
half-way through the warm-up, and a call of `getpriority`, which nothing else makes,
says where the rounds begin.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

BYTES = b"x" * 64
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
IDLE = 3600.0
TICK = 600.0
"""Seconds: no tick ends while it is counted, and nobody who may have vanished is looked
for. What that costs is another figure, and depends on the clock, not on the exchanges.
"""

QUIET = {"reaper.tick": TICK, "timeouts.vanished": 0.0}

WARM = 20
"""Rounds before those that are counted: the interpreter has then specialised its
code.
"""


def clients(port: int, connections: int, request: bytes) -> None:
    """Speak on all connections at a byte from standard input, say so, and read the
    answers before the next.
    """
    dialled = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    while os.read(0, 1):
        for one in dialled:
            one.sendall(request)
        os.write(1, b".")
        for one in dialled:
            data = one.recv(4096)
            if request is REQUEST:
                head, _, body = data.partition(b"\r\n\r\n")
                left = int(head.lower().partition(b"content-length: ")[2].split()[0]) - len(body)
            else:
                left = len(request) - len(data)
            while left:
                left -= len(one.recv(left))


if (
    __name__ == "__main__" and sys.argv[1] == "clients"
):  # before the imports that only the server needs
    clients(int(sys.argv[2]), int(sys.argv[3]), REQUEST if sys.argv[4] == "http" else BYTES)
    sys.exit()

import trio  # noqa: E402
import trio.testing  # noqa: E402

import reaper.trio  # noqa: E402
from reaper.config import ReaperConfig  # noqa: E402

TIMES = ReaperConfig.load(environ={}, overrides=QUIET)


async def echo(stream: Any) -> None:
    """The handler of all."""
    while data := await stream.receive_some(4096):
        await stream.send_all(data)


async def echo_touching(idle: float, r: reaper.trio.TrioReaper, stream: trio.abc.Stream) -> None:
    """Inside `watch()`, touching by hand."""
    with r.watch(stream, idle) as connection:
        touch = connection.touch
        while data := await stream.receive_some(4096):
            touch()
            await stream.send_all(data)


async def echo_move_on(idle: float, stream: trio.abc.Stream) -> None:
    """What trio's users do without a reaper."""
    while True:
        with trio.move_on_after(idle) as scope:
            data = await stream.receive_some(4096)
        if scope.cancelled_caught or not data:
            return
        await stream.send_all(data)


@asynccontextmanager
async def serving(
    serve: Callable[..., Awaitable[Any]], *options: Any, **more: Any
) -> AsyncIterator[int]:
    """The port of a server of one call: `trio.serve_tcp`, and what is made like it."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve, *options, 0, host="127.0.0.1", **more))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def watching(wrap: Callable[[reaper.trio.TrioReaper], Any]) -> AsyncIterator[int]:
    """The port of `trio.serve_tcp` with a handler that a reaper watches."""
    async with reaper.trio.open_reaper(TIMES) as r, serving(trio.serve_tcp, wrap(r)) as port:
        yield port


@asynccontextmanager
async def http(linger: float) -> AsyncIterator[int]:
    """The port of the example's HTTP server. *linger*: seconds for which a task waits
    for more before it is parked.
    """
    import server_example.http.server as example

    example.LINGER = linger
    config = ReaperConfig.load(environ={}, overrides=QUIET | {"timeouts.keep_alive": IDLE})
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        async with (
            reaper.trio.open_reaper(config) as r,
            example.HttpServer(config, r).running() as admit,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(reaper.trio.accepting.accept, listener, admit)
            yield listener.getsockname()[1]
            nursery.cancel_scope.cancel()


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: serving(trio.serve_tcp, echo),
    "plain, again": lambda: serving(trio.serve_tcp, echo),
    "serve_tcp(idle=30)": lambda: serving(reaper.trio.serve_tcp, echo, idle=IDLE, config=TIMES),
    "watched()": lambda: watching(lambda r: r.watched(echo, IDLE)),
    "watch() and touch()": lambda: watching(lambda r: partial(echo_touching, IDLE, r)),
    "move_on_after per read": lambda: serving(trio.serve_tcp, partial(echo_move_on, IDLE)),
    "serve_parked()": lambda: serving(reaper.trio.serve_parked, echo, idle=IDLE, config=TIMES),
    "http": lambda: http(IDLE),
    "http, parked": lambda: http(0.0),
}


async def run(kind: str, connections: int, rounds: int, counted: bool) -> None:
    """Serve *rounds* of exchanges, and `WARM` before them."""
    async with KINDS[kind]() as port:
        protocol = "http" if kind.startswith("http") else "echo"
        command = [sys.executable, "-S", __file__, "clients", str(port), str(connections), protocol]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert child.stdin is not None
        assert child.stdout is not None
        for turn in range(WARM + rounds):
            await trio.testing.wait_all_tasks_blocked()
            if counted and turn == WARM // 2:
                count_from_here()
            if turn == WARM:
                os.getpriority(os.PRIO_PROCESS, 0)
            os.writev(
                child.stdin.fileno(), [b"."]
            )  # not calls that a server makes: strace counts by name
            if not turn:
                await trio.lowlevel.wait_readable(child.stdout)  # they connect first
            if not os.readv(child.stdout.fileno(), [bytearray(1)]):
                raise RuntimeError("the clients have ended")
        await trio.testing.wait_all_tasks_blocked()
        if counted:
            os._exit(0)  # nothing of the end is counted
        child.stdin.close()
        child.wait()


def count_from_here() -> None:
    """Have callgrind begin. It is asked by a process of its own, and listens only while
    this one does something.
    """
    asking = subprocess.Popen(
        ["vgdb", f"--pid={os.getpid()}", "instrumentation", "on"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while asking.poll() is None:
        sum(range(1000))
    if asking.returncode:
        raise RuntimeError("vgdb could not ask callgrind to begin")


if __name__ == "__main__":
    trio.run(
        run, sys.argv[1].strip(), int(sys.argv[2]), int(sys.argv[3]), "counted" in sys.argv[4:]
    )
