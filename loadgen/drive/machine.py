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
    """One look: bytes and seconds of CPU. `*_each` is the mean of its processes' memory that they share with none."""

    used: int
    kernel: int
    server: int
    server_each: int | None
    generator: int
    generator_each: int | None
    user_s: float
    kernel_s: float
    server_s: float
    generator_s: float


class MachineWatch:
    """Looks at the whole machine, at the trees of the server's processes and at our own."""

    def __init__(self, server_pids: Sequence[int]) -> None:
        self.server_pids = server_pids
        self.samples: dict[str, Sample] = {}
        self.most_used = 0

    def sample(self, phase: str) -> None:
        """Note everything under the name *phase*: "before", "open", "after"."""
        with suppress(OSError, KeyError, ValueError):
            self.samples[phase] = self._look()

    def glance(self) -> None:
        """Note the memory in use, if it is the most so far. Cheap."""
        with suppress(OSError, KeyError, ValueError):
            self.most_used = max(self.most_used, _used(_meminfo()))

    def result(self, generator_s: float) -> dict[str, Any]:
        """The report's `machine` block; memory when all connections were open, CPU of the whole run.

        *generator_s* is what the generator's processes say of their own CPU, outside the kernel: they have ended.
        """
        before, full, after = (self.samples.get(name) for name in ("before", "open", "after"))
        memory: dict[str, int | None] = dict.fromkeys(("kernel", "server", "generator", "most_used"))
        each: dict[str, int | None] = dict.fromkeys(("server", "generator"))
        cpu: dict[str, float | None] = dict.fromkeys(("kernel", "server", "generator", "others"))
        if before is not None:
            each |= {"server": before.server_each, "generator": before.generator_each}
        if before is not None and full is not None:
            memory |= {
                "kernel": full.kernel - before.kernel,
                "server": full.server if self.server_pids else None,
                "generator": full.generator,
                "most_used": max(self.most_used, full.used) - before.used,
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
        return {"cpus": os.cpu_count(), "memory_bytes": memory, "process_bytes": each, "cpu_s": cpu}

    def _look(self) -> Sample:
        memory = _meminfo()
        user, kernel = _cpu_seconds()
        server = {pid: _memory(pid) for pid in trees(self.server_pids)}
        own = {pid: _memory(pid) for pid in trees([os.getpid()]) if pid not in server}
        return Sample(
            _used(memory),
            sum(memory.get(name, 0) for name in _KERNEL_MEMORY),
            sum(each.proportional for each in server.values()),
            _mean([each.private for pid, each in server.items() if pid not in self.server_pids]),
            sum(each.proportional for each in own.values()),
            _mean([own[pid].private for pid in _working(own)]),
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


def _used(memory: dict[str, int]) -> int:
    """Bytes in use. `MemAvailable` would not do: it counts what the kernel holds of sockets as free to take."""
    return memory["MemTotal"] - sum(memory[name] for name in ("MemFree", "Buffers", "Cached"))


class Memory(NamedTuple):
    """Of one process: pages that several share count in parts, and those that are its own alone. Bytes."""

    proportional: int
    private: int


def _memory(pid: int) -> Memory:
    with suppress(OSError, KeyError):
        rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        found = {row[0]: int(row[1]) * 1024 for row in rows}
        return Memory(found["Pss:"], found["Private_Clean:"] + found["Private_Dirty:"])
    return Memory(0, 0)


def _working(own: Iterable[int]) -> list[int]:
    """Those of our processes that drive connections: they were forked by one that is ours too, but not this one."""
    forks = {pid: trees([pid])[1:] for pid in own if pid != os.getpid()}
    return [child for children in forks.values() for child in children]


def _mean(values: Sequence[int]) -> int | None:
    return sum(values) // len(values) if values else None


def _user_seconds(pid: int) -> float:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) / JIFFY
    return 0.0


def _cpu_seconds() -> tuple[float, float]:
    """User and kernel seconds of all processors since the start of the machine."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice) / JIFFY, (system + irq + softirq) / JIFFY
