"""`reaper run --exit-when-idle`: COMMAND gets SIGTERM once nobody has been connected
for so long.

The rule of this module: *what cannot be seen is somebody*. A connection that is open,
or waits to be accepted, keeps COMMAND; so does a socket of another kind on which it
serves, and a request that a guarded server works on, if its client has left. One that
came and went between two looks begins the time anew, where the kernel
tells.

COMMAND is a child here, and this process stays beside it: the status of a server that
ends by SIGTERM is 143 or a signal, and of one that was ended because nobody came it
shall be 0. Signals are handed on, and every other status is COMMAND's.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, NoReturn

from ..config.durations import format_duration
from ..driver import at_work
from ..errors import one_line

HANDED_ON = frozenset(
    {
        *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1),
        *(signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT),
    }
)
FROM_THE_TERMINAL = 0x80
"""`si_code` of a signal that the kernel sent: to the whole group, so to COMMAND too."""

UNCONNECTED, TIME_WAIT = "07", "06"
"""Of the states in /proc/net/udp and /proc/net/tcp."""

ACCEPTS = 0x10000
"""Of the flags in /proc/net/unix: the socket listens."""

OWN = "@reaper-"
"""What the names of our own sockets begin with there, by which the processes of a
guarded server find each other (`report`, `servers.workers`): nobody is served by them.
"""


class Presence:
    """Whether anybody may be connected to a process and those that come from it.

    Args:
        pid: The process.
    Attributes:
        unseen: What cannot be seen, in words; empty: all can.
        came: Whether somebody came between the last two looks, and may have left.
    Raises:
        reaper.attach.kernel.Refusal: the kernel does not let us look.
    """

    def __init__(self, pid: int) -> None:
        from ..attach.kernel import Linux
        from ..attach.targets import ByPid

        self.pid = pid
        self.unseen: str = ""
        self.came: bool = False
        self._serves_unix = False
        self._works = False
        self._target = ByPid(pid, Linux(pid), waits=True)
        self._opened = self._passive_opens()
        self._ended: frozenset[tuple[str, str]] = frozenset()

    def anybody(self) -> bool:
        """Whether somebody is connected now, or waits for that."""
        target = self._target
        listeners = target.listeners()
        self.unseen = self._others()
        if not listeners and not self._serves_unix:
            return True  # it begins, or reloads
        self.came = self._came({each.address.port for each in listeners})
        if any(listener.waiting for listener in listeners):
            return True
        target.scan()
        return target.anybody() or self._works or bool(self.unseen)

    def _came(self, ports: set[int]) -> bool:
        """Whether a connection to *ports* came and went since the last call.

        The kernel counts the connections that were opened to anybody in the namespace.
        Whose a new one was, the end that closed first remembers for a minute. Where
        nobody but these processes listens it was theirs in any case.
        """
        opened, before = self._passive_opens(), self._opened
        ended, known = self._lately_ended(ports), self._ended
        # Both at each look: what ended before the last one is no news when somebody
        # else is connected to.
        self._opened, self._ended = opened, ended
        if opened == before:
            return False
        everybody = {each.inode for each in self._target.kernel.listeners()}
        alone = all(inode in self._target for inode in everybody)
        return alone or bool(ended - known)

    def _lately_ended(self, ports: set[int]) -> frozenset[tuple[str, str]]:
        """The pairs of addresses of connections to *ports* that have ended lately."""
        found = set()
        for name in ("tcp", "tcp6"):
            with suppress(FileNotFoundError):
                for words in _rows(f"/proc/{self.pid}/net/{name}"):
                    ends = words[1], words[2]
                    if words[3] == TIME_WAIT and not ports.isdisjoint(
                        int(end.rpartition(":")[2], 16) for end in ends
                    ):
                        found.add(ends)
        return frozenset(found)

    def _passive_opens(self) -> int:
        with open(f"/proc/{self.pid}/net/snmp") as file:
            names, values = (line.split() for line in file if line.startswith("Tcp:"))
        return int(values[names.index("PassiveOpens")])

    def _others(self) -> str:
        """Sockets of other kinds on which these processes serve somebody, or may."""
        self._works = False
        held: set[int] = set()
        for pid in self._target.pids():
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except PermissionError:
                return f"process {pid}, whose descriptors may not be read"
            except OSError:
                continue
            for name in names:
                with suppress(OSError):
                    link = os.readlink(f"/proc/{pid}/fd/{name}")
                    if link.startswith("socket:["):
                        held.add(int(link[8:-1]))
                    elif at_work.NAME in link:
                        self._works = True
        connected = self._unix(held)
        return self._udp(held) or connected

    def _udp(self, held: set[int]) -> str:
        for name in ("udp", "udp6"):
            for words in _rows(f"/proc/{self.pid}/net/{name}"):
                if words[3] == UNCONNECTED and int(words[9]) in held:
                    return f"UDP port {int(words[1].rpartition(':')[2], 16)}"
        return ""

    def _unix(self, held: set[int]) -> str:
        """A unix socket that listens is no hindrance while nobody is connected to it:
        those that are, accepted or not, have its name.
        """
        rows = [
            words
            for words in _rows(f"/proc/{self.pid}/net/unix")
            if len(words) > 7 and not words[7].startswith(OWN)
        ]
        served = {
            words[7] for words in rows if int(words[3], 16) & ACCEPTS and int(words[6]) in held
        }
        self._serves_unix = bool(served)
        for words in rows:
            if words[7] in served and not int(words[3], 16) & ACCEPTS:
                return f"a connection to {words[7]}"
        return ""

    def close(self) -> None:
        """Let go of the kernel."""
        self._target.kernel.close()


def _rows(path: str) -> list[list[str]]:
    with open(path) as file:
        return [line.split() for line in file][1:]


def run_until_idle(
    idle: float,
    tick: float,
    become: Callable[[MutableMapping[str, str]], object],
    environment: MutableMapping[str, str],
) -> int:
    """Run COMMAND as a child until it ends, or until nobody has been connected for
    *idle* seconds; return the status for this process.

    Args:
        tick: Seconds between two looks: how much later it may be.
        become: Given the environment, takes the child's place, or returns a status.
    """
    heard = HANDED_ON | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard | {signal.SIGALRM})
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _be_command(become, environment, before, parent)
    status, ended = _stay_beside(child, idle, tick, heard)
    if ended and status in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
        return 0
    if status < 0:  # as COMMAND itself would have ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(-status, signal.SIG_DFL)
        os.kill(parent, -status)
        return 128 - status
    return status


def _be_command(
    become: Callable[[MutableMapping[str, str]], object],
    environment: MutableMapping[str, str],
    mask: set[signal.Signals | int],
    parent: int,
) -> NoReturn:
    status: object = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if environment.get("LISTEN_PID") == str(parent):
            environment["LISTEN_PID"] = str(os.getpid())  # systemd's sockets are COMMAND's
        environment[at_work.WANTED] = "1"
        status = become(environment)
    finally:
        os._exit(status if isinstance(status, int) else 1)


def heard_within(heard: frozenset[signal.Signals], seconds: float) -> Any:
    """The first of the signals *heard* that comes within *seconds*; None: none did.
    They are blocked, and so is SIGALRM.

    The time is kept by a timer of the kernel's. If a process is stopped in CPython's
    `sigtimedwait`, and its time is over when it goes on, that returns a signal which
    nobody has sent.
    """
    if seconds <= 0:  # it does not wait
        return signal.sigtimedwait(heard, 0)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    info = signal.sigwaitinfo(heard | {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, 0)
    if info.si_signo == signal.SIGALRM:
        return None
    signal.sigtimedwait({signal.SIGALRM}, 0)  # it may have come as well
    return info


def _stay_beside(
    child: int, idle: float, tick: float, heard: frozenset[signal.Signals]
) -> tuple[int, bool]:
    """Wait for the end of *child*; its status, and whether it was ended because nobody
    was there.
    """
    # Here, while COMMAND starts: at the first look the imports would make it late.
    from ..attach.kernel import Refusal
    from ..attach.targets import ByPid  # noqa: F401

    presence: Presence | None = None
    since: float | None = None  # the first look that found nobody: who it was left before that
    said, ended = "", False
    look = time.monotonic()  # COMMAND may listen, and be alone, since before the imports
    while True:
        pause = tick if ended else max(look - time.monotonic(), 0.0)
        info = heard_within(heard, pause)
        if info is not None and info.si_signo == signal.SIGCHLD:
            pid, how = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(how), ended
            continue
        if info is not None:
            if info.si_code != FROM_THE_TERMINAL:
                with suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
            continue
        if ended:
            continue
        began = time.monotonic()
        try:
            if presence is None:
                presence = Presence(child)
            somebody = presence.anybody()
        except (Refusal, OSError) as error:
            # A process that is ending cannot be read any more: then SIGCHLD is next.
            somebody, unseen = True, one_line(error)
        else:
            unseen = presence.unseen
        now = time.monotonic()
        if somebody:
            since = None
            if unseen and unseen != said:
                said = unseen
                _say(f"keeps it running: {unseen}")
        elif since is None or (presence is not None and presence.came):
            since = now
        elif now >= since + idle:
            ended = True
            _say(f"nobody has been connected for {format_duration(round(idle, 3))}: SIGTERM")
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        # Two looks stand between the last client and the end, the one that finds nobody
        # and the one that finds nobody still: what they take is part of the tick. They
        # have half of the time at most.
        took = time.monotonic() - began
        look = max(began + tick - 2 * took, now + took)
        if since is not None:
            look = min(look, since + idle)


def _say(text: str) -> None:
    print(f"reaper run: --exit-when-idle: {text}", file=sys.stderr, flush=True)
