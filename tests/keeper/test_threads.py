"""What only threads have: a fork, one lock, and a thread that must not spin."""

from __future__ import annotations

import os
import threading
import time

import pytest

import reaper.threads
from reaper.errors import KeeperClosed

pytestmark = pytest.mark.slow


def nothing(key: object, thing: object, reason: str) -> None:
    """An end."""


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_harms_nothing() -> None:
    with reaper.threads.open_keeper(str, nothing, idle=60) as keeper:
        with keeper.use("a"):
            pass
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (
                lambda: keeper.use("a").__enter__(),
                lambda: keeper.touch("a"),
                lambda: keeper.end("a"),
                keeper.keys,
                keeper.statistics,
                keeper.close,
            ):
                try:
                    call()
                except RuntimeError as error:
                    refused += "open one after the fork" in str(error)
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 6
        assert keeper.keys() == ["a"]


def test_an_idle_keeper_does_not_spin() -> None:
    with reaper.threads.open_keeper(str, nothing, idle=60, tick=0.1) as keeper:
        begun = keeper.reaper.core.statistics().epochs
        time.sleep(0.5)
        assert keeper.reaper.core.statistics().epochs == begun  # nothing is kept
        # This thread may be held up at any line: the time begins before, ends after.
        before, start = time.process_time(), time.monotonic()
        with keeper.use("a"):
            pass
        time.sleep(1.0)
        epochs = keeper.reaper.core.statistics().epochs - begun
        ticks = (time.monotonic() - start) / 0.1
        assert epochs <= 2 * ticks + 5
        assert time.process_time() - before < 0.5


def test_many_threads_share_one_keeper() -> None:
    made, wrong, lock = list[int](), list[object](), threading.Lock()

    def make(key: int) -> list[int]:
        made.append(key)
        return [0]

    def end(key: int, thing: list[int], reason: str) -> None:
        if thing[0]:
            wrong.append((key, reason))
        thing[0] = -1_000_000

    def call(number: int) -> None:
        for step in range(300):
            with keeper.use((number * step) % 7) as thing:
                with lock:
                    thing[0] += 1
                    if thing[0] <= 0:
                        wrong.append("ended")
                time.sleep(0)
                with lock:
                    thing[0] -= 1
            if step % 50 == 0:
                keeper.end(step % 7)

    with reaper.threads.open_keeper(make, end, idle=0.02, tick=0.01) as keeper:
        threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(keeper) == 0
    assert keeper.statistics().made == len(made) == sum(keeper.statistics().ended.values())
    with pytest.raises(KeeperClosed), keeper.use(1):
        pass
