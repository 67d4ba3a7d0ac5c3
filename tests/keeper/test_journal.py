"""What a keeper's journal proves: nothing in use was ended, nothing idle was kept."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import textwrap
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


def written(directory: Path, mode: str, asks: bool = False) -> int:
    """Have a keeper write what random callers do in ten minutes of virtual time; how
    many things it made.
    """
    chance = random.Random(3)

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
                ask=(lambda key, thing: chance.random() < 0.7) if asks else None,
                idle=10,
                max_age=200,
                journal=journal,
                name="sessions",
            ) as keeper:

                async def call() -> None:
                    while asyncio.get_running_loop().time() < 600:
                        async with keeper.use(chance.randrange(30)):
                            await asyncio.sleep(chance.choice([0.01, 0.5, 3, 25]))
                        await asyncio.sleep(chance.uniform(0, 40))
                        if chance.random() < 0.05:
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


@pytest.mark.parametrize(("mode", "asks"), [("gaps", False), ("gaps", True), ("full", False)])
def test_the_journal_of_a_keeper_passes_the_audit(
    call: Ran, tmp_path: Path, mode: str, asks: bool
) -> None:
    made = written(tmp_path / "journal", mode, asks)
    status, verdicts, said = audited(call, tmp_path)
    assert status == 0, said
    assert verdicts.keys() <= {"ok_reaped", "ok_closed"}
    assert sum(verdicts.values()) == made


def test_the_audit_finds_what_was_ended_in_use(
    call: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, "enter", "kept.lease.suspend()", "pass")
    mutate(monkeypatch, "due", "or kept.users is not None", "")
    written(tmp_path / "journal", "gaps")
    status, verdicts, _ = audited(call, tmp_path)
    assert status == 1
    assert verdicts["activity_after_end"] > 0


def test_the_audit_does_not_pass_a_keeper_that_ends_nothing(
    call: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, "due", "self._retire(kept, reason, expiry)", "return")
    written(tmp_path / "journal", "gaps")
    assert audited(call, tmp_path)[0] == 1


def test_advise_says_which_time_to_live(call: Ran, tmp_path: Path) -> None:
    written(tmp_path / "journal", "gaps")
    words = ("pipeline", "advise", "--engine", "embedded", "--events", str(tmp_path / "journal"))
    _, said, _ = call(main, *words, "--out", str(tmp_path / "advice"))
    assert "sessions" in said
