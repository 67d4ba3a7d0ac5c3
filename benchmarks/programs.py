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
    seconds: int
    """About, at full scale."""

    def load(self) -> ModuleType:
        return importlib.import_module(f"benchmarks.{self.module}")


PROGRAMS = {
    program.name: program
    for program in (
        Program("touch", "heart.touch", "A touch", 150),
        Program("instructions", "instructions", "A touch in machine instructions", 30),
        Program("jvm", "peers.jvm", "A touch, and Netty's wheel on the JVM", 120),
        Program("ticks", "heart.ticks", "Ticks, and everything else that a connection needs", 150),
        Program("timers", "heart.timers", "Timers in the wheel and in a heap", 40),
        Program("memory", "heart.memory", "Memory of a connection", 200),
        Program("pauses", "heart.pauses", "The longest pause", 45),
        Program("mass", "heart.mass", "The longest pause under trio", 35),
        Program("accuracy", "heart.accuracy", "Early, late, exactly once", 120),
        Program("journal", "heart.journal_cost", "The journal", 10),
        Program("exchanges", "servers.exchanges", "An exchange in instructions and system calls", 110),
        Program("servers", "servers.run", "A request, ours and other servers'", 90),
        Program("idle", "servers.idle", "An idle connection, ours and other servers'", 150),
        Program("guarded", "servers.guarded", "uvicorn, stock and guarded", 150),
        Program("attach", "attach", "Guarding another process", 240),
        Program("pipeline", "pipeline.run", "The pipeline", 3600),
    )
}
"""In the order in which they run, and stand on the page."""
SLOW = ("pipeline",)
"""Run only where they are named: hours, and gigabytes of disk."""
