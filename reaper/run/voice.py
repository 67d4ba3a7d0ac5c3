"""How the watcher prints a line on COMMAND's stderr without holding it open.

One rule: *whoever reads what COMMAND writes meets the end when COMMAND ends*, or when
it closes its stderr. A descriptor of ours would keep a pipe open (`2>&1 | tee`, `docker
exec`, a step of CI). So for each line the descriptor is taken, used and closed again:

1. COMMAND's own, by pidfd_getfd(2), if it still is what stderr was when we began. A
   file is then written where COMMAND writes, not over it.
2. Where the kernel forbids that, or COMMAND has redirected its stderr: what stderr was
   is opened anew. A descriptor with O_PATH stands for it meanwhile, which keeps no pipe
   open.

A line is lost where neither is possible, and where its reader is too slow: nobody waits
for it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PIDFD_GETFD = 438  # the number of the system call, on every architecture
STDERR = 2


class Voice:
    """Prints lines on the stderr of a process.

    Args:
        pidfd: Of the process; at first it must have the same stderr as this one.
    """

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self.place: int | None = None
        """A descriptor that stands for stderr and reads and writes nothing; None if it
        is closed.
        """
        with suppress(OSError):
            found = os.open(f"/proc/self/fd/{STDERR}", os.O_PATH | os.O_CLOEXEC)
            self.place = fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, 3)  # none of the standard three
            os.close(found)

    def __call__(self, text: str) -> bool:
        """Print *text* as a line; whether that was possible. Never waits."""
        line = f"reaper run: {text}\n".encode(errors="replace")
        ways: tuple[Callable[[], int], ...] = (self._taken, self._opened)
        for way in ways:
            with suppress(OSError), _closing(way()) as fd:
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                if any(what & select.POLLOUT for _, what in poll.poll(0)):
                    os.write(fd, line)
                    return True
        return False

    def _taken(self) -> int:
        """A duplicate of the process's stderr, if that still is what it was."""
        if self.place is None:
            raise OSError("stderr is closed")
        fd = _libc.syscall(PIDFD_GETFD, self._pidfd, STDERR, 0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        if not os.path.samestat(os.fstat(fd), os.fstat(self.place)):
            os.close(fd)
            raise OSError("another stderr")
        return int(fd)

    def _opened(self) -> int:
        """What stderr was when we began, opened anew."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{self.place}", flags)


_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
