"""The programs by name: what each asks, and where it is."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple


class Program(NamedTuple):
    """One question."""

    name: str
    module: str
    title: str

    def load(self) -> ModuleType:
        return importlib.import_module(f"benchmarks.{self.module}")


PROGRAMS = {
    program.name: program
    for program in (
        Program("touch", "heart.touch", "A touch"),
        Program("instructions", "instructions", "A touch in machine instructions"),
        Program("jvm", "peers.jvm", "A touch, and Netty's wheel on the JVM"),
        Program("ticks", "heart.ticks", "Ticks, and everything else that a connection needs"),
        Program("timers", "heart.timers", "Timers in the wheel and in a heap"),
        Program("memory", "heart.memory", "Memory of a connection"),
        Program("mass", "heart.mass", "The longest pause"),
        Program("journal", "heart.journal_cost", "The journal"),
        Program("exchanges", "servers.exchanges", "An exchange in instructions and system calls"),
        Program("servers", "servers.run", "A request, ours and other servers'"),
        Program("idle", "servers.idle", "An idle connection, ours and other servers'"),
        Program("attach", "attach", "Guarding another process"),
        Program("pipeline", "pipeline.run", "The pipeline"),
    )
}
"""In the order in which they run, and stand on the page."""
SLOW = ("pipeline",)
"""Run only where they are named: half an hour, and gigabytes of disk."""
