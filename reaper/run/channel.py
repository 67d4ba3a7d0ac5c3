"""How a Python that COMMAND started tells the watcher what it guards: one word, one
connection.

Two rules. *A program never waits*: the socket does not block, and a word that finds no
room is lost. *Only COMMAND's descendants are heard*: they alone have the socket's name,
and the kernel says who they are.

- The socket is a file in a folder of its own that nobody else may list (mode 0711),
  under a random name of 128 bits, which stands in COMMAND's environment and nowhere
  else: /proc/net/unix shows the name that it was bound to, and it was renamed since. So
  a worker that has given up its rights (gunicorn's `--user`) reaches it, and another
  user does not.
- The watcher asks the kernel who connected, and hears no process that does not come
  from COMMAND.
- A program asks the kernel who listens, and tells nobody but the watcher.

What a guest may change here: nothing in the program but, for the length of a call, one
descriptor.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ADDRESS = "REAPER_RUN_REPORT"
"""The variable of the environment that names the watcher and its socket:
`PID:UID:PATH`.
"""

PREFIX = "reaper-run-"
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid, as SO_PEERCRED has them
LONGEST_NAME = 107  # bytes that the path of a socket may have
LONGEST_WORD = 65536
BOUND = "s"
"""The name under which a socket is bound. It has another once it listens, so that
nobody takes it for one that its watcher has left: see `clear`.
"""
MOST_WAITING = 256
"""Connections that have said nothing yet; the oldest gives way to one more."""


def say(word: bytes) -> bool:
    """Send *word* to the watcher that the environment names; whether it went out. Never
    waits.
    """
    try:
        pid, uid, path = os.environ[ADDRESS].split(":", 2)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            sock.connect(path)
            their_pid, their_uid, _ = peer(sock)
            # The pid is 0 where the watcher is in another namespace: then its user has
            # to do.
            if their_pid != int(pid) if their_pid else their_uid != int(uid):
                return False
            sock.send(word)
    except (OSError, KeyError, ValueError):  # there is no watcher, or it has no room
        return False
    return True


def peer(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end of *sock*, as the kernel says."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(found)
    return pid, uid, gid


class Ears:
    """The watcher's end: hears the words of *command* and of the processes that come
    from it.

    Must be made by the process that hears: the kernel tells programs who called
    listen(2).

    Args:
        command: The process id of COMMAND.
        folder: Where the socket is made; `make_folder` made it.
    """

    def __init__(self, command: int, folder: Path) -> None:
        self._command = command
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        bound, path = folder / BOUND, folder / secrets.token_urlsafe(16)
        self._sock.bind(str(bound))
        bound.chmod(0o666)
        self._sock.listen(4096)
        bound.rename(path)
        self._waiting: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self.address: str = f"{os.getpid()}:{os.geteuid()}:{path}"

    def close(self) -> None:
        """Hear nothing more."""
        for sock in [self._sock, *self._waiting.values()]:
            sock.close()

    def words(self, end: int) -> Iterator[bytes]:
        """The words as they come, until the descriptor *end* can be read."""
        self._poll.register(end, select.POLLIN)
        while True:
            ready = [fd for fd, _ in self._poll.poll()]
            if end in ready:
                return
            for fd in ready:
                if fd == self._sock.fileno():
                    self._accept()
                elif word := self._received(fd):
                    yield word

    def _accept(self) -> None:
        with suppress(OSError):
            sock, _ = self._sock.accept()
            if not descends(peer(sock)[0], self._command):
                sock.close()
                return
            sock.setblocking(False)
            self._waiting[sock.fileno()] = sock
            self._poll.register(sock, select.POLLIN)
            if len(self._waiting) > MOST_WAITING:
                self._forget(next(iter(self._waiting)))

    def _received(self, fd: int) -> bytes:
        if fd not in self._waiting:
            return b""
        word = b""
        with suppress(OSError):
            word = self._waiting[fd].recv(LONGEST_WORD)
        self._forget(fd)
        return word

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._waiting.pop(fd).close()


def make_folder() -> Path:
    """A new folder for a socket, in the first place whose name is short enough and can
    be written.

    Raises:
        OSError: there is no such place.
    """
    # Absolute, because COMMAND may go to another folder.
    usual = os.path.abspath(tempfile.gettempdir())
    places = dict.fromkeys([usual, "/tmp", "/var/tmp", "/dev/shm"])
    for place in places:
        clear(Path(place))
        if len(os.fsencode(place)) + len("/reaper-run-12345678/") + 22 > LONGEST_NAME:
            continue
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            folder.chmod(0o711)
            return folder
    raise OSError(f"none of {', '.join(places)} can be written: TMPDIR may name another")


def remove_folder(folder: Path) -> None:
    """Remove what `make_folder` made, and the socket in it. Does nothing if it is
    gone.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def clear(place: Path) -> None:
    """Remove from *place* the folders of ours in whose socket nobody listens any more.

    A watcher that is killed cannot remove its own.
    """
    with suppress(OSError):
        for folder in place.glob(f"{PREFIX}*"):
            with suppress(OSError):
                if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                    continue
                for path in folder.iterdir():
                    if path.name == BOUND:  # its watcher is about to listen
                        continue
                    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                        sock.setblocking(False)
                        try:
                            sock.connect(str(path))
                        except ConnectionRefusedError:
                            remove_folder(folder)
                        except BlockingIOError:
                            pass  # somebody listens, and has much to do


def descends(pid: int, ancestor: int) -> bool:
    """Whether process *pid* is *ancestor* or comes from it; False once one in between
    has ended.
    """
    while pid > 1 and pid != ancestor:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return False
    return pid == ancestor
