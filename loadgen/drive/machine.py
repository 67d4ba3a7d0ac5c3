"""What a run costs the machine, by part: kernel, server, generator.

One rule: differences only. What the machine used before the first connection is subtracted, and what cannot be read is
null.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

JIFFY = os.sysconf("SC_CLK_TCK")
_KERNEL_MEMORY = ("Slab", "KernelStack", "PageTables", "Percpu")


class Sample(NamedTuple):
    """One look: bytes and seconds of CPU."""

    available: int
    kernel: int
    server: int
    generator: int
    user_s: float
    kernel_s: float
    server_s: float
    generator_s: float


class MachineWatch:
    """Looks at the whole machine, at the trees of the server's processes and at our own."""

    def __init__(self, server_pids: Sequence[int]) -> None:
        self.server_pids = server_pids
        self.samples: dict[str, Sample] = {}
        self.least_available: int | None = None

    def sample(self, phase: str) -> None:
        """Note everything under the name *phase*: "before", "open", "after"."""
        with suppress(OSError, KeyError, ValueError):
            self.samples[phase] = self._look()

    def glance(self) -> None:
        """Note the memory available, if it is the least so far. Cheap."""
        with suppress(OSError, KeyError, ValueError):
            available = _meminfo()["MemAvailable"]
            self.least_available = min(available, self.least_available or available)

    def result(self, generator_s: float) -> dict[str, Any]:
        """The report's `machine` block; memory when all connections were open, CPU of the whole run.

        *generator_s* is what the generator's processes say of their own CPU, outside the kernel: they have ended.
        """
        before, full, after = (self.samples.get(name) for name in ("before", "open", "after"))
        memory: dict[str, int | None] = dict.fromkeys(("kernel", "server", "generator", "most_used"))
        cpu: dict[str, float | None] = dict.fromkeys(("kernel", "server", "generator", "others"))
        if before is not None and full is not None:
            memory |= {
                "kernel": full.kernel - before.kernel,
                "server": full.server if self.server_pids else None,
                "generator": full.generator,
                "most_used": before.available - (self.least_available or full.available),
            }
        if before is not None and after is not None:
            server, generator = after.server_s - before.server_s, after.generator_s - before.generator_s + generator_s
            user = after.user_s - before.user_s
            cpu |= {
                "kernel": after.kernel_s - before.kernel_s,
                "server": server if self.server_pids else None,
                "generator": generator,
                "others": max(user - server - generator, 0.0),
            }
        return {"cpus": os.cpu_count(), "memory_bytes": memory, "cpu_s": cpu}

    def _look(self) -> Sample:
        memory = _meminfo()
        user, kernel = _cpu_seconds()
        server = set(trees(self.server_pids))
        own = set(trees([os.getpid()])) - server
        return Sample(
            memory["MemAvailable"],
            sum(memory.get(name, 0) for name in _KERNEL_MEMORY),
            sum(map(_proportional, server)),
            sum(map(_proportional, own)),
            user,
            kernel,
            sum(map(_user_seconds, server)),
            _user_seconds(os.getpid()),
        )


def trees(pids: Iterable[int]) -> list[int]:
    """*pids* and all processes that come from them; those that have ended are left out."""
    found = []
    for pid in pids:
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found += [pid, *trees(map(int, children))]
    return found


def _meminfo() -> dict[str, int]:
    lines = (line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in lines}


def _proportional(pid: int) -> int:
    """A process's memory; pages that several share count in parts."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0


def _user_seconds(pid: int) -> float:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) / JIFFY
    return 0.0


def _cpu_seconds() -> tuple[float, float]:
    """User and kernel seconds of all processors since the start of the machine."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice) / JIFFY, (system + irq + softirq) / JIFFY
