"""The watcher of `reaper run`: attaches to what COMMAND listens on and nothing guards
from inside.

One rule: *what is guarded from inside is left alone, and the rest is told before it is
touched*. The watcher looks for sockets on which COMMAND or a process that comes from it
listens. Python servers have a while to say that they guard themselves (`channel`); what
nobody has spoken for is watched from outside, as `attach --close` does. Each line goes
to COMMAND's stderr (`voice`).

What a guest may change here: it closes connections that are due, and prints lines. It
is started and ended as `apart` describes. What the kernel does not let it do (it lets a
process look into those of its own user, unless Yama forbids that) it says, and COMMAND
goes on.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config.effects import said, without_effect
from ..config.settings import DEFAULT, Attach, ReaperConfig
from ..errors import NotInstalled, needs, one_line, printable
from ..servers.readers import OUTSIDE
from . import report
from .channel import ADDRESS, Ears

LIMITS = ("idle", "first_byte", "stalled_write", "max_age", "min_in_rate", "vanished")
"""Those of `[attach]` that hold for what is guarded from outside."""
UNASKED = 3600.0
"""Seconds of silence allowed from outside where nobody asked for an `idle`;
`reaper.attach.cuts` says why. (It is not imported: that needs psutil, and this is asked
without.)
"""

SETTLES = 1.0
"""Seconds after the first socket listens in which Python servers have said what they
guard.
"""
POLL, LONGEST = 0.1, 10.0
"""Seconds between two looks for what listens, at first and later. A Python server has
the later to say that it guards itself.
"""
MUTE = ("_granian.",)
"""How the files of extension modules begin that serve by themselves, in another
language. A Python that has loaded one has nothing to say.
"""
GRACE = 0.25
"""Seconds after COMMAND's end in which what it left in the background has begun to
listen.
"""


def asked(config: ReaperConfig, path: str) -> bool:
    """Whether the setting *path* was set anywhere."""
    return config.origin(path) != DEFAULT


def outside_limits(config: ReaperConfig) -> Attach:
    """The limits for a server that is guarded from outside.

    What `[attach]` sets holds. Otherwise `idle` is `timeouts.idle` if that was set, and
    else an hour, or `tunnel` if that is longer: from outside a silent WebSocket, or an
    answer that pauses, cannot be told from a silent client. For the same reason
    `keep_alive` is no limit outside, not even if it was set. The first byte has a limit
    only if one was asked for, because in some protocols the server speaks first; so has
    the least rate, because not every client sends requests. `write`, `max_age` and
    `vanished` hold as they are.
    """
    timeouts, limits = config.timeouts, config.limits
    values: dict[str, Any] = {
        "idle": timeouts.idle
        if asked(config, "timeouts.idle")
        else timeouts.tunnel and max(timeouts.tunnel, UNASKED),
        "first_byte": timeouts.first_byte if asked(config, "timeouts.first_byte") else 0.0,
        "stalled_write": timeouts.write,
        "max_age": timeouts.max_age,
        "vanished": timeouts.vanished,
        "min_in_rate": limits.min_in_rate if asked(config, "limits.min_in_rate") else 0.0,
        "min_in_grace": limits.min_in_grace or config.attach.min_in_grace,
        "tick": config.reaper.tick,
    }
    lengths = (values[name] for name in LIMITS if name != "min_in_rate")
    shortest = min(filter(None, lengths), default=1.0)
    values["tick"] = max(min(values["tick"], shortest), 0.05)
    kept = {name: value for name, value in values.items() if not asked(config, f"attach.{name}")}
    return replace(config.attach, **kept)


def outside_text(config: ReaperConfig, *, defers: bool = False) -> str:
    """The limits of what is guarded from outside, for people, and what is set without
    effect there.

    Args:
        defers: Whether its socket has TCP_DEFER_ACCEPT: the kernel hides a client until
            its first byte has come.
    """
    limits = outside_limits(config)
    values = {name: getattr(limits, name) for name in LIMITS}
    hidden = values["first_byte"] if defers else 0.0
    if defers:
        values["first_byte"] = 0.0
    rate = values.pop("min_in_rate")
    text = report.limits_text(values)
    if rate:
        text = f"{text}, min_in_rate {rate:g} B/s"
    if hidden:
        text += "; first_byte cannot hold: its socket has TCP_DEFER_ACCEPT"
    if asked(config, "timeouts.keep_alive") and not asked(config, "timeouts.idle"):
        text += "; keep_alive holds inside only: outside give --idle"
    vain = without_effect(config, OUTSIDE)
    vain.pop("timeouts.keep_alive", None)
    return f"{text}; {said(vain)}" if vain else text


def watch_over(
    pid: int,
    config: ReaperConfig,
    environment: MutableMapping[str, str],
    *,
    attaches: bool = True,
) -> None:
    """Start the watcher of process *pid*, this one, which is about to become COMMAND.

    *environment*, which COMMAND gets, then names the socket on which Python servers say
    what they guard. Where there can be no watcher, a line says so.

    Args:
        attaches: If not, the watcher touches nothing: it says what is not guarded.
    """
    if not sys.platform.startswith("linux"):
        print(
            f"reaper run: {sys.platform}: guards from inside only, attach needs Linux",
            file=sys.stderr,
        )
        return
    from .apart import start
    from .voice import Voice

    def live(pidfd: int, folder: Path, voice: Voice, born: Callable[[str], None]) -> None:
        ears = Ears(pid, folder)
        born(ears.address)
        marker = f"{ADDRESS}={ears.address}".encode()
        watcher = Watcher(pid, pidfd, config, ears, voice, attaches=attaches)

        def leave() -> None:
            watcher.tell_what_is_left(marker)
            os._exit(0)

        watcher.leave = leave
        watcher.run()

    if (address := start(pid, live)) is not None:
        environment[ADDRESS] = address


@dataclass(frozen=True)
class Word:
    """What a Python server has said of itself; nothing that it says is trusted further.

    Attributes:
        line: The line for people.
        inodes: The listening sockets that it guards.
    """

    line: str
    inodes: frozenset[int]


def understood(data: bytes) -> Word | None:
    """What *data* says; None if it is nonsense, whichever."""
    try:
        said = json.loads(data)
        if "guarded" not in said:
            return Word(f"{said['left']} is not guarded from inside: {said['why']}", frozenset())
        where = ", ".join(map(str, said["places"])) or "its sockets"
        line = f"{said['guarded']} on {where} is guarded from inside: {said['limits']}"
        return Word(line, frozenset(number for number in said["inodes"] if type(number) is int))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


class Watcher:
    """Says what is guarded, and attaches to the rest.

    Args:
        pid, pidfd: COMMAND's.
        config: Its limits.
        ears: What Python servers say comes in there.
        say: Prints a line.
        attaches: Whether what nothing guards from inside is watched from outside.
    Attributes:
        inside: The listening sockets that are guarded from inside, by inode.
        leave: Called when COMMAND has ended, by the thread that hears.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        config: ReaperConfig,
        ears: Ears,
        say: Callable[[str], object],
        *,
        attaches: bool = True,
    ) -> None:
        self.pid = pid
        self.inside: set[int] = set()
        self.leave: Callable[[], object] = self._stay
        self._pidfd = pidfd
        self._config = config
        self._ears = ears
        self._say = say
        self._attaches = attaches
        self._said: set[str] = set()
        self._over = threading.Event()
        self._target: Any = None
        self._session = session_of(pid)

    def run(self) -> None:
        """Watch until COMMAND has ended."""
        threading.Thread(target=self._hear, name="reaper.run", daemon=True).start()
        try:
            with needs("guarding from outside", "idle-reaper[attach]"):
                from ..attach.kernel import Linux, Refusal, namespace
                from ..attach.targets import ByPid
        except (NotInstalled, ImportError) as error:
            if self._attaches:
                self._say(f"guards from inside only: {one_line(error)}")
            self._over.wait()
            return
        pause, space = POLL, (0, 0)
        try:
            while not self._over.wait(pause):
                pause = min(1.1 * pause, LONGEST)
                before, space = space, namespace(self.pid)
                if self._target is None or space != before:  # COMMAND may enter another
                    kernel = Linux(self.pid)
                    try:
                        self._target = ByPid(self.pid, kernel, waits=True)
                    except Refusal:
                        kernel.close()
                        raise
                for line in self._target.unread():
                    self._note(line)
                if self._left(self._target) and self._unspoken_for(self._target):
                    self._take(self._target)
                    break
        except Refusal as error:
            # A process that is ending has no user any more: the kernel lets only root
            # look into it.
            if not self._ended(within=SETTLES):
                self._say(f"guards from inside only: {one_line(error)}")
        self._over.wait()
        if self._target is not None:
            self._target.kernel.close()

    def _stay(self) -> None:
        """Does nothing: who runs a watcher in its own process leaves by itself."""

    def _ended(self, within: float = 0.0) -> bool:
        """Whether COMMAND has ended, or does so *within* seconds."""
        poll = select.poll()  # select(2) refuses a descriptor beyond 1,023
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within * 1e3))

    # ---- what the servers say

    def _hear(self) -> None:
        for data in self._ears.words(self._pidfd):
            word = understood(data)
            if word is not None:
                self.inside |= word.inodes
                self._note(word.line)
        self.leave()
        self._over.set()

    def _note(self, line: str) -> None:
        if line not in self._said:  # each of several workers says the same
            self._said.add(line)
            self._say(printable(line))

    # ---- what listens

    def _left(self, target: Any) -> list[Any]:
        """What *target* listens on and nothing guards from inside."""
        return [listener for listener in target.listeners() if listener.inode not in self.inside]

    def _unspoken_for(self, target: Any) -> bool:
        """Give those who may speak the time to say what they guard; whether something
        is left.

        Workers may start long after their parent listens. Once one server has spoken
        the others do so soon.
        """
        self._over.wait(SETTLES)
        left = self._left(target)
        if not any(may_speak(target, each.inode) for each in left):
            return bool(left)
        if self._attaches and not self.inside:
            places = places_of(left)
            self._say(
                f"{places} is not guarded yet: a Python server has {LONGEST:g} s to say that it "
                "guards itself; after that it is watched from outside"
            )
        until = time.monotonic() + LONGEST
        while (pause := until - time.monotonic()) > 0 and self._left(target):
            if self._over.wait(min(pause, SETTLES)):
                return False
            if self.inside:
                until = min(until, time.monotonic() + 2 * SETTLES)
        return bool(self._left(target))

    def _take(self, target: Any) -> None:
        """Watch what is left, until COMMAND has ended."""
        if not self._attaches:
            self._say(f"{places_of(self._left(target))} is not guarded: --inside was given")
            return
        from ..attach.runner import Runner
        from ..attach.show import View

        def meant(listener: Any) -> bool:
            """Asked at each discovery: what was said meanwhile counts."""
            return listener.inode not in self.inside

        target.meant = meant
        target.tells_gaps = False  # COMMAND may listen or not, as it likes
        config = outside_limits(self._config)
        runner = Runner(target, config, view=lambda watch: View(self._of_the_watch), closes=True)
        by_text: dict[str, list[Any]] = {}
        for listener in self._left(target):
            text = outside_text(self._config, defers=defers_accept(target, listener.inode))
            by_text.setdefault(text, []).append(listener)
        for text, listeners in by_text.items():
            self._say(f"{places_of(listeners)} is guarded from outside: {text}")
        runner.run()

    def _of_the_watch(self, line: str) -> None:
        if not self._ended():  # that COMMAND has ended is not our news
            self._say(line)

    # ---- what is left behind

    def _listening(self) -> frozenset[int]:
        """The inodes of all sockets that listen where COMMAND was; none if nobody could
        look.
        """
        if self._target is None:
            return frozenset()
        with suppress(OSError):
            from ..attach.kernel import Linux

            kernel = Linux()  # another thread may be using the target's
            found = frozenset(each.inode for each in kernel.listeners())
            kernel.close()
            return found
        return frozenset()

    def tell_what_is_left(self, marker: bytes) -> None:
        """Say so if COMMAND has ended and gone on in the background, where nothing is
        guarded.

        Args:
            marker: The entry of the environment that COMMAND's processes have.
        """
        if not self._attaches:
            return
        behind: list[int] = []
        until = time.monotonic() + GRACE
        left = [pid for pid in processes() if has(pid, marker)]
        while left and not behind and time.monotonic() < until:
            time.sleep(GRACE / 10)
            listening = self._listening()
            behind = [pid for pid in left if in_background(pid, self._session, listening)]
        if behind:
            self._say(
                f"the command has ended and goes on in the background (process {behind[0]}): it is "
                "not guarded from outside; keep it in the foreground"
            )


def session_of(pid: int) -> int:
    """The session of process *pid*; 0 if it has ended."""
    with suppress(OSError):
        return os.getsid(pid)
    return 0


def in_background(pid: int, session: int, listening: frozenset[int]) -> bool:
    """Whether process *pid* left *session*, or holds one of the sockets *listening*, by
    inode.
    """
    if session_of(pid) not in (0, session):
        return True
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found = os.readlink(f"/proc/{pid}/fd/{name}")
                if found.startswith("socket:[") and int(found[8:-1]) in listening:
                    return True
    return False


def places_of(listeners: Sequence[Any]) -> str:
    """The addresses of *listeners*, each once, for people."""
    return ", ".join(sorted({f"{each.address}" for each in listeners}))


def may_speak(target: Any, inode: int) -> bool:
    """Whether who holds the listening socket *inode* may yet say that it is guarded: a
    Python that is not `MUTE`. False if nobody may tell.
    """
    place = target.find(inode)
    if place is None:
        return False
    with suppress(OSError):
        name = os.path.basename(os.readlink(f"/proc/{place[0]}/exe"))
        if not name.startswith(("python", "pypy")):
            return False
        loaded = Path(f"/proc/{place[0]}/maps").read_text(errors="replace").splitlines()
        return not any(os.path.basename(line).startswith(MUTE) for line in loaded)
    return False


def defers_accept(target: Any, inode: int) -> bool:
    """Whether the listening socket *inode* has TCP_DEFER_ACCEPT; False if nobody may
    tell.
    """
    from ..attach.closing import take

    place = target.find(inode)
    if place is None:
        return False
    with suppress(OSError), socket.socket(fileno=take(*place)) as sock:
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT))
    return False


def processes() -> Iterator[int]:
    """The ids of all processes that this one may see."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def has(pid: int, entry: bytes) -> bool:
    """Whether the environment of process *pid* has *entry*; False if nobody may
    tell.
    """
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return entry in file.read().split(b"\0")
    return False
