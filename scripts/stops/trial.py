"""One stop: a server, its clients, what it is told, and what became of them.

One rule: *what is not over is cut off by us, and counted as not over*. A stock server
may never end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loadgen.conform.judge import judged
from loadgen.plan.acts import Kind, Send, Until, Want
from loadgen.plan.requests import get
from loadgen.playing import client
from loadgen.playing.play import played

from ..serving import ROOT, Server, free_port, stock
from . import words

HERE = Path(__file__).parent
APP = "stops.app:application"
"""In a copy of this folder, so that a reload touches nothing else."""
COMMANDS = stock(APP, "stops.app_aiohttp")

RELOADS = {
    "uvicorn": ("--reload", "--reload-dir", "stops"),
    "uvicorn, h11": ("--reload", "--reload-dir", "stops"),
    "hypercorn": ("--reload",),
    "hypercorn, trio": ("--reload",),
}
"""The flags of those that start anew when a file has changed."""

STREAMS, SOCKETS = "/events", "/ws"
ANSWERS = ("/slow", "/download")
UPGRADE = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
LAST_CHUNK = b"\r\n0\r\n\r\n"
RESTART = 1012
"""The code with which a WebSocket is closed because its server restarts."""
CLOSES = b"\x88"
"""The first byte of a closing frame; the code is in the third and the fourth."""
OPEN = {
    STREAMS: (Send(get(STREAMS)), Until(text=words.TICK)),
    SOCKETS: (Send(get(SOCKETS, *UPGRADE)), Until(text=b"\r\n\r\n")),
    **{path: (Send(get(path)),) for path in ANSWERS},
}
"""What each client has done when it is there."""
TOLD = {STREAMS: (Until(text=words.LAST),)}
"""What it hears then."""
KINDS = {
    path: Kind(name=path, acts=(*acts, *TOLD.get(path, ())), limit="a stop")
    for path, acts in OPEN.items()
}
"""The clients, by what they ask for; each hears all until the server ends its
connection: a WebSocket's does not say goodbye.
"""
ASKS = Kind(
    name="asks",
    acts=(Send(get("/", "Connection: close")),),
    answers=(Want(None, ends=words.WHOLE),),
)
AT_A_TIME = 100
"""Connections that are opened together."""
LOOK = 0.02
"""Seconds between two looks at the server."""
FOREVER = 3600.0


def command_of(server: str, port: int, *flags: str, guarded: bool) -> list[str]:
    """The command of *server*, stock, or guarded by `reaper run`, which listens on
    *port*.
    """
    words = list(COMMANDS[server])
    where = f"127.0.0.1:{port}" if words[-1] == "-b" else str(port)
    before = [sys.executable, "-m", "reaper", "run", "--"] if guarded else []
    return [*before, *words, where, *flags]


@dataclass
class Heard:
    """What the client that asked for *path* heard."""

    path: str
    seen: client.Seen = field(default_factory=client.Seen)

    @property
    def data(self) -> bytes:
        """All that came."""
        return self.seen.data

    @property
    def told(self) -> float | None:
        """The instant, by the loop's clock, at which a stream was told; None: it was
        not.
        """
        there = len(OPEN[self.path]) + 1
        return self.seen.marks[there][1] if len(self.seen.marks) > there else None

    @property
    def ended(self) -> float | None:
        """The same of the end of its connection."""
        return self.seen.ended

    @property
    def whole(self) -> bool:
        """Whether what was promised came to its proper end: the last chunk, or a
        closing frame.
        """
        if self.path == SOCKETS:
            return self.code > 0
        proper = self.data.endswith(LAST_CHUNK)
        return proper and (self.path == STREAMS or words.WHOLE in self.data)

    @property
    def code(self) -> int:
        """Of that frame; 0 if there is none."""
        frames = self.data.partition(b"\r\n\r\n")[2]
        return int.from_bytes(frames[2:4], "big") if frames.startswith(CLOSES) else 0


@dataclass
class Seen:
    """What became of a stop; seconds since the signal, unless they are said to be
    something else.

    Attributes:
        streams, sockets, answers: What each of their clients heard.
        signalled: When the server was told, by the loop's clock.
        gone: When the process that served had ended; None: not within the patience.
        back: In a reload: when another process answered; None: not within the patience.
        lifespan: Whether the application was told that the server has stopped.
        kept: For how many seconds the machine kept the server, or its clients, from
            running: what is late by no more than that is not the server's doing.
    """

    streams: list[Heard] = field(default_factory=list)
    sockets: list[Heard] = field(default_factory=list)
    answers: list[Heard] = field(default_factory=list)
    signalled: float = 0.0
    gone: float | None = None
    back: float | None = None
    lifespan: bool = False
    kept: float = 0.0
    log: str = ""

    def since(self, instant: float | None) -> float | None:
        """Seconds from the signal to *instant*."""
        return None if instant is None else round(instant - self.signalled, 2)

    @property
    def last_stream(self) -> float | None:
        """When the last stream ended; None: one did not."""
        ends = [each.ended for each in self.streams]
        return None if None in ends else self.since(max(filter(None, ends), default=None))

    @property
    def after_answers(self) -> float | None:
        """Seconds from the end of the last answer to the end of the process."""
        ends = [each.ended for each in (*self.answers, *self.streams, *self.sockets) if each.ended]
        return (
            None if self.gone is None else round(self.gone - max(ends, default=self.signalled), 2)
        )

    @property
    def spread(self) -> float:
        """Seconds between the first WebSocket that ended and the last."""
        ends = [each.ended for each in self.sockets if each.ended]
        return round(max(ends) - min(ends), 2) if ends else 0.0


async def listen(
    address: client.Address, path: str, ready: asyncio.Semaphore
) -> tuple[Heard, asyncio.Task[client.Seen]]:
    """A client that asks for *path*. Returns when its stream or WebSocket is open, or
    its request is sent.
    """
    heard = Heard(path)
    async with ready:
        task = asyncio.create_task(played(KINDS[path], address, FOREVER, seen=heard.seen))
        while len(heard.seen.marks) <= len(OPEN[path]):
            if task.done():
                raise RuntimeError(f"{path}: closed after {task.result().data[-200:]!r}")
            await asyncio.sleep(LOOK)
    return heard, task


async def stopped(
    server: Server,
    how: str = "SIGTERM",
    *,
    streams: int = 1,
    sockets: int = 0,
    answers: int = 1,
    patience: float = 20.0,
) -> Seen:
    """Open that many connections of each kind, tell *server* to stop, and hear what
    becomes of them.

    Args:
        how: `SIGTERM` to its process; `Ctrl-C`: SIGINT to its group, as a terminal
            sends it; `reload`: a file that it watches is touched.
        answers: How many clients ask for each of `ANSWERS`.
        patience: Seconds after which the clients leave by themselves.
    """
    clock = asyncio.get_running_loop().time
    seen, ready = Seen(), asyncio.Semaphore(AT_A_TIME)
    wanted = [STREAMS] * streams + [SOCKETS] * sockets
    opened = list(await asyncio.gather(*(listen(server.address, path, ready) for path in wanted)))
    opened += [
        await listen(server.address, path, ready) for path in ANSWERS for _ in range(answers)
    ]
    for heard, _ in opened:
        of = {STREAMS: seen.streams, SOCKETS: seen.sockets}.get(heard.path, seen.answers)
        of.append(heard)
    await asyncio.sleep(0.5)
    pids = _tree(server.pid)
    seen.signalled = clock()
    if how == "reload":
        (server.log.parent / "stops" / "words.py").touch()
    elif how == "Ctrl-C":
        os.killpg(server.pid, signal.SIGINT)
    else:
        os.kill(server.pid, signal.SIGTERM)
    listening = [task for _, task in opened]
    ending = asyncio.create_task(_watch(server, pids, how, seen))
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await asyncio.wait([*listening, ending])
    for task in (*listening, ending):
        task.cancel()
    await asyncio.gather(*listening, ending, return_exceptions=True)
    seen.log = server.said()
    seen.lifespan = words.ENDED in seen.log
    return seen


def _tree(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


async def _watch(server: Server, before: list[psutil.Process], how: str, seen: Seen) -> None:
    """Note when the process that served has ended; in a reload also when another one
    answers.
    """
    clock = asyncio.get_running_loop().time
    kept = {each.pid: kept_waiting(each.pid) for each in before}
    ours = 0.0
    while (
        all(each.is_running() for each in before[1:])
        if how == "reload"
        else server.process.poll() is None
    ):
        slept = clock()
        await asyncio.sleep(LOOK)
        ours = max(ours, clock() - slept - LOOK)
        theirs = max(kept_waiting(pid) - waited for pid, waited in kept.items())
        seen.kept = max(seen.kept, theirs + ours)  # who has ended has waited for nothing
    seen.gone = clock()
    while how == "reload" and seen.back is None:
        if await _answers(server):
            seen.back = clock()
        await asyncio.sleep(0.05)


def kept_waiting(pid: int) -> float:
    """Seconds for which the main thread of that process could have run, and another one
    did; 0 if it has ended, or the kernel does not count them.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


async def _answers(server: Server) -> bool:
    with suppress(OSError):
        return bool(judged(ASKS, await played(ASKS, server.address, 0.5)).kept)
    return False


def tried(
    name: str,
    folder: Path,
    how: str = "SIGTERM",
    *,
    guarded: bool = True,
    settings: Mapping[str, str] | None = None,
    streams: int = 1,
    sockets: int = 0,
    answers: int = 1,
    patience: float = 20.0,
) -> Seen:
    """`stopped` of the server *name*, started for that with *settings*, variables
    REAPER_*.
    """
    port = free_port()
    shutil.copytree(HERE, folder / "stops", dirs_exist_ok=True)
    command = command_of(name, port, *RELOADS[name] if how == "reload" else (), guarded=guarded)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **(settings or {})}
    server = Server(
        command, folder / "server.log", cwd=folder, port=port, environment=environment, session=True
    )
    try:
        server.wait_until_it_listens()
        return asyncio.run(
            stopped(
                server, how, streams=streams, sockets=sockets, answers=answers, patience=patience
            )
        )
    finally:
        server.stop()
        server.end(3.0)
