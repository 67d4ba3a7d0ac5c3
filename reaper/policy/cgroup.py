"""The memory of the control groups that this process is in: how much they allow, and
how much of it is left.

The rule of this module: *a group is full as a whole*. The kernel kills in it when the
sum of all of its processes and of their sockets reaches the limit, however little this
process holds itself. What the kernel takes back without being asked, files that nobody
has used for a while, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class Memory(NamedTuple):
    """What the groups of this process allow, in bytes."""

    limit: int
    """The least limit of any of them."""
    left: int
    """The least that is left in any of them, and at most *limit*. At 0 the kernel
    kills.
    """


class _Version(NamedTuple):
    """Where one version of control groups says what."""

    folder: str
    limit: str
    used: str
    reclaimable: str


_FIRST = _Version(
    "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "
)
_SECOND = _Version("", "memory.max", "memory.current", "inactive_file ")


def memory(root: Path = ROOT, own: Path = OWN) -> Memory | None:
    """Read it, of version 2 and of version 1, of this process's group and those around
    it; None: none of them has a limit. Version 1 has no word for that: it says more
    than any machine has.
    Cost: three small files per group, some 0.1 ms.
    """
    found = list(_limits(root, own))
    if not found:
        return None
    limit = min(one.limit for one in found)
    return Memory(limit, min(limit, *(one.left for one in found)))


def _limits(root: Path, own: Path) -> Iterator[Memory]:
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                version = _SECOND
            elif "memory" in controllers.split(","):
                version = _FIRST
            else:
                continue
            inner = root / version.folder / group.lstrip("/")
            for folder in (inner, *inner.parents):
                with suppress(OSError, ValueError):  # there is none, or it says "max"
                    yield _read(folder, version)


def _read(folder: Path, version: _Version) -> Memory:
    limit = int((folder / version.limit).read_text())
    used = int((folder / version.used).read_text())
    for line in (folder / "memory.stat").read_text().splitlines():
        if line.startswith(version.reclaimable):
            used -= int(line.removeprefix(version.reclaimable))
    return Memory(limit, max(limit - used, 0))
