"""What a keeper's journal proves: nothing in use was ended, nothing idle was kept."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import shutil
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reaper.asyncio
from reaper.__main__ import main
from reaper.asyncio import journal_clock
from reaper.journal import Journal
from reaper.keeper import law
from reaper.keeper.law import Law
from reaper.testing.on_asyncio import VirtualLoop

if TYPE_CHECKING:
    from tests.conftest import Ran

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def written(directory: Path, mode: str, asks: str = "", most: int | None = None) -> int:
    """Have a keeper write what random callers do in ten minutes of virtual time; how
    many things it made. *asks*: whether things are asked before their end, and how fast
    they answer.
    """
    chance = random.Random(3)

    async def slow(key: int, thing: object) -> bool:
        await asyncio.sleep(chance.uniform(0, 40))
        return chance.random() < 0.7

    asked = {"": None, "fast": lambda key, thing: chance.random() < 0.7, "slow": slow}

    async def make(key: int) -> object:
        await asyncio.sleep(0.5)
        return object()

    async def end(key: int, thing: object, reason: str) -> None:
        await asyncio.sleep(0.3)

    async def play() -> int:
        clock = journal_clock()
        with Journal(directory, mode=mode, tick=1.0, clock_ns=clock, background=False) as journal:
            async with reaper.asyncio.open_keeper(
                make,
                end,
                ask=asked[asks],
                idle=10,
                max_age=30,
                most=most,
                journal=journal,
                name="sessions",
            ) as keeper:

                async def call() -> None:
                    while asyncio.get_running_loop().time() < 600:
                        async with keeper.use(chance.randrange(30)):
                            await asyncio.sleep(chance.choice([0.01, 0.5, 3, 25]))
                        await asyncio.sleep(chance.uniform(0, 40))
                        if chance.random() < 0.3:
                            await keeper.end(chance.randrange(30))

                await asyncio.gather(*(call() for _ in range(8)))
                await asyncio.sleep(15)
            return keeper.statistics().made

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(play())


def audited(call: Ran, directory: Path) -> tuple[int, dict[str, int], str]:
    """The status, the verdicts that were found, and what was said."""
    out = directory / "audit"
    words = ("pipeline", "audit", "--engine", "embedded", "--events", str(directory / "journal"))
    status, said, _ = call(main, *words, "--out", str(out), "--json")
    verdicts: dict[str, Any] = json.loads(said)["verdicts"]
    return status, {name: number for name, number in verdicts.items() if number}, said


def mutate(monkeypatch: pytest.MonkeyPatch, method: str, before: str, after: str) -> None:
    source = inspect.getsource(getattr(Law, method))
    assert before in source
    made: dict[str, Any] = {}
    exec(textwrap.dedent(source.replace(before, after, 1)), vars(law), made)
    monkeypatch.setattr(Law, method, made[method])


MODES = ["gaps", "full"]
Story = Callable[[Any, Journal], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asks", ["", "fast", "slow"])
def test_the_journal_of_a_keeper_passes_the_audit(
    call: Ran, tmp_path: Path, mode: str, asks: str
) -> None:
    made = written(tmp_path / "journal", mode, asks, most=5 if asks == "slow" else None)
    status, verdicts, said = audited(call, tmp_path)
    assert status == 0, said
    assert verdicts.keys() <= {"ok_reaped", "ok_closed"}
    assert sum(verdicts.values()) == made


BREAKS = {
    "nothing is ended": ([("due", "self._retire(kept, reason, expiry)", "return")], "missed"),
    "what is in use is due, and ended": (
        [
            ("enter", "kept.lease.suspend()", "pass"),
            ("due", "or kept.users is not None", ""),
        ],
        "activity_after_end",
    ),
    "what is too old is ended in use": (
        [
            ("_age", "kept.state is KEPT and kept.users is not None", "False"),
            ("due", "or kept.users is not None", ""),
        ],
        "activity_after_end",
    ),
    "what is dismissed is ended in use": (
        [("dismiss", "if kept.users is None:", "if True:")],
        "activity_after_end",
    ),
}
"""What of the law is broken, and the verdict on that."""


def broken(monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    changes, verdict = BREAKS[name]
    for change in changes:
        mutate(monkeypatch, *change)
    return verdict


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BREAKS)
def test_the_audit_calls_a_broken_law_by_its_name(
    call: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mode: str
) -> None:
    verdict = broken(monkeypatch, name)
    written(tmp_path / "journal", mode)
    status, verdicts, said = audited(call, tmp_path)
    assert status == 1
    assert verdicts.get(verdict, 0) > 0, said


def told(directory: Path, mode: str, story: Story, **options: Any) -> None:
    """Have a keeper, whose things may be idle for 10 s, write what *story* does."""

    def end(key: int, thing: object, reason: str) -> None:
        """An end."""

    async def play() -> None:
        clock = journal_clock()
        journal = Journal(directory, mode=mode, tick=1.0, clock_ns=clock, background=False)
        async with reaper.asyncio.open_keeper(
            lambda key: object(), end, idle=10, drain=1, journal=journal, **options
        ) as keeper:
            await story(keeper, journal)
        journal.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


async def used_once(keeper: Any, journal: Journal) -> None:
    async with keeper.use(1):
        await asyncio.sleep(2)
    await asyncio.sleep(100)


@pytest.mark.parametrize("mode", MODES)
def test_who_is_asked_when_the_journal_ends_is_called_nothing_bad(
    call: Ran, tmp_path: Path, mode: str
) -> None:
    async def hangs(key: int, thing: object) -> None:
        await asyncio.sleep(1e6)

    async def story(keeper: Any, journal: Journal) -> None:
        await used_once(keeper, journal)
        journal.close()  # no end is in what it has so far, as in that of a process that is killed
        shutil.copytree(tmp_path / "whole", tmp_path / "journal")

    told(tmp_path / "whole", mode, story, ask=hangs)
    status, verdicts, said = audited(call, tmp_path)
    assert (status, verdicts) == (0, {"open_at_end": 1}), said


@pytest.mark.parametrize("mode", MODES)
def test_what_nothing_ended_is_called_missed(
    call: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    broken(monkeypatch, "nothing is ended")
    told(tmp_path / "journal", mode, used_once)
    assert audited(call, tmp_path)[:2] == (1, {"missed": 1})


def test_a_use_that_is_never_left_accuses_too(
    call: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(keeper: Any, journal: Journal) -> None:
        await keeper.use(1).__aenter__()
        await asyncio.sleep(5)
        await keeper.end(1)

    broken(monkeypatch, "what is dismissed is ended in use")
    told(tmp_path / "journal", "gaps", story)
    assert audited(call, tmp_path)[:2] == (1, {"activity_after_end": 1})


def test_advise_says_which_time_to_live(call: Ran, tmp_path: Path) -> None:
    written(tmp_path / "journal", "gaps")
    words = ("pipeline", "advise", "--engine", "embedded", "--events", str(tmp_path / "journal"))
    _, said, _ = call(main, *words, "--out", str(tmp_path / "advice"))
    assert "sessions" in said
