"""What the journal of a watch proves: an audit of it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

from reaper.attach.judge import Limits
from reaper.attach.runner import JournalBook
from reaper.attach.watch import Watch
from reaper.config import Attach
from reaper.journal import Journal
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.engine import embedded, use
from reaper.pipeline.read.inputs import Inputs, check
from tests.helpers.attach_worlds import FakeSocket, FakeWorld
from tests.helpers.pipeline_traffic import WALL, S

IDLE, TICK, PERIOD = 6.0, 0.5, 3.0
HEARD_OF = ("speaks", "works", "pushes", "falls silent")


class Trial:
    """Connections of every kind in virtual time, watched, and the journal of that."""

    def __init__(self, place: Path, seed: int, jitter: float, closes: bool) -> None:
        self.chance = random.Random(seed)
        self.world = world = FakeWorld()
        self.place, self.closed = place, 0
        self.journal = Journal(
            place,
            mode="gaps",
            tick=TICK,
            gap_threshold=2 * PERIOD,
            clock_ns=lambda: round(world.now * 1e9),
            wall_ns=lambda: WALL + round(world.now * 1e9),
            background=False,
        )
        config = Attach(idle=IDLE, tick=TICK, jitter=jitter)
        self.book = JournalBook(self.journal, config, closes, lambda: world.now)
        self.watch = Watch(
            world.look,
            Limits(idle=IDLE),
            glance=world.glance,
            tick=TICK,
            end=world.end if closes else None,
            closes=closes,
            jitter=jitter,
            on=self.book.note,
            heard=self.book.heard,
        )
        self.then: dict[int, tuple[float, str]] = {}

    def lives(self, number: int, sock: FakeSocket) -> None:
        """Have a client do what it does next, if it is time."""
        at, what = self.then[number]
        if self.world.now < at or not sock.open:
            return
        kind = HEARD_OF[number % len(HEARD_OF)]
        if what == "answer":
            self.world.answer(sock)
        elif what == "push":
            self.world.answer(sock)
            self.then[number] = self.world.now + self.chance.uniform(0.5, 5.5), "push"
            return
        elif what == "end":
            self.world.hang_up(sock)
            return
        if what == "ask":
            self.world.send(sock)
            if kind == "works":
                self.then[number] = self.world.now + self.chance.uniform(0.1, 40), "answer"
                return
            self.world.answer(sock)
        ends = self.chance.random() < 0.02
        if kind == "falls silent" and self.chance.random() < 0.1:
            self.then[number] = float("inf"), "ask"
        elif kind == "pushes" and self.chance.random() < 0.5:
            self.then[number] = self.world.now + 1.0, "push"
        else:
            least, most = self.chance.choice(((0.1, 1.0), (0.1, 5.4), (5.0, 5.4)))
            pause = self.chance.uniform(least, most)
            self.then[number] = self.world.now + pause, "end" if ends else "ask"

    def run(self, seconds: float, of: int = 24) -> None:
        """Let *of* clients live for so long. Looks and dumps come when they are due."""
        world, end = self.world, self.world.now + seconds
        socks = [world.connect() for _ in range(of)]
        self.then = {i: (world.now + self.chance.uniform(0, 3), "ask") for i in range(of)}
        dump = world.now + 1.0
        first = True
        with self.journal:
            while world.now < end:
                for number, sock in enumerate(socks):
                    self.lives(number, sock)
                while self.watch.advance(world.now, 32) == 32:
                    pass
                if world.now >= dump:
                    survey = world.survey([world.listener], self.watch.sighted)
                    for _ in self.watch.discover(survey, lambda found: True):
                        pass
                    dump = world.now + PERIOD
                    if first:
                        self.book.began(world.now)
                    first = False
                world.wait(0.05)
        self.closed = len(world.shut)

    def checked(self) -> Inputs:
        return check([self.place], now_ns=WALL + 3600 * S)


@pytest.fixture(scope="module")
def session() -> Any:
    use("embedded")
    with embedded.open_session() as session:
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_an_honest_watch_passes_the_audit(
    session: Any, tmp_path: Path, seed: int, jitter: float
) -> None:
    trial = Trial(tmp_path / "journal", seed, jitter, closes=True)
    trial.run(400.0)
    found = audit(session, trial.checked(), None, tmp_path / "out", Settings())
    assert (found.summary["result"], found.summary["reasons"]) == ("pass", [])
    assert found.summary["verdicts"]["ok_reaped"] == trial.closed > 3
    judged = found.connections.select("judged_ns", "lifetime_ns").collect()
    assert sum(row.judged_ns for row in judged) > 0.3 * sum(row.lifetime_ns for row in judged)


@pytest.mark.slow
def test_a_watch_whose_looks_come_too_late_fails_it(session: Any, tmp_path: Path) -> None:
    trial = Trial(tmp_path / "journal", 1, 0.0, closes=True)
    due = trial.watch.advance
    trial.watch.advance = lambda now, limit=256: due(now - 4.0, limit)  # type: ignore[method-assign]
    trial.run(400.0)
    found = audit(session, trial.checked(), None, tmp_path / "out", Settings())
    assert found.summary["result"] == "fail"
    assert found.summary["verdicts"]["late"] > 3


@pytest.mark.slow
def test_an_activity_that_was_seen_is_counted_and_no_other(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "journal", 2, 0.0, closes=False)
    world = trial.world
    socks = [world.connect() for _ in range(2)]
    counts = []
    with trial.journal:
        for _ in range(10):
            world.send(socks[0])  # the other says nothing
            world.answer(socks[0])
            survey = world.survey([world.listener], trial.watch.sighted)
            for _ in trial.watch.discover(survey, lambda found: True):
                pass
            world.wait(1.0)
            logs = [trial.book._logs[sock.ident] for sock in socks]
            counts.append(tuple(log.n for log in logs))
    assert counts[-1] == (9, 0)
    assert [after[0] - before[0] for before, after in pairwise(counts)] == [1] * 9
