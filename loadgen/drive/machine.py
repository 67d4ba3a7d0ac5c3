"""Measures what a run costs, by part: the server's processes, this program's, and the
kernel.

One rule: a figure is a difference, from which what was there before the first
connection is subtracted. A figure that cannot be measured is null.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from ..judge.report import UNKNOWN_SERVER
from ..plan.capacity import meminfo
from ..units import BadArgument

_KERNEL_MEMORY = ("Slab", "KernelStack", "PageTables", "Percpu")


class Trees(NamedTuple):
    """Some processes and all that come from them.

    Attributes:
        workers: How many processes there are below the roots.
        rss, pss: Bytes of memory; `pss` counts a page that several share in parts.
        each: Bytes that a process below a root shares with no other, on average.
        user_s, cpu_s: Seconds of CPU outside the kernel, and in all.
    """

    workers: int = 0
    rss: int = 0
    pss: int = 0
    each: int | None = None
    user_s: float = 0.0
    cpu_s: float = 0.0


class Sample(NamedTuple):
    """One look at the machine, in bytes and in seconds since its start."""

    instant: float
    used: int
    kernel: int
    server: Trees
    own: Trees
    user_s: float
    kernel_s: float


class MachineWatch:
    """Looks at the whole machine, at the server's processes, and at those of this
    program.

    Without psutil every figure is null. Raises BadArgument: there is a server to watch,
    but no psutil or no such process.
    """

    def __init__(self, server_pids: Sequence[int]) -> None:
        self.server_pids = server_pids
        self.samples: dict[str, Sample] = {}
        self.most_used = 0
        try:
            import psutil
        except ImportError:
            if server_pids:
                raise BadArgument(
                    "--server-pid needs psutil: pip install psutil, or leave the option out"
                ) from None
            self.psutil: Any = None
            return
        self.psutil = psutil
        for pid in server_pids:
            if not psutil.pid_exists(pid):
                raise BadArgument(
                    f"--server-pid {pid}: no such process: give the pid of a running server"
                )

    def sample(self, phase: str) -> None:
        """Note everything under the name *phase*: "before", "open", "after"."""
        if self.psutil is not None:
            memory, cpu = meminfo(), self.psutil.cpu_times()
            self.samples[phase] = Sample(
                monotonic(),
                _used(memory),
                sum(memory.get(name, 0) for name in _KERNEL_MEMORY),
                self._trees(self.server_pids, 1),
                self._trees(
                    [os.getpid()], 2
                ),  # those that drive connections are forked by one that only forks
                cpu.user + cpu.nice,
                cpu.system + cpu.irq + cpu.softirq,
            )

    def glance(self) -> None:
        """Note the memory in use, if it is the most so far. Cost: reading one file of
        /proc.
        """
        if self.psutil is not None:
            self.most_used = max(self.most_used, _used(meminfo()))

    def server(self, connections: int) -> dict[str, Any]:
        """The report's `server` block for so many connections."""
        before, full, after = (self.samples.get(name) for name in ("before", "open", "after"))
        if not self.server_pids or before is None or after is None:
            return dict(UNKNOWN_SERVER)
        grown = full.server.rss - before.server.rss if full else 0
        return {
            "workers": before.server.workers,
            "rss_bytes_per_connection": grown / connections if full and connections else None,
            "cpu_fraction": (after.server.cpu_s - before.server.cpu_s)
            / (after.instant - before.instant),
            "rss_bytes_before": before.server.rss,
            "rss_bytes_open": full.server.rss if full else None,
        }

    def result(self, generator_s: float) -> dict[str, Any]:
        """The report's `machine` block: memory when all connections were open, CPU of
        the run.

        *generator_s*: seconds of CPU outside the kernel that the generator's processes,
        which have ended, say of themselves.
        """
        before, full, after = (self.samples.get(name) for name in ("before", "open", "after"))
        memory: dict[str, int | None] = dict.fromkeys(
            ("kernel", "server", "generator", "most_used")
        )
        cpu: dict[str, float | None] = dict.fromkeys(("kernel", "server", "generator", "others"))
        if before is not None and full is not None:
            most_used = max(self.most_used, full.used) - before.used
            memory = dict(
                zip(
                    memory,
                    (full.kernel - before.kernel, full.server.pss, full.own.pss, most_used),
                    strict=True,
                )
            )
        if before is not None and after is not None:
            server = after.server.user_s - before.server.user_s
            generator = generator_s + after.own.user_s - before.own.user_s
            others = max(after.user_s - before.user_s - server - generator, 0.0)
            cpu = dict(
                zip(cpu, (after.kernel_s - before.kernel_s, server, generator, others), strict=True)
            )
        if not self.server_pids:
            memory["server"] = cpu["server"] = None
        each = {"server": before and before.server.each, "generator": before and before.own.each}
        return {"cpus": os.cpu_count(), "memory_bytes": memory, "process_bytes": each, "cpu_s": cpu}

    def _trees(self, pids: Sequence[int], depth: int) -> Trees:
        """Look at *pids* and what comes from them; `each` is of those *depth* or more
        forks below.

        In our own tree, `user_s` is that of this process: the others say theirs at
        their end.
        """
        workers = rss = pss = 0
        private, user, cpu = [], 0.0, 0.0
        level = [(pid, 0) for pid in pids]
        for pid, below in level:
            with suppress(self.psutil.Error):  # it ended between listing and looking
                process = self.psutil.Process(pid)
                children = [
                    (child.pid, below + 1)
                    for child in process.children()
                    if child.pid not in self.server_pids
                ]
                level += children
                workers += below > 0
                memory, times = process.memory_full_info(), process.cpu_times()
                rss, pss = rss + memory.rss, pss + memory.pss
                private += [memory.uss] if below >= depth else []
                cpu += times.user + times.system
                user += times.user if depth == 1 or not below else 0.0
        each = sum(private) // len(private) if private else None
        return Trees(max(workers, len(pids)), rss, pss, each, user, cpu)


def _used(memory: dict[str, int]) -> int:
    """Bytes in use.

    `MemAvailable` would not do: it counts what the kernel holds of sockets as free to
    take.
    """
    return memory["MemTotal"] - sum(memory[name] for name in ("MemFree", "Buffers", "Cached"))
