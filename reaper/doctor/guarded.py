"""Whether reaper stands around a server: `reaper run`, by what /proc says of the
server's processes and of the watcher, and `reaper attach`, by its command line.

The rule of this module: *that nothing was found is said only where everything could be
read*. Some servers write their name over their environment, and others may not be
looked into.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ..attach.holders import processes
from ..attach.kernel import Refusal, namespace
from ..attach.netlink import Address
from ..attach.targets import parse_address
from .facts import Guards

RUN, REPORT, WATCHER = b"REAPER_RUN=", b"REAPER_RUN_REPORT=", "reaper-watcher"
"""What `reaper run` puts into an environment, and how its watcher is called."""
FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the pid namespace that holds all others: PROC_PID_INIT_INO."""


def guards(pids: Sequence[int], doors: Sequence[Address]) -> Guards:
    """What stands around the processes *pids*, which listen at *doors*.

    Cost: about 50 us per process of the machine.
    """
    around = {ancestor for pid in pids for ancestor in ancestors(pid)}
    closing, looking = _attached(pids, around, doors)
    found = {pid: environment(pid) for pid in pids}
    unread = not pids or None in found.values()
    entries = [entry for each in found.values() for entry in each or ()]
    inside = True if any(entry.startswith(RUN) for entry in entries) else None if unread else False
    watchers = {pid: watched(pid) for pid in processes() if name_of(pid) == WATCHER}
    for pid, commands in watchers.items():
        if commands and around.intersection(commands):
            return Guards(pid, 0, inside, closing, looking)
    for pid in pids:
        for watcher, path in _named(found[pid] or ()):
            if not _means_ours(pid, path):
                return Guards(None, 0, inside, closing, looking)
            if watcher not in watchers:
                return Guards(0, watcher, inside, closing, looking)
            alive = watcher if watchers[watcher] is None else None
            return Guards(alive, 0, inside, closing, looking)
    # Where others' processes are hidden, those of process 1 are.
    hidden = not pids or None in watchers.values() or not os.path.isdir("/proc/1")
    return Guards(None if unread and hidden else 0, 0, inside, closing, looking)


def environment(pid: int) -> list[bytes] | None:
    """The environment of process *pid*; None: it may not be read, or was overwritten.

    Where only its beginning was, the end is returned if *reaper run* has left its mark
    there.
    """
    with suppress(OSError):
        entries = [
            entry for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry
        ]
        whole = bool(entries) and all(b"=" in entry for entry in entries)
        if whole or any(entry.startswith((RUN, REPORT)) for entry in entries):
            return entries
    return None


def watched(pid: int) -> list[int] | None:
    """The processes that the watcher *pid* has taken a pidfd of: its command is one.
    None: that may not be seen.
    """
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fdinfo"):
            with suppress(FileNotFoundError):
                lines = Path(f"/proc/{pid}/fdinfo/{name}").read_text().splitlines()
                found += [int(line.split()[1]) for line in lines if line.startswith("Pid:")]
        return found
    return None


def ancestors(pid: int) -> Iterator[int]:
    """Process *pid*, its parent, and so on, as far as they can be seen."""
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            return


def name_of(pid: int) -> str:
    """The name of process *pid*; empty: it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    return ""


def _named(entries: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """The watchers that *entries* of an environment name, and the paths of their
    sockets.
    """
    for entry in entries:
        if entry.startswith(REPORT):
            number, _, rest = os.fsdecode(entry.removeprefix(REPORT)).partition(":")
            if number.isdecimal():
                yield int(number), rest.partition(":")[2]


def _means_ours(pid: int, path: str) -> bool:
    """Whether the number of a watcher, as the environment of process *pid* has it, is
    one of our numbers; False if that cannot be seen.

    A watcher outside of a container has another number there. Within one, we believe
    that the watcher is gone if its socket *path* is.
    """
    with suppress(OSError):
        ours = os.stat("/proc/self/ns/pid").st_ino
        if os.stat(f"/proc/{pid}/ns/pid").st_ino == ours:
            return ours == FIRST_NAMESPACE or not os.path.exists(f"/proc/{pid}/root{path}")
    return False


def _attached(
    pids: Sequence[int], around: Collection[int], doors: Sequence[Address]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The processes of `reaper attach` that look at the same: those that close, and the
    others.
    """
    closing: list[int] = []
    looking: list[int] = []
    for pid in processes():
        with suppress(OSError):
            data = Path(f"/proc/{pid}/cmdline").read_bytes()
            words = attach_words(os.fsdecode(data).split("\0"))
            if words and _looks_at(pid, words, around, pids, doors):
                (closing if "--close" in words else looking).append(pid)
    return tuple(closing), tuple(looking)


def attach_words(command: Sequence[str]) -> list[str]:
    """What follows `attach` in *command*, if that is `reaper attach`; else nothing."""
    for place, word in enumerate(command[:8]):
        if word == "attach" and place and os.path.basename(command[place - 1]) == "reaper":
            return list(command[place + 1 :])
    return []


def _looks_at(
    pid: int,
    words: Sequence[str],
    around: Collection[int],
    pids: Sequence[int],
    doors: Sequence[Address],
) -> bool:
    if (number := _value(words, "--pid")) is not None:
        return number.isdecimal() and int(number) in around
    text = _value(words, "--listen")
    if text is None:
        return False
    try:
        asked = parse_address(text)
        ours = namespace(pids[0] if pids else os.getpid())
        if namespace(pid) != ours:
            return False
    except Refusal:
        return False
    wild = ("0.0.0.0", "::")
    return any(
        door.port == asked.port
        and (door.host == asked.host or door.host in wild or asked.host in wild)
        for door in doors
    )


def _value(words: Sequence[str], flag: str) -> str | None:
    """What *words* give *flag*: `FLAG VALUE` or `FLAG=VALUE`."""
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
