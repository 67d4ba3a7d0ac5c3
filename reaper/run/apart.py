"""How the watcher is started beside COMMAND, and how it ends.

COMMAND gets the process that the user started: `reaper run` becomes it, by execve(2).
So the watcher has to be another one, and COMMAND must not notice it:

- *It is nobody's child.* It is forked twice, and the process in between has ended
  before COMMAND begins. Where orphans would come back to COMMAND, as process 1 of a
  container or because somebody has set PR_SET_CHILD_SUBREAPER, it stays COMMAND's
  child, but one that wait(2) does not see: it is made by clone(2) without a signal for
  its end. (On a processor whose number of that call is not known here, a line says that
  COMMAND has a child.)
- *It holds nothing of COMMAND's.* It closes every descriptor but its own, leaves the
  working folder, and has a session of its own, so that Ctrl-C does not reach it.
- *It ends when COMMAND does*, within half a second, and not before: it does not hear
  SIGTERM, which systemd sends to every process of a unit.
- *Its death is told.* There are two processes: the watcher, and one that waits for
  either end. If the watcher dies, the other one says in one line that nothing is
  guarded from outside any more.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ..errors import one_line
from .channel import make_folder, remove_folder
from .voice import Voice

PR_SET_NAME, PR_GET_CHILD_SUBREAPER, PR_SET_PTRACER = 15, 37, 0x59616D61
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""The number of clone(2), by architecture."""
LEAVES = 0.4
"""Seconds that the watcher has to leave once COMMAND has ended."""
UNHEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

Life = Callable[[int, Path, Voice, Callable[[str], None]], None]
"""The life of a watcher: given COMMAND's pidfd, the folder of its socket, its voice,
and what it calls, once it can be reached, with the address of that.
"""


def start(pid: int, live: Life) -> str | None:
    """Start a process beside *pid*, this one, which calls *live*; return the address
    that it gave.

    Returns None, and says why on stderr, where that cannot be. *live* may return; what
    it raises is said on stderr.
    """
    if not os.path.isdir("/proc/self/fd"):
        from ..attach.kernel import NO_PROC

        print(f"reaper run: guards from inside only: {NO_PROC}", file=sys.stderr)
        return None
    try:
        pidfd = _high(os.pidfd_open(pid))
        folder = make_folder()
    except OSError as error:
        print(f"reaper run: guards from inside only: {one_line(error)}", file=sys.stderr)
        return None
    voice = Voice(pidfd)
    born, birth = map(_high, os.pipe())
    if _orphans_come_back(pid):
        child = _unseen_child()
        if child == 0:
            _begin(pidfd, folder, voice, birth, live)
    else:
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                _begin(pidfd, folder, voice, birth, live)
            os._exit(0)
        os.waitpid(child, 0)
    for fd in (birth, pidfd, voice.place):
        if fd is not None:
            os.close(fd)
    with os.fdopen(born) as file:
        watcher, _, address = file.readline().strip().partition(" ")
    if not address:
        return None  # it has said why
    # Where Yama lets only ancestors look into a process, COMMAND allows the watcher to.
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, int(watcher), 0, 0, 0)
    return address


def _orphans_come_back(pid: int) -> bool:
    """Whether the orphans of *pid*, this process, become its children again."""
    flag = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return pid == 1 or bool(flag.value)


def _unseen_child() -> int:
    """As `os.fork`, but wait(2) in the parent does not see the child, and its end is no
    signal.
    """
    number = CLONE.get(os.uname().machine)
    if number is None:
        print("reaper run: its watcher is a child of the command", file=sys.stderr)
        return os.fork()
    python = ctypes.pythonapi
    sys.stderr.flush()
    python.PyOS_BeforeFork()
    child = ctypes.PyDLL(None).syscall(number, 0, 0, 0, 0, 0)
    if child == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError("clone")
    return int(child)


def _begin(pidfd: int, folder: Path, voice: Voice, birth: int, live: Life) -> NoReturn:
    """The life of the process that waits for the watcher's end and for COMMAND's."""
    status = 1
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)
        _let_go({pidfd, birth, voice.place})
        _rename(b"reaper-minder")
        watcher = os.fork()
        if watcher == 0:
            _watch(pidfd, folder, voice, birth, live)
        os.close(birth)
        status = _mind(watcher, pidfd, voice)
    finally:
        remove_folder(folder)
        os._exit(status)


def _watch(pidfd: int, folder: Path, voice: Voice, birth: int, live: Life) -> NoReturn:
    """The life of the watcher."""

    def born(address: str) -> None:
        os.write(birth, f"{os.getpid()} {address}\n".encode())
        os.close(birth)

    try:
        _rename(b"reaper-watcher")
        live(pidfd, folder, voice, born)
    except BaseException as error:  # whatever it is, COMMAND goes on
        why = f"{type(error).__name__}: {one_line(error)}"
        voice(f"the watcher has failed: {why}; nothing is guarded from outside any more")
    finally:
        os._exit(0)


def _mind(watcher: int, pidfd: int, voice: Voice) -> int:
    """Wait until the watcher or COMMAND has ended; say so if it was the watcher, by a
    signal.
    """
    life = os.pidfd_open(watcher)
    poll = select.poll()
    for fd in (life, pidfd):
        poll.register(fd, select.POLLIN)
    over = pidfd in (fd for fd, _ in poll.poll())
    if over:
        poll.unregister(pidfd)
        if not poll.poll(LEAVES * 1e3):
            os.kill(watcher, signal.SIGKILL)
    _, status = os.waitpid(watcher, 0)
    over = over or pidfd in (fd for fd, _ in poll.poll(0))
    if os.WIFSIGNALED(status) and not over:
        by = signal.Signals(os.WTERMSIG(status)).name
        voice(f"the watcher was ended by {by}: nothing is guarded from outside any more")
    return 0


def _let_go(kept: set[int | None]) -> None:
    """Close every descriptor but those in *kept*, and leave the working folder."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
    for fd in (0, 1, 2):
        null = os.open(os.devnull, os.O_RDWR)
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
    os.chdir("/")


def _high(fd: int) -> int:
    """*fd*, moved out of the way of the three standard descriptors, which may be closed
    here.
    """
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _rename(name: bytes) -> None:
    """Give this process a name for `ps` and `top`."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
