"""The watcher of `reaper run`: attaches to what the command listens on and nothing guards from
inside.

One rule: *it is nobody's parent and nobody's child*. The command has the process that the user
started, so its signals and its exit status are its own; the watcher is a daemon that ends when that
process does. What it may not do (the kernel lets a process look into its own user's, unless Yama
forbids that) it says, and the command goes on.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..config.settings import DEFAULT, Attach, ReaperConfig
from ..errors import NotInstalled, one_line, printable
from . import report

LIMITS = ("idle", "first_byte", "stalled_write", "max_age", "vanished")
"""Those of `[attach]` that hold for what is guarded from outside."""

PR_SET_PTRACER = 0x59616D61
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of who wrote, by the kernel's word
SETTLES = 1.0
"""Seconds after the first socket listens in which Python servers have said what they guard."""

POLL, LONGEST = 0.1, 10.0
"""Seconds between two looks for what listens, at first and later."""


def outside_limits(config: ReaperConfig) -> Attach:
    """The limits for a server that is guarded from outside.

    What `[attach]` sets holds. Otherwise `idle` is the `idle` or `keep_alive` that was asked for,
    and without either `tunnel`: from outside a silent WebSocket cannot be told from a silent
    client. The first byte has a limit only if one was asked for, because in some protocols the
    server speaks first. `write` and `max_age` hold as they are.
    """
    timeouts = config.timeouts

    def asked(name: str) -> float:
        return getattr(timeouts, name) if config.origin(f"timeouts.{name}") != DEFAULT else 0.0

    values: dict[str, Any] = {
        "idle": asked("idle") or asked("keep_alive") or timeouts.tunnel,
        "first_byte": asked("first_byte"),
        "stalled_write": timeouts.write,
        "max_age": timeouts.max_age,
        "vanished": timeouts.vanished,
        "tick": config.reaper.tick,
    }
    shortest = min(filter(None, (values[name] for name in LIMITS)), default=1.0)
    values["tick"] = max(min(values["tick"], shortest), 0.05)
    kept = {
        name: value for name, value in values.items() if config.origin(f"attach.{name}") == DEFAULT
    }
    return replace(config.attach, **kept)


def watch_over(pid: int, config: ReaperConfig, environment: MutableMapping[str, str]) -> None:
    """Start the watcher of process *pid*, this one, which is about to become the command.

    *environment*, the command's, then names the socket on which Python servers say what they guard.
    Where there can be no watcher, that is said in one line.
    """
    if not sys.platform.startswith("linux"):
        print(
            f"reaper run: {sys.platform}: guards from inside only, attach needs Linux",
            file=sys.stderr,
        )
        return
    ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ears.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    name = f"reaper-run-{pid}-{os.urandom(4).hex()}"
    ears.bind("\0" + name)
    pidfd = os.pidfd_open(pid)
    born, birth = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.setsid()  # Ctrl-C is for the command
            os.write(birth, b"%d\n" % os.getpid())
            os.close(birth)
            os.close(born)
            _live(pid, pidfd, config, ears)
        os._exit(0)
    os.close(birth)
    os.waitpid(child, 0)
    with os.fdopen(born) as file:
        watcher = int(file.readline())
    os.close(pidfd)
    ears.close()
    environment[report.REPORT] = name
    # Where Yama lets only ancestors look into a process, the command allows the watcher to.
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, watcher, 0, 0, 0)


def _live(pid: int, pidfd: int, config: ReaperConfig, ears: socket.socket) -> None:
    """The watcher's whole life; does not return."""
    status = 0
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)  # a pipe behind the command ends when the command does
        Watcher(pid, pidfd, config, ears).run()
    except BaseException as error:  # whatever it is, the command goes on
        with suppress(OSError):
            print(
                f"reaper run: the watcher has ended: {type(error).__name__}: {one_line(error)}",
                file=sys.stderr,
            )
        status = 1
    finally:
        os._exit(status)


class Watcher:
    """Says what is guarded, and attaches to the rest.

    Args:
        pid, pidfd: The command.
        config: Its limits.
        ears: What Python servers say comes in there.
        say: Prints a line.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        config: ReaperConfig,
        ears: socket.socket,
        say: Callable[[str], object] = lambda text: print(
            f"reaper run: {text}", file=sys.stderr, flush=True
        ),
    ) -> None:
        self.pid = pid
        self.inside: set[int] = set()
        self._pidfd = pidfd
        self._config = config
        self._ears = ears
        self._say = say
        self._said: set[str] = set()
        self._pythons = False

    def run(self) -> None:
        """Until the command has ended."""
        try:
            from ..attach.kernel import Linux, Refusal, namespace
            from ..attach.targets import ByPid
        except (NotInstalled, ImportError) as error:
            self._say(f"guards from inside only: {one_line(error)}")
            while not self._over(LONGEST):
                pass
            return
        pause, heard = POLL, False
        target, space = None, (0, 0)
        try:
            while not self._over(pause):
                pause = min(1.1 * pause, LONGEST)
                before, space = space, namespace(self.pid)
                if target is None or space != before:  # the command may enter another
                    target = ByPid(self.pid, Linux(self.pid), waits=True)
                if target.listeners() and not heard:
                    heard = True
                    self._settle(target)
                if self._left(target):
                    self._attach(target)
                    return
        except Refusal as error:
            if not self._over(0.0):
                self._say(f"guards from inside only: {one_line(error)}")

    def _left(self, target: Any) -> list[Any]:
        """What *target* listens on and nothing guards from inside."""
        return [listener for listener in target.listeners() if listener.inode not in self.inside]

    def _settle(self, target: Any) -> None:
        """Give Python servers the time to say what they guard: workers may start long after their
        parent listens.
        """
        self._hear(SETTLES)
        left = LONGEST if self._pythons else 0.0
        while left > 0 and self._left(target):
            self._hear(SETTLES)
            left -= (
                LONGEST / 2 if self.inside else SETTLES
            )  # one server has spoken: the others do so soon

    # ---- what the servers say
    # ---------------------------------------------------------------------------------------

    def _over(self, seconds: float) -> bool:
        """Whether the command ends within *seconds*; what is said meanwhile is heard."""
        ready, _, _ = select.select([self._pidfd, self._ears.fileno()], [], [], seconds)
        if self._ears.fileno() in ready:
            self._take()
        return self._pidfd in ready

    def _hear(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._over(left):
            pass

    def _take(self) -> None:
        data, ancillary, _, _ = self._ears.recvmsg(65536, socket.CMSG_SPACE(CREDENTIALS.size))
        senders = [
            CREDENTIALS.unpack(value)[0]
            for _, kind, value in ancillary
            if kind == socket.SCM_CREDENTIALS
        ]
        if not any(descends(sender, self.pid) for sender in senders):
            return  # any user of the machine may write to an abstract name
        with suppress(ValueError, KeyError, TypeError):
            message: dict[str, Any] = json.loads(data)
            if "begun" in message:
                self._pythons = True
            elif "guarded" in message:
                self.inside.update(message["inodes"])
                where = ", ".join(message["places"]) or "its sockets"
                self._note(
                    f"{message['guarded']} on {where} is guarded from inside: {message['limits']}"
                )
            else:
                self._note(f"{message['left']} is not guarded from inside: {message['why']}")

    def _note(self, line: str) -> None:
        if line not in self._said:  # each of several workers says the same
            self._said.add(line)
            self._say(printable(line))

    # ---- what listens
    # -----------------------------------------------------------------------------------------------

    def _attach(self, target: Any) -> None:
        from ..attach.kernel import Listener
        from ..attach.runner import Runner
        from ..attach.show import View

        def meant(listener: Listener) -> bool:
            """Whether nothing guards it from inside; asked at each discovery, so what was said
            meanwhile counts.
            """
            self._over(0.0)
            return listener.inode not in self.inside

        config = outside_limits(self._config)
        target.meant = meant
        runner = Runner(target, config, view=lambda watch: View(self._say), closes=True)
        if names := {f"{each.address}" for each in self._left(target)}:
            limits_text = report.limits_text({name: getattr(config, name) for name in LIMITS})
            self._say(f"{', '.join(sorted(names))} is guarded from outside: {limits_text}")
        runner.run()


def descends(pid: int, ancestor: int) -> bool:
    """Whether process *pid* is *ancestor* or comes from it; one that has ended is not known to."""
    while pid > 1 and pid != ancestor:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return False
    return pid == ancestor
