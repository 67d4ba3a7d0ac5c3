"""The stories find what they are for: each mutant of the law is caught."""

from __future__ import annotations

import inspect
import logging
import signal
import textwrap
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import reaper.asyncio
from reaper.keeper import law
from reaper.keeper.law import Law
from reaper.testing import on_asyncio
from reaper.testing.keepers import play_all
from tests.keeper.test_keeper import OptionStories

MUTANTS = {
    "what is in use stays armed": (
        "enter",
        "kept.lease.suspend()",
        "pass",
    ),
    "what was waited for is armed": (
        "made",
        "if kept.users:\n            kept.lease.suspend()",
        "if kept.users:\n            pass",
    ),
    "what is left stays exempt": (
        "leave",
        "self.driver.resume(kept.lease)",
        "pass",
    ),
    "who comes during an end gets a second thing": (
        "_newcomer",
        "not self.settings.overlap and",
        "False and",
    ),
    "what is being ended is handed out": (
        "_retire",
        "del self._kept[kept.key]",
        "pass",
    ),
    "an answer counts although somebody came": (
        "answered",
        "kept.state is not ASKING or kept.why is not question",
        "False",
    ),
    "an old thing goes at once": (
        "_age",
        "kept.state is KEPT and kept.users is not None",
        "False",
    ),
    "what was spared is armed although it is used": (
        "enter",
        "self._revive(kept)",
        "self._revive(kept); kept.users = {user: None}; return kept",
    ),
    "a dismissed thing goes at once": (
        "dismiss",
        "if kept.users is None:",
        "if True:",
    ),
    "the rest is not ended when the keeper is closed": (
        "leave",
        "or self.closing",
        "or False",
    ),
    "a touch is forgotten": (
        "touch",
        "kept.lease.touch()",
        "pass",
    ),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("reaper").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("reaper").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """A mutant may spin, and then no virtual time passes."""

    def spins(number: int, frame: FrameType | None) -> None:
        # What a weak reference calls may not raise; the next alarm meets another.
        if frame is None or frame.f_code.co_name != "_remove":
            raise TimeoutError("the mutant spins")

    before = signal.signal(signal.SIGALRM, spins)
    signal.setitimer(signal.ITIMER_REAL, 4, 0.1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def mutate(monkeypatch: pytest.MonkeyPatch, method: str, before: str, after: str) -> None:
    source = inspect.getsource(getattr(Law, method))
    assert before in source, f"{method} has changed: give the mutant its new text"
    made: dict[str, Any] = {}
    exec(textwrap.dedent(source.replace(before, after, 1)), vars(law), made)
    monkeypatch.setattr(Law, method, made[method])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_law_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTANTS[name])
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # or what the law itself raises
        play_all(on_asyncio.KeeperStage, reaper.asyncio.open_keeper)
        play_all(on_asyncio.KeeperStage, reaper.asyncio.open_keeper, OptionStories)
    assert not isinstance(caught.value, KeyboardInterrupt)
