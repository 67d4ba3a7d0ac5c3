"""The five kinds that projects write fail the kit, and reaper's keepers pass it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import reaper.asyncio
import reaper.threads
import reaper.trio
from reaper.testing import NotConforming, on_asyncio, on_threads, on_trio
from reaper.testing.keepers import Failed, Play, play_all
from scripts.keepers.kinds import KINDS, Kind


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Ends that raise and stalls are logged."""
    logging.getLogger("reaper").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("reaper").setLevel(logging.NOTSET)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_that_projects_write_fails_the_kit(name: str) -> None:
    # With the loop's clock for all: it is not the wall clock that fails here.
    kind: Any = type(name, (KINDS[name],), {"now": Kind.now})
    with pytest.raises(NotConforming):
        on_asyncio.check_keeper(kind.open)


LOOPS: Any = [(on_asyncio, reaper.asyncio), (on_trio, reaper.trio)]


@pytest.mark.parametrize(("kit", "world"), LOOPS, ids=["asyncio", "trio"])
def test_of_a_keeper_that_passes_nothing_is_logged_as_if_it_failed(
    kit: Any, world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "reaper")
    kit.check_keeper(world.open_keeper)
    assert caplog.messages == []


def test_what_others_log_during_a_story_stays_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "reaper")
    log = logging.getLogger("reaper")

    class Told:
        async def a_story(self, play: Play) -> None:
            log.error("mine", exc_info=ValueError("mine"))
            log.error("provoked", exc_info=Failed("a"))
            log.warning("a stall of the story", extra={"lag": 1.0})
            other = threading.Thread(
                target=lambda: log.warning("another's stall", extra={"lag": 1.0})
            )
            other.start()
            other.join()

    play_all(on_asyncio.KeeperStage, reaper.asyncio.open_keeper, Told)
    log.error("provoked, but by no story", exc_info=Failed("a"))
    assert caplog.messages == ["mine", "another's stall", "provoked, but by no story"]


def test_the_keepers_of_loops_pass_it() -> None:
    on_asyncio.check_keeper(reaper.asyncio.open_keeper)
    on_trio.check_keeper(reaper.trio.open_keeper)


@pytest.mark.parametrize("whole", [True, False])
def test_what_holds_up_the_threads_of_a_machine_again_and_again_adds_up(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """A keeper's clock stands still each time. The last beat may not be over, and then
    nobody has noted by how much it is late.
    """
    stage, now, held_up = on_threads.KeeperStage(), 0.0, iter([0.25, 0.0, 0.25, 0.5])
    seen: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + next(held_up)
        seen.append((stage.slack - calm) * on_threads.UNIT)
        if len(seen) == 4:
            stage._over.set()

    calm = stage.slack
    monkeypatch.setattr(on_threads, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    stage._watch()
    now += 10.0 * whole  # when the story is over, nothing more is counted
    found = [(stage.slack - calm) * on_threads.UNIT] if whole else seen
    assert found == pytest.approx([1.0] if whole else [0.25, 0.25, 0.5, 1.0])


@pytest.mark.slow
def test_the_keeper_of_threads_passes_it() -> None:
    on_threads.check_keeper(reaper.threads.open_keeper)
