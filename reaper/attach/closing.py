"""Ending a connection of another process: gracefully, by shutdown(2) on a duplicate of
its socket, or by SOCK_DESTROY.

One rule: *the final check and the close concern the same socket, one call apart*.
pidfd_getfd(2) pins it: whatever the server does meanwhile, no later connection can be
hit. Where question and answer fell into one jiffy, only a socket in hand tells whose
turn it is; so the socket is taken before SOCK_DESTROY, too, if the kernel allows it.

After shutdown the client has received everything that was queued, then an end of file;
the server reads an end of file and cleans up by itself, as if the client had hung up.
SOCK_DESTROY resets both sides: for servers that ignore an end of file, and those whose
descriptors may not be taken.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Callable

from .holders import PAUSE
from .kernel import NO_PROC, SHUTDOWN_INSTEAD, Refusal
from .sockets import ask, end
from .targets import Target
from .tcpinfo import Snapshot

SYS_PIDFD_GETFD = 438  # the same number on every architecture but Alpha
CAP_NET_ADMIN = 12
CAPABILITIES_OF_64_BITS = 0x20080522
"""linux/capability.h: _LINUX_CAPABILITY_VERSION_3."""

SCAN_EVERY = 1.0
"""Seconds, at least, between two readings of all descriptors."""


class Hands:
    """Takes duplicates of the sockets of *target*'s processes, and ends connections by
    them.

    Args:
        target: Knows which process holds a socket, and as which descriptor.
        destroys: Whether connections are aborted by SOCK_DESTROY instead of
            shutdown(2). Then a connection whose socket cannot be taken gets its final
            check from outside.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, target: Target, destroys: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._kernel = target.kernel
        self._destroys = destroys
        self._clock = clock

    def check_rights(self) -> None:
        """Make sure, by something that changes nothing, that connections could be
        ended.

        Raises:
            Refusal: a right or a feature of the kernel is missing.
        """
        if self._destroys:
            if not has_capability(CAP_NET_ADMIN):
                raise Refusal(
                    "--how destroy needs CAP_NET_ADMIN in the network namespace of the target: "
                    "run as root, under systemd with AmbientCapabilities=CAP_NET_ADMIN, "
                    f"or {SHUTDOWN_INSTEAD}"
                )
            self._kernel.destroy(struct.pack("=40xQ", 1))  # no socket has these addresses
            return
        target = self._target
        target.scan()
        while not (places := self._listening()) and (target.searching or target.knows_more):
            if target.knows_more:
                target.scan()
            elif target.read_on() is None:
                time.sleep(PAUSE)
        if not places and not os.path.isdir("/proc/self"):
            raise Refusal(f"closing connections of {target}: {NO_PROC}")
        if not places:
            raise Refusal(
                f"closing connections of {self._target} needs CAP_SYS_PTRACE: no process whose "
                "descriptors may be read serves it; run as its user or as root; "
                "without --close nothing is needed"
            )
        check_shutdown(*places[0])

    def _listening(self) -> list[tuple[int, int]]:
        """Where the listening sockets are held, as far as that is known."""
        found = (self._target.find(one.inode) for one in self._target.listeners())
        return [place for place in found if place is not None]

    def end(self, ident: bytes, inode: int, again: Callable[[Snapshot], bool]) -> str:
        """End the connection with *ident* if *again*, given a final check of that very
        socket, says so.

        Returns:
            "closed"; "averted": *again* said no; "gone": it ended by itself;
            "unreachable": no process that we may touch holds it; "later": ask again in
            a moment.
        Cost: about 15 us; and at most once per second a scan, when a descriptor is not
        where it was.
        """
        destroy = self._kernel.destroy
        abort = (lambda: destroy(ident)) if self._destroys else None
        outcome = self._with(inode, lambda held: end(held, ident, again, self._clock, abort))
        if outcome != "unreachable" or not self._destroys:
            return outcome
        (seen,) = self._kernel.look([ident])
        if seen is None:
            return "gone"
        if not again(seen):
            return "averted"
        return "closed" if destroy(ident) else "gone"

    def ask(self, ident: bytes, inode: int, seconds: int) -> str:
        """Have the kernel ask the peer whenever it was silent for *seconds*.

        Returns:
            "asked"; "unreachable": no process that we may touch holds the socket;
            "later": its holder is not known yet, try again in a moment.
        """
        return self._with(inode, lambda held: ask(held, ident, seconds))

    def _with(self, inode: int, use: Callable[[int], str]) -> str:
        """Call *use* with a duplicate of the socket *inode*, which *use* closes; return
        its answer.

        *use* says "other" if the duplicate is another socket: the descriptor was closed
        and reused since the descriptors were read. Then they are read again, once per
        `SCAN_EVERY`, and at once if another process serves the target now.
        """
        outcome = self._try(inode, use)
        if outcome in ("other", "unreachable"):
            recent = self._clock() - self._target.read_at < SCAN_EVERY
            if recent and not self._target.knows_more:
                return "later"
            self._target.scan()
            outcome = self._try(inode, use)
            if outcome in ("other", "unreachable") and self._target.searching:
                return "later"
        return "unreachable" if outcome == "other" else outcome

    def _try(self, inode: int, use: Callable[[int], str]) -> str:
        place = self._target.find(inode)
        if place is None:
            return "unreachable"
        try:
            held = take(*place)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ESRCH):
                return "other"
            if error.errno in (errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOSYS):
                return "unreachable"
            raise
        return use(held)


def take(pid: int, fd: int) -> int:
    """A duplicate, in this process, of descriptor *fd* of process *pid*.

    Raises:
        OSError: EPERM: ptrace rules forbid it; EBADF: there is no such descriptor;
            ESRCH: the process has ended; ENOSYS: Linux is older than 5.6.
    """
    pidfd = os.pidfd_open(pid)
    try:
        found: int = _libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
        if found < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return found
    finally:
        os.close(pidfd)


_libc = ctypes.CDLL(None, use_errno=True)


def check_shutdown(pid: int, fd: int) -> None:
    """Make sure that connections of *pid* can be ended: take one of its sockets and let
    it go.

    Raises:
        Refusal: the kernel or its ptrace rules do not let us.
    """
    try:
        os.close(take(pid, fd))
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise Refusal(f"process {pid} has ended") from None
        if error.errno == errno.EPERM:
            raise Refusal(
                f"closing connections of process {pid} needs CAP_SYS_PTRACE, and "
                "kernel.yama.ptrace_scope below 3: run as root, or under systemd with "
                "AmbientCapabilities=CAP_SYS_PTRACE; --how destroy needs only CAP_NET_ADMIN; "
                "without --close nothing is needed"
            ) from None
        if error.errno == errno.ENOSYS:
            raise Refusal(
                "this kernel has no pidfd_getfd: it needs Linux 5.6; --how destroy needs 4.5"
            ) from None
        if error.errno != errno.EBADF:
            raise


def has_capability(number: int) -> bool:
    """Whether this process has the effective capability *number*.

    The kernel is asked itself: /proc may not be there.
    """
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_OF_64_BITS, 0)
    sets = (
        ctypes.c_uint32 * 6
    )()  # effective, permitted, inheritable: the lower 32, then the upper
    if _libc.capget(header, sets):
        return False
    return bool(sets[3 * (number // 32)] >> number % 32 & 1)
