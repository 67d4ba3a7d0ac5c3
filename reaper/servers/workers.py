"""The worker processes of one server: how one of them answers for all.

The rule of this module: *nothing has to be configured*. Workers that have inherited one
listening socket belong together, whichever program started them. Each listens under an
abstract name that contains the inode of that socket, and asks the others under theirs.
Where there are no such names (not Linux), a worker knows of itself only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress

from ..asyncio.status import answer
from ..driver.sockets import borrowed, credentials, listen_as, names_of, same_user
from ..status import Page

WAIT = 1.5
"""Seconds that one worker waits for the answer of another: a stalled one is left
out.
"""

RETRY = 0.02
"""Seconds until a worker whose backlog is full is asked again."""

LARGEST = 16 << 20
"""The most bytes of one worker's answer that are used."""


class Workers:
    """This process among the workers of its server. To be made within the running loop.

    Args:
        pages: What this process answers when another asks, by path.
    """

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._tasks: set[asyncio.Task[None]] = set()
        self._family = ""
        inode = inherited() if sys.platform.startswith("linux") else 0
        if not inode:
            return
        with suppress(OSError):
            family = f"reaper-status/{os.getuid()}/{inode}/"
            listening = listen_as(f"{family}{os.getpid()}/")
            weakref.finalize(self, listening.close)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(listening.fileno(), self._accept, listening)
            self._family = family

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            asking, _ = listening.accept()
            if same_user(asking):
                task = self._loop.create_task(_answered(self._pages, asking))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                asking.close()

    def others(self) -> dict[int, list[str]]:
        """The names of the other workers that have had a connection yet, by process id.
        Any process may take such a name, so these are claims.
        """
        found: dict[int, list[str]] = {}
        for name in names_of(self._family) if self._family else ():
            pid = name.removeprefix(self._family).partition("/")[0]
            if pid.isdecimal() and int(pid) != os.getpid():
                found.setdefault(int(pid), []).append(name)
        return found

    async def ask(self, path: str) -> dict[int, bytes]:
        """What each other worker answers for *path*, by process id; empty: no answer in
        time.
        """
        asked = [
            (pid, self._ask(pid, name, path))
            for pid, names in self.others().items()
            for name in names
        ]
        found = await asyncio.gather(*(asking for _, asking in asked))
        return {pid: body for (pid, _), body in zip(asked, found, strict=True) if body is not None}

    async def _ask(self, pid: int, name: str, path: str) -> bytes | None:
        """What the worker *pid* answers; None: the name is not that worker's."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(WAIT):
                reader, writer = await asyncio.open_unix_connection(sock=await _connected(name))
                try:
                    if credentials(writer.get_extra_info("socket")) != (pid, os.getuid()):
                        return None  # any process may take a name of this kind
                    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
                    head, _, body = (await reader.read(-1))[:LARGEST].partition(b"\r\n\r\n")
                    return body if b" 200 " in head[:20] else b""
                finally:
                    writer.close()
        return b""


async def _connected(name: str) -> socket.socket:
    """Connect to the abstract *name*.

    This is done by hand: uvloop's own connect takes no such names, and asyncio's does
    not know that EAGAIN says of a Unix socket that its backlog is full and that no
    connect is under way.
    """
    while True:
        asking = socket.socket(socket.AF_UNIX)
        try:
            asking.setblocking(False)
            asking.connect(f"\0{name}")
            return asking
        except BlockingIOError:
            asking.close()
        except BaseException:
            asking.close()
            raise
        await asyncio.sleep(RETRY)


async def _answered(pages: Mapping[str, Page], asking: socket.socket) -> None:
    asking.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=asking)
    await answer(pages, reader, writer)


def inherited() -> int:
    """The least inode of the TCP sockets that this process listens on; 0: there is
    none, or nobody can tell: /proc is missing, or the last descriptor is used.
    """
    found = []
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return 0
    for name in names:
        with suppress(OSError):
            number = int(name)
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode):
                with borrowed(number) as held:
                    internet = held.family in (socket.AF_INET, socket.AF_INET6)
                    if internet and held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.append(status.st_ino)
    return min(found, default=0)
