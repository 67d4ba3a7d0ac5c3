"""A process that was started by a program of ours, guarded from outside: `python -m reaper attach`, as a library.

One rule: *the program goes on*. What cannot be seen, or may not be closed, is said, and the rest is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..config.attach import Attach
from .judge import Limits
from .kernel import Linux, Listener, Refusal, jiffy
from .proc_fds import Owners
from .runner import Runner
from .show import Lines
from .sockets import probes_capped
from .targets import ByPid, Network
from .tcpinfo import JIFFIES_AGAINST_US
from .watch import Watch

EVERY = 0.25
"""Seconds between two looks at a process that does not listen yet."""
LISTENS_UNIX = 1 << 16
"""A flag of a socket in /proc/net/unix."""


def limits_of(config: Attach) -> Limits:
    """The limits that `[attach]` sets, with this kernel's grain.

    Raises:
        Refusal: it sets none, or one that is shorter than the tick.
    """
    times = (config.idle, config.first_byte, config.max_age, config.stalled_write, config.vanished)
    if not any(times) and not config.min_in_rate:
        raise Refusal(
            "no limit is on: give --idle 5m, --first-byte, --max-age, --stalled-write, --min-in-rate or --vanished"
        )
    shortest = min(value for value in (*times, config.min_in_grace) if value)
    if config.tick > shortest:
        raise Refusal(
            f"--tick {config.tick:g}s is longer than the shortest limit, {shortest:g}s: a quarter of it is fine"
        )
    return Limits(
        idle=config.idle,
        first_byte=config.first_byte,
        max_age=config.max_age,
        write=config.stalled_write,
        min_in_rate=config.min_in_rate,
        min_in_grace=config.min_in_grace,
        even_unanswered=config.even_unanswered,
        vanished=config.vanished,
        capped=probes_capped(),
        grain=JIFFIES_AGAINST_US * jiffy(),
    )


class Attachment:
    """Watches, in a thread, what a process and its children listen on now and later.

    Use it as a context manager, or call `start` and `stop`. It ends by itself when the process does.

    Args:
        pid: Of the process; not of this one.
        config: The limits, tick and all else, as the section `[attach]` and the flags of `attach` have them.
        closes: Whether what is due is closed; if not, it is only said.
        only, never: Networks of clients that are watched alone, and that are never watched.
        meant: Asked at each discovery for each listening socket: whether its connections are meant. None: all are.
        say: Given a line for people, from that thread: each close, and what cannot be done. Must not raise.
    Attributes:
        watching: Set once something listens and is watched.
        watch: Connections and counts so far.
    Raises:
        Refusal: in one line: no limit is on, there is no such process, it may not be looked at.
        ImportError: psutil is missing: install `idle-reaper[attach]`.
    """

    def __init__(
        self,
        pid: int,
        config: Attach,
        *,
        closes: bool = True,
        only: Sequence[Network] = (),
        never: Sequence[Network] = (),
        meant: Callable[[Listener], bool] | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        limits = limits_of(config)
        self._say = say
        self._meant = meant
        self._kernel = Linux(pid)
        try:
            self._target = ByPid(pid, self._kernel, waits=True)
            self._runner = Runner(
                self._target, limits, config, view=lambda watch: Lines(watch, say), closes=closes, only=only,
                never=never, meant=meant,
            )  # fmt: skip
        except BaseException:
            self._kernel.close()
            raise
        self.watching: threading.Event = threading.Event()
        self.watch: Watch = self._runner.watch
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper.attach", daemon=True)

    def start(self) -> None:
        """Begin, in a thread. Once."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch, and wait for its thread: some milliseconds. Connections stay as they are."""
        self._stopped.set()
        self._runner.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._runner.close()
        self._kernel.close()

    def unseen(self) -> list[str]:
        """What the process listens on, and no kernel's stamp tells of: UNIX and UDP (QUIC) sockets, one text each."""
        owners = Owners(self._target.pids)
        owners.scan()
        found = [f"UNIX {path}" for inode, path in _unix_listeners(self._target.pid) if inode in owners]
        return found + [f"UDP port {port}" for inode, port in _udp_ports(self._target.pid) if inode in owners]

    def __enter__(self) -> Attachment:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not any(self._meant is None or self._meant(one) for one in self._target.listeners()):
                if self._stopped.wait(EVERY):
                    return
            self._check_rights()
            self.watching.set()
            self._runner.watch_until_stopped()
        except Refusal as gone:
            self._say(str(gone))

    def _check_rights(self) -> None:
        try:
            self._runner.check_rights()
        except Refusal as missing:
            self._say(f"only looking: {missing}")
            self.watch.look_only()


def _unix_listeners(pid: int) -> list[tuple[int, str]]:
    found = []
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/net/unix").read_text(errors="replace").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if int(fields[3], 16) & LISTENS_UNIX:
                found.append((int(fields[6]), fields[7] if len(fields) > 7 else "without a name"))
    return found


def _udp_ports(pid: int) -> list[tuple[int, int]]:
    found = set()
    for name in ("udp", "udp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[2].endswith(":0000"):  # not connected to one peer: it serves
                    found.add((int(fields[9]), int(fields[1].rpartition(":")[2], 16)))
    return sorted(found, key=lambda one: one[1])
