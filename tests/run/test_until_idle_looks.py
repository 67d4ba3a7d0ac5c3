"""When `reaper run --exit-when-idle` looks: the end comes within a tick, however long a
look takes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.run import until_idle

IDLE, TICK = 1.5, 0.3


class World:
    """A child to which one client is connected until `left`, a clock, and looks that
    take `look` seconds. It ends at SIGTERM.
    """

    def __init__(self, left: float, look: float) -> None:
        self.now, self.left, self.look = 0.0, left, look
        self.looks = 0
        self.told: float | None = None
        self.unseen, self.came = "", False

    def monotonic(self) -> float:
        return self.now

    def heard_within(self, heard: object, pause: float) -> Any:
        self.now += pause
        if self.told is None:
            return None
        return signal.struct_siginfo((signal.SIGCHLD, 0, 0, 0, 0, 0, 0))

    def kill(self, pid: int, number: int) -> None:
        assert number == signal.SIGTERM
        self.told = self.now

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        return pid, 0

    def anybody(self) -> bool:
        self.looks += 1
        self.now += self.look / 2
        there = self.now < self.left
        self.now += self.look / 2
        return there


def _play(world: World) -> tuple[int, bool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(until_idle, "time", SimpleNamespace(monotonic=world.monotonic))
        patch.setattr(until_idle, "heard_within", world.heard_within)
        patch.setattr(os, "kill", world.kill)
        patch.setattr(os, "waitpid", world.waitpid)
        patch.setattr(until_idle, "Presence", lambda child: world)
        return until_idle._stay_beside(1, IDLE, TICK, frozenset())


@given(st.floats(0.0, 4.0), st.floats(0.0, TICK / 4))
def test_the_end_comes_within_a_tick_and_never_early(left: float, look: float) -> None:
    world = World(left, look)
    assert _play(world) == (0, True)
    assert world.told is not None
    late = world.told - world.left - IDLE
    assert -1e-9 <= late <= TICK + 1e-9


def test_looks_that_take_longer_than_a_tick_have_half_of_the_time() -> None:
    world = World(100 * TICK, 2 * TICK)
    _play(world)
    assert world.looks <= world.now / (4 * TICK) + 2


HEARS = """
import signal
from reaper.run.until_idle import heard_within

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGALRM})
for _ in range(10):
    print("waits", flush=True)
    info = heard_within(frozenset({signal.SIGUSR1}), 0.1)
    print(info and info.si_signo, flush=True)
info = heard_within(frozenset({signal.SIGUSR1}), 60)
print(info.si_signo, heard_within(frozenset({signal.SIGUSR1}), 0))
"""


def test_a_process_that_was_stopped_hears_no_signal_that_nobody_sent() -> None:
    waiting = subprocess.Popen([sys.executable, "-c", HEARS], stdout=subprocess.PIPE, text=True)
    with waiting as child:
        assert child.stdout is not None
        for _ in range(10):
            assert child.stdout.readline() == "waits\n"
            time.sleep(0.02)
            child.send_signal(signal.SIGSTOP)
            time.sleep(0.15)
            child.send_signal(signal.SIGCONT)
            assert child.stdout.readline() == "None\n"
        child.send_signal(signal.SIGUSR1)
        assert child.stdout.read() == f"{int(signal.SIGUSR1)} None\n"
