"""What a keeper promises, in all three worlds: the kit's stories, and those of its
options.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest

from reaper.errors import InvalidArgument, KeeperClosed, UnknownUid
from reaper.testing import on_threads
from reaper.testing.keepers import IDLE, TICK, Failed, Play, Stories, Thing, play_one
from tests.keeper.test_model import WORLDS

LONG = 100 * IDLE
"""Units that nothing is idle for in a story, however late the machine is."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("reaper").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("reaper").setLevel(logging.NOTSET)


async def ended(play: Play, key: Any) -> Thing:
    """What was kept for *key*, once its end has begun."""
    thing = play.things[key]
    await play.until(lambda: thing.ended is not None, f"{key} is ended")
    return thing


def waited(thing: Thing) -> float:
    """Units from the last sign of life of *thing* to its end, which has begun."""
    return math.inf if thing.ended is None else thing.ended - thing.active


class OptionStories:
    """Each tells of one option, or of one way in which a use, a make or an end goes."""

    async def what_is_old_is_ended_as_soon_as_it_is_left(self, play: Play) -> None:
        async with play.keeper(max_age=4.0) as keeper:
            await play.use(keeper, "a", 0.0)
            await play.stage.sleep(1.0)
            await play.use(keeper, "a", 8.0)
            old = await ended(play, "a")
            play.ledger.expect("old", old.reason == "max_age")
            play.ledger.expect("as it is left", waited(old) <= 2 * TICK + play.stage.slack)
            await play.use(keeper, "b", 0.0)
            idle = await ended(play, "b")
            play.ledger.expect("old and idle", idle.reason == "max_age")
            play.ledger.expect("in time", waited(idle) <= 4.0 + 2 * TICK + play.stage.slack)

    async def what_says_that_it_works_is_asked_again_after_a_timeout(self, play: Play) -> None:
        asked = list[float]()

        def ask(key: Any, thing: Thing) -> bool:
            asked.append(play.stage.now())
            if len(asked) < 3:
                play.ledger.touch(thing)
            return len(asked) == 3

        async with play.keeper(ask=ask) as keeper:
            begun = play.stage.now()
            await play.use(keeper, "a", 0.0)
            idle = await ended(play, "a")
            took, most = play.stage.now() - begun, 3 * (IDLE + TICK) + 1.0 + play.stage.slack
            play.ledger.expect(f"asked at {asked}", len(asked) == 3 and took <= most)
            play.ledger.expect("idle", idle.reason == "idle")
            play.ledger.expect("two were spared", keeper.statistics().spared == 2)

    async def who_comes_while_it_is_asked_is_served(self, play: Play) -> None:
        async def slow(key: Any, thing: Thing) -> bool:
            play.ledger.full(True)
            await play.stage.sleep(3.0)
            play.ledger.full(False)
            return True

        if not play.stage.cancels:
            return  # in threads an `ask` is a plain function
        async with play.keeper(ask=slow) as keeper:
            await play.use(keeper, "a", 0.0)
            await play.stage.sleep(IDLE + 1.5 * TICK)  # now it is being asked
            place = keeper.explain("a").place
            play.ledger.expect(f"it is asked, not {place}", place == "being asked")
            await play.use(keeper, "a", 1.6 * IDLE)
            play.ledger.expect("it lives on", keeper.keys() == ["a"])
            await play.stage.sleep(IDLE + 2 * TICK + 3.0)
            play.ledger.expect("idle", play.things["a"].reason == "idle")

    async def who_comes_and_goes_while_it_is_asked_was_there(self, play: Play) -> None:
        async def slow(key: Any, thing: Thing) -> bool:
            await play.stage.sleep(3.0)
            return True

        if not play.stage.cancels:
            return
        async with play.keeper(ask=slow) as keeper:
            await play.use(keeper, "a", 0.0)
            await play.stage.sleep(IDLE + 1.5 * TICK)
            await play.use(keeper, "a", 0.0)
            await play.stage.sleep(5.0)
            play.ledger.expect("it lives on", keeper.keys() == ["a"])

    async def a_question_that_raises_means_that_it_works(self, play: Play) -> None:
        heard = list[Any]()

        def ask(key: Any, thing: Thing) -> bool:
            if not heard:
                play.ledger.touch(thing)
                raise Failed
            return True

        def on_error(error: BaseException, key: Any) -> None:
            heard.append((type(error), key))

        async with play.keeper(ask=ask, on_error=on_error) as keeper:
            begun = play.stage.now()
            await play.use(keeper, "a", 0.0)
            await play.until(lambda: heard, "it is heard")
            took = play.stage.now() - begun
            play.ledger.expect("in time", took <= IDLE + 2 * TICK + play.stage.slack)
            play.ledger.expect(f"heard {heard}", heard == [(Failed, "a")])

    async def the_longest_idle_goes_first(self, play: Play) -> None:
        async with play.keeper(most=2, idle=LONG) as keeper:
            for key in ("a", "b"):
                await play.use(keeper, key, 0.0)
                await play.stage.sleep(2 * TICK)
            await play.use(keeper, "a", 0.0)
            play.ledger.expect("b is older", keeper.oldest(9) == ["b", "a"])
            async with keeper.use("c"), keeper.use("d"):
                play.ledger.expect("d and c", sorted(keeper.keys()) == ["c", "d"])
                async with keeper.use("e"):  # all are in use: there are more
                    play.ledger.expect("c, d and e", len(keeper) == 3)
                play.ledger.expect("two are left", len(keeper) == 2)
            play.ledger.expect("b was the first", play.things["b"].reason == "most")

    async def a_touch_is_a_sign_of_life(self, play: Play) -> None:
        async with play.keeper() as keeper:
            play.ledger.expect("nothing to touch", not keeper.touch("a"))
            last = play.stage.now()
            await play.use(keeper, "a", 0.0)
            for _ in range(4):
                await play.stage.sleep(0.4 * IDLE)
                now, lives = play.stage.now(), keeper.touch("a")
                if play.stage.now() - last >= IDLE:
                    return  # who was late itself proves nothing
                play.ledger.expect("touched", lives)
                play.ledger.touch(play.things["a"], now)
                last = now
            lives = "a" in keeper
            play.ledger.expect("it lives", lives or play.stage.now() - last >= IDLE)
            play.ledger.expect("b does not", "b" not in keeper)
            await play.stage.sleep(IDLE + 2 * TICK)
            play.ledger.look()

    async def a_program_may_end_what_it_keeps(self, play: Play) -> None:
        async with play.keeper(idle=LONG) as keeper:
            play.ledger.expect("nothing to end", not await keeper.end("a"))
            await play.use(keeper, "a", 0.0)
            play.ledger.expect("a is ended", await keeper.end("a"))
            play.ledger.expect("its end has run", play.things["a"].over is not None)
            play.ledger.expect("ended", play.things["a"].reason == "ended")
            play.stage.start(play.use, keeper, "b", 3.0)
            await play.until_used("b")
            play.ledger.expect("b is ended", await keeper.end("b"))
            play.ledger.expect("when it was left", play.things["b"].over is not None)

    async def who_uses_it_may_end_it(self, play: Play) -> None:
        async with play.keeper() as keeper:
            async with keeper.use("a") as thing:
                play.ledger.enter(thing)
                play.ledger.expect("True", await keeper.end("a"))
                play.ledger.expect("not yet", thing.ended is None)
                play.ledger.expect("it is gone from the keys", "a" not in keeper)
                play.ledger.leave(thing)
            await play.use(keeper, "a", 0.0)
            play.ledger.expect("another one", play.things["a"] is not thing)

    async def with_overlap_nobody_waits_for_an_end(self, play: Play) -> None:
        play.ledger._overlap = True
        play.lasts["a"] = 20.0
        async with play.keeper(overlap=True) as keeper:
            await play.use(keeper, "a", 0.0)
            before = await ended(play, "a")
            begun = play.stage.now()
            await play.use(keeper, "a", 0.0)
            prompt = play.stage.now() - begun <= min(play.stage.slack, 4.0)
            beside = before.over is None or play.things["a"].active < before.over
            play.ledger.expect("it waits", prompt or beside)

    async def closing_waits_for_who_is_in_and_lets_nobody_in(self, play: Play) -> None:
        closes, refused = list[bool](), list[bool]()

        async def late(keeper: Any) -> None:
            await play.until(lambda: closes, "it closes")
            await play.stage.sleep(3.0)
            try:
                await play.use(keeper, "b", 0.0)
            except KeeperClosed:
                refused.append(True)
            else:
                refused.append(False)

        async def stays(keeper: Any) -> None:
            async with keeper.use("a") as thing:
                play.ledger.enter(thing)
                await play.until(lambda: refused, "b has come")
                await play.stage.sleep(3.0)
                play.ledger.leave(thing)

        async with play.keeper(drain=90.0) as keeper:
            play.stage.start(stays, keeper)
            play.stage.start(late, keeper)
            await play.until_used("a")
            closes.append(True)
        play.ledger.expect("a was served", play.things["a"].reason == "drain")
        play.ledger.expect("b was refused", refused == [True])

    async def closing_does_not_wait_for_ever(self, play: Play) -> None:
        async def stays(keeper: Any) -> None:
            async with keeper.use("a") as thing:
                play.ledger.enter(thing)
                await play.until(lambda: thing.ended is not None, "a is cut")
                play.ledger.leave(thing)

        async with play.keeper(drain=3.0) as keeper:
            play.stage.start(stays, keeper)
            await play.until_used("a")
        play.ledger.expect("a was cut", play.things["a"].reason == "drain_deadline")

    async def a_make_that_nobody_waits_for_is_cancelled(self, play: Play) -> None:
        if not play.stage.cancels:
            return
        play.making = 5.0
        async with play.keeper() as keeper:
            first = play.stage.start(play.use, keeper, "a", 0.0)
            second = play.stage.start(play.use, keeper, "a", 1.0)
            await play.stage.sleep(1.0)
            first.cancel()
            await play.stage.sleep(5.0)
            play.ledger.expect("made for the other one", len(play.ledger.made) == 1)
            third = play.stage.start(play.use, keeper, "b", 0.0)
            await play.stage.sleep(1.0)
            play.ledger.expect("b is being made", keeper.statistics().making == 1)
            third.cancel()
            await play.stage.sleep(1.0)
            play.ledger.expect("b is not", keeper.statistics().making == 0)
            await play.use(keeper, "b", 0.0)
            play.ledger.expect("it is made anew", len(play.ledger.made) == 2)
            second.cancel()

    async def a_use_is_entered_once(self, play: Play) -> None:
        if not play.stage.cancels:
            return
        async with play.keeper() as keeper:
            use = keeper.use("a")
            async with use:
                pass
            with pytest.raises(RuntimeError, match="entered before"):
                async with use:
                    pass

    async def it_says_why_something_is_still_here(self, play: Play) -> None:
        async with play.keeper(name="browsers") as keeper:
            with pytest.raises(UnknownUid, match="nothing is kept for 'a'"):
                keeper.explain("a")
            async with keeper.use("a"):
                play.ledger.expect("in use", keeper.explain("a").suspended)
                play.ledger.expect("none is idle", keeper.oldest(5) == [])
            found = keeper.explain("a")
            play.ledger.expect("idle", (found.uid, found.reason) == ("a", "idle"))
            counted = keeper.statistics()
            play.ledger.expect("counted", (counted.name, counted.made) == ("browsers", 1))
            names = [family.name for family in keeper.families()]
            play.ledger.expect("metrics", "reaper_keeper_ended" in names)


TOLD = [
    *((Stories, name) for name in vars(Stories) if not name.startswith("_")),
    *((OptionStories, name) for name in vars(OptionStories) if not name.startswith("_")),
]


@pytest.mark.parametrize(
    "world", ["asyncio", "trio", pytest.param("threads", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("told", "name"), TOLD, ids=[name for _, name in TOLD])
def test_the_law_holds(world: str, told: type[Any], name: str) -> None:
    stage, door = WORLDS[world]
    stage = on_threads.KeeperStage if world == "threads" else stage
    play_one(stage(), door, getattr(told(), name), name)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"idle": -1}, "idle must be a finite number of seconds > 0, or 0 for none, got -1"),
        ({"tick": 0}, "tick must be a finite number of seconds > 0, got 0"),
        ({"max_age": "1h"}, "max_age must be"),
        ({"most": 0}, "most must be an integer >= 1, got 0"),
        ({"ends_at_once": 0}, "ends_at_once must be an integer >= 1, got 0"),
        ({"jitter": 2.0}, "jitter must be"),
        ({"overlap": 1}, "overlap must be True or False, got 1"),
        ({"ask": 3}, "ask must be a function or None, got 3"),
        ({"on_error": 3}, "on_error must be a function or None, got 3"),
        ({"journal": "out"}, "journal must be a Journal or None, got 'out'"),
        ({"pressure": True}, "pressure must be a Pressure or None, got True"),
        ({"name": ""}, "name must be a text, got ''"),
        ({"drain": 0}, "drain must be a finite number of seconds > 0, got 0"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_given(
    world: str, given: dict[str, Any], message: str
) -> None:
    _, door = WORLDS[world]
    with pytest.raises(InvalidArgument) as refused:
        door(len, print, **given)
    assert str(refused.value).startswith(message)


def test_an_unknown_option_is_refused_by_name() -> None:
    _, door = WORLDS["asyncio"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'ttl'; the options are make"):
        door(len, print, ttl=3)
