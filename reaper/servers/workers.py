"""The worker processes of one server, as far as one of them can answer for all.

The rule of this module: *nothing has to be configured*. Workers that have inherited one listening socket belong
together, whichever program started them: each listens under an abstract name with that socket's inode in it, and asks
the others by theirs. Where there are no such names (not Linux), a worker knows of itself only.
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
from pathlib import Path

from ..asyncio.status import answer
from ..driver.sockets import borrowed, user_of
from ..status import Page

WAIT = 1.5
"""Seconds that one worker waits for another: a stalled one is left out."""

LARGEST = 16 << 20
"""Bytes of an answer, at most."""


class Workers:
    """This process among the workers of its server; made within the running loop.

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
        listening = socket.socket(socket.AF_UNIX)
        weakref.finalize(self, listening.close)
        with suppress(OSError):
            listening.bind(f"\0reaper-status/{os.getuid()}/{inode}/{os.getpid()}")
            listening.listen(8)
            listening.setblocking(False)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(listening.fileno(), self._accept, listening)
            self._family = f"reaper-status/{os.getuid()}/{inode}/"

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            asking, _ = listening.accept()
            if user_of(asking) in (0, os.getuid()):
                task = self._loop.create_task(_answered(self._pages, asking))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                asking.close()

    def others(self) -> list[int]:
        """The process ids of the other workers that have had a connection yet."""
        if not self._family:
            return []
        with suppress(OSError):
            names = Path("/proc/net/unix").read_text(errors="replace").splitlines()
            found = {name.rpartition("/")[2] for name in names if f"@{self._family}" in name}
            return sorted(int(pid) for pid in found if pid.isdecimal() and int(pid) != os.getpid())
        return []

    async def ask(self, path: str) -> dict[int, bytes]:
        """What each of the others answers for *path*, by process id; empty: it did not, in time."""
        pids = self.others()
        return dict(zip(pids, await asyncio.gather(*(self._ask(pid, path) for pid in pids)), strict=True))

    async def _ask(self, pid: int, path: str) -> bytes:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(WAIT):
                asked = socket.socket(socket.AF_UNIX)
                asked.setblocking(False)
                try:
                    # By hand: uvloop's own connect takes no abstract names.
                    await self._loop.sock_connect(asked, f"\0{self._family}{pid}")
                except BaseException:
                    asked.close()
                    raise
                reader, writer = await asyncio.open_unix_connection(sock=asked)
                try:
                    if user_of(writer.get_extra_info("socket")) != os.getuid():
                        return b""  # any process may take a name of this kind
                    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
                    head, _, body = (await reader.read(-1))[:LARGEST].partition(b"\r\n\r\n")
                    return body if b" 200 " in head[:20] else b""
                finally:
                    writer.close()
        return b""


async def _answered(pages: Mapping[str, Page], asking: socket.socket) -> None:
    asking.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=asking)
    await answer(pages, reader, writer)


def inherited() -> int:
    """The inode of the first TCP socket that this process listens on; 0: there is none."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            number = int(name)
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode):
                with borrowed(number) as held:
                    internet = held.family in (socket.AF_INET, socket.AF_INET6)
                    if internet and held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.append(status.st_ino)
    return min(found, default=0)
