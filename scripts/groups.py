"""Memory control groups for demos and trials: a server that is killed when it takes too
much.

The rule of this module: *a group is ours, and gone after its block*. It is made beside
or below our own one; nothing of any other group is changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .tools import Missing

ROOT = Path("/sys/fs/cgroup")
PATIENCE = 10.0
"""Seconds after which a group is given up that does not become empty."""


class Group:
    """A memory control group in *folder*, of either version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._second = (folder / "memory.max").exists()

    def limit(self, size: int) -> None:
        """Allow *size* bytes, and no swap where the kernel counts it. Raises
        OSError.
        """
        names = ("memory.max",) if self._second else ("memory.limit_in_bytes",)
        for name in names:
            (self._folder / name).write_text(str(size))
        swap, most = (
            ("memory.swap.max", 0) if self._second else ("memory.memsw.limit_in_bytes", size)
        )
        with suppress(OSError):  # the kernel does not count swap
            (self._folder / swap).write_text(str(most))

    def joined(self, command: list[str]) -> list[str]:
        """*command*, which joins the group before it begins."""
        join = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))"
        join += "; os.execv(sys.argv[2], sys.argv[2:])"
        return [sys.executable, "-c", join, str(self._folder / "cgroup.procs"), *command]

    def kills(self) -> int:
        """How many of its processes the kernel has killed because it was full."""
        name = "memory.events" if self._second else "memory.oom_control"
        lines = (self._folder / name).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def peak(self) -> int:
        """The most bytes that it has had in use. Raises OSError: the kernel does not
        keep it.
        """
        name = "memory.peak" if self._second else "memory.max_usage_in_bytes"
        return int((self._folder / name).read_text())


@contextmanager
def memory_group(size: int) -> Iterator[Group]:
    """A group that allows *size* bytes, for the length of the block; its processes have
    to end in it. Raises Missing: none can be made here.
    """
    folder = _made()
    try:
        group = Group(folder)
        try:
            group.limit(size)
        except OSError as error:
            raise Missing(f"no memory control group can be limited: {error}") from None
        yield group
    finally:
        until = time.monotonic() + PATIENCE
        while folder.exists() and time.monotonic() < until:
            with suppress(OSError):  # a process has yet to leave it
                folder.rmdir()
            time.sleep(0.05)


def _made() -> Path:
    why = "no hierarchy of control groups has the memory controller"
    for parent in _parents():
        folder = parent / f"reaper-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError as error:
            why = str(error)
        else:
            return folder
    raise Missing(f"no memory control group can be made: {why}")


def _parents() -> Iterator[Path]:
    """Folders below which a group with the memory controller could be made, ours
    first.
    """
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield from _existing(ROOT / "memory", own)
            elif not controllers:
                for folder in _existing(ROOT, own):
                    with suppress(OSError):
                        if "memory" in (folder / "cgroup.subtree_control").read_text().split():
                            yield folder


def _existing(top: Path, own: str) -> Iterator[Path]:
    folder = top / own.lstrip("/")
    while folder != top:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    if top.is_dir():
        yield top
