"""Random programs in all three worlds, beside an account that was told only what
happened: nothing in use is ended, nothing early, nothing late, everything once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reaper.asyncio
import reaper.threads
import reaper.trio
from reaper.errors import KeeperClosed
from reaper.testing import on_asyncio, on_threads, on_trio
from reaper.testing.keepers import IDLE, TICK, Failed, Play, Thing

KEYS = "ab"
HANGS = 1000.0

WORLDS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "asyncio": (on_asyncio.KeeperStage, reaper.asyncio.open_keeper),
    "trio": (on_trio.KeeperStage, reaper.trio.open_keeper),
    "threads": (lambda: on_threads.KeeperStage(0.01), reaper.threads.open_keeper),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Ends that raise and stalls are logged, and here they are many."""
    logging.getLogger("reaper").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("reaper").setLevel(logging.NOTSET)


@dataclass(frozen=True)
class Use:
    key: str
    units: float
    raises: bool
    cancelled: float | None


@dataclass(frozen=True)
class Act:
    kind: str
    key: str = ""
    units: float = 0.0


@dataclass(frozen=True)
class Plan:
    acts: list[Use | Act]
    options: dict[str, Any]
    making: float
    fails: frozenset[str]
    breaks: frozenset[str]
    lasts: dict[str, float]
    refuses: int
    rest: float


units = st.sampled_from([0.0, 0.1, 1.0, 4.0, 7.0, 9.9, 10.0, 10.6, 11.0, 12.0, 14.0])
keys = st.sampled_from(KEYS)
acts = st.one_of(
    st.builds(Use, keys, units, st.booleans(), st.none() | units),
    st.builds(Act, st.just("wait"), st.just(""), units),
    st.builds(Act, st.sampled_from(["touch", "end", "inner_end", "heal"]), keys),
    st.builds(Act, st.just("stall"), st.just(""), st.sampled_from([0.4, 2.0, 15.0])),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "ends_at_once": st.integers(1, 2),
        "most": st.integers(1, 2),
        "max_age": st.sampled_from([4.0, 25.0]),
        "overlap": st.booleans(),
        "drain": st.sampled_from([2.0, 20.0]),
        "jitter": st.just(0.0),
    },
)
plans = st.builds(
    Plan,
    st.lists(acts, min_size=2, max_size=14),
    options,
    st.sampled_from([0.0, 0.5, 3.0]),
    st.frozensets(keys, max_size=1),
    st.frozensets(keys, max_size=1),
    st.dictionaries(keys, st.sampled_from([0.5, 6.0, 6.0, HANGS]), max_size=2),
    st.integers(-1, 2),  # how often `ask` says no; -1: there is no `ask`
    st.sampled_from([0.3, 11.5]),
)


async def perform(play: Play, plan: Plan, longest_end: float) -> None:
    """Do what *plan* says with a keeper, and keep the account."""
    ledger, stage = play.ledger, play.stage
    play.making, play.fails, play.breaks = plan.making, set(plan.fails), set(plan.breaks)
    play.lasts = {key: min(lasts, longest_end) for key, lasts in plan.lasts.items()}
    hung = HANGS in plan.lasts.values()
    given = dict(plan.options)
    play.turns = given.get("ends_at_once", 8)
    given.setdefault("drain", 20.0)
    left = plan.refuses

    def ask(key: Any, thing: Thing) -> bool:
        nonlocal left
        if left > 0:
            left -= 1
            ledger.touch(thing)
            return False
        return True

    if plan.refuses >= 0:
        given["ask"] = ask

    async def use(keeper: Any, one: Use) -> None:
        try:
            async with keeper.use(one.key) as thing:
                ledger.enter(thing)
                try:
                    await stage.sleep(one.units)
                    if one.raises:
                        raise Failed
                finally:
                    ledger.leave(thing)
        except (Failed, KeeperClosed):
            pass

    async def cancel(player: Any, after: float) -> None:
        await stage.sleep(after)
        player.cancel()

    async def inner_end(keeper: Any, key: str) -> None:
        try:
            async with keeper.use(key) as thing:
                ledger.enter(thing)
                ledger.expect("a user ends its own", await keeper.end(key) or thing.ended)
                ledger.leave(thing)
        except (Failed, KeeperClosed):
            pass

    async def end(keeper: Any, key: str) -> None:
        await keeper.end(key)

    async with stage.opened(
        play._door, play.make, play.end, idle=IDLE, tick=TICK, **given
    ) as keeper:
        for act in plan.acts:
            if isinstance(act, Use):
                player = stage.start(use, keeper, act)
                if act.cancelled is not None:
                    stage.start(cancel, player, act.cancelled)
            elif act.kind == "wait":
                await stage.sleep(act.units)
            elif act.kind == "touch":
                before = stage.now()  # the keeper may count from there
                if keeper.touch(act.key):
                    ledger.touch(play.things[act.key], before)
            elif act.kind == "heal":
                play.fails.discard(act.key)
            elif act.kind == "stall":
                play.stall(act.units)
            else:
                stage.start({"end": end, "inner_end": inner_end}[act.kind], keeper, act.key)
        await stage.sleep(plan.rest)
        ledger.look()
        counted = keeper.statistics()
        seen = len(keeper), len(keeper.keys())
        while (again := keeper.statistics()).kept != counted.kept:  # a thread ended one
            counted, seen = again, (len(keeper), len(keeper.keys()))
        ledger.expect("kept is counted", seen == (counted.kept, counted.kept))
        if not hung and "most" in given and not plan.refuses > 0:
            free = counted.kept - counted.in_use
            ledger.expect("most holds", counted.kept <= given["most"] or not free)
    if not stage.cancels:  # the machine may be late to run the threads that end the last
        for _ in range(200):
            if all(thing.ended is not None for thing in ledger.made) and (
                hung or sum(keeper.statistics().ended.values()) == len(ledger.made)
            ):
                break
            await stage.sleep(0.5)
    ledger.close()
    counted = keeper.statistics()
    ledger.expect("nothing is kept", not counted.kept and not counted.making)
    ledger.expect("all that was made was counted", counted.made == len(ledger.made))
    if not hung:
        ledger.expect("all has ended", sum(counted.ended.values()) == counted.made)


def tried(world: str, plan: Plan) -> None:
    make_stage, door = WORLDS[world]
    stage = make_stage()
    play = Play(stage, door, overlap=plan.options.get("overlap", False))

    async def story() -> None:
        await perform(play, plan, HANGS if stage.cancels else 60.0)

    stage.played(story)
    play.ledger.judge(world)


@pytest.mark.parametrize("world", ["asyncio", "trio"])
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans)
def test_no_program_sees_the_law_broken(world: str, plan: Plan) -> None:
    tried(world, plan)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans)
def test_no_program_in_threads_sees_the_law_broken(plan: Plan) -> None:
    tried("threads", plan)
