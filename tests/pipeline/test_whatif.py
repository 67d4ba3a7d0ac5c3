"""What if: the replay of a journal against the real reaper, run on the same traffic
under those other settings.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reaper import IdleReaper
from reaper.pipeline.arguments import Fault
from reaper.pipeline.read.inputs import Inputs, check
from reaper.pipeline.read.runs import Timeline
from reaper.pipeline.whatif import replay as whatif_replay
from reaper.pipeline.whatif.run import as_text, what_if
from reaper.pipeline.whatif.settings import InForce, Setting, parse, refusal
from tests.conftest import Ran
from tests.helpers.pipeline_traffic import WALL, Clock, journal

UNIT = 1_953_125
"""ns in 1/512 s: instants that both the core's floats and the journal's integers hold
exactly.
"""
NEVER = 1 << 60


def seconds(units: int) -> float:
    return units / 512


# ---- traffic that does not depend on who is reaped, run through the real core


Client = tuple[list[int], int | None]
"""It connects at the first instant, sends at the others, closes at the last. Cut before
a send, it connects again.
"""


@dataclass
class Life:
    """One connection. Units."""

    client: int
    opened: int
    activity: list[int] = field(default_factory=list)
    ended: int | None = None
    how: str = "open"


@dataclass
class Truth:
    """What the real core did."""

    lives: list[Life] = field(default_factory=list)
    back: set[tuple[int, int]] = field(default_factory=set)
    """(client, instant) of those that were cut and came back; once, at `NEVER`, of one
    that would have.
    """
    end: int = 0

    @property
    def reaps(self) -> int:
        return sum(life.how == "reap" for life in self.lives)

    def held(self, until: int) -> int:
        """Descriptor time up to *until*."""
        return sum(max(0, min(life.ended or until, until) - life.opened) for life in self.lives)


def run(
    clients: list[Client],
    timeout: int,
    tick: int,
    *,
    until: int = NEVER,
    sentinel: bool = True,
    returns: bool = True,
) -> Truth:
    """Drive the real core as an adapter does that never stalls. All in units.

    Without *returns* a client that was cut does not connect again. With the *sentinel*,
    a lease that never ends, something is always armed, so that the epochs go on.
    """
    core = IdleReaper(seconds(tick), epochs_per_tick=2)
    truth = Truth()
    events = sorted(
        [(t, 0, i) for i, (sends, _) in enumerate(clients) for t in sends]
        + [(closes, 1, i) for i, (_, closes) in enumerate(clients) if closes is not None]
    )
    if sentinel:
        core.register("sentinel", 1e6, seconds(events[0][0]), reason="sentinel")
    alive: dict[int, Life] = {}

    def end(client: int, t: int, how: str) -> None:
        life = alive.pop(client)
        life.ended, life.how = t, how

    while events or alive:
        due = core.next_wakeup()
        w = NEVER if due is None else round(due * 512)
        t, closes, client = events[0] if events else (NEVER, 0, 0)
        if min(t, w) > until:
            break
        truth.end = min(t, w)
        if t > w:
            for expiry in core.advance(seconds(w)):
                end(expiry.uid, w, "reap")
            continue
        del events[0]
        if client in alive and closes:
            core.discard(client)
            end(client, t, "close")
        elif client in alive:
            core.touch(client)
            alive[client].activity.append(t)
        elif not closes:
            if t > clients[client][0][0]:
                truth.back.add((client, t if returns else NEVER))
                if not returns:
                    continue
            core.register(client, seconds(timeout), seconds(t))
            alive[client] = Life(client, t)
            truth.lives.append(alive[client])
    return truth


def traffic(seed: int, clients: int, *, longest: int, spread: int = 20 * 512) -> list[Client]:
    """Clients that come within *spread*, send one to eight times after silences of up
    to *longest*, and half close.
    """
    chance = random.Random(seed)
    found: list[Client] = []
    for serial in range(clients):
        t = 512 + (0 if serial == 0 else chance.randrange(spread))
        sends = [t]
        for _ in range(chance.randrange(8)):
            t += chance.choice((chance.randrange(1, longest), chance.randrange(1, 512)))
            sends.append(t)
        found.append((sends, t + chance.randrange(1, longest) if chance.random() < 0.5 else None))
    return found


LONG = 40 * 512
"""A timeout that the traffic below never reaches before its last word."""


# ---- what is asked, and what is refused: no Spark


def test_a_setting_is_written_as_key_and_value() -> None:
    words = ["timeout=5s", "timeout.echo=20s", "timeout.http@75s=60s", "tick=100ms"]
    setting = parse(words, ["echo", "http"])
    assert (setting.name, setting.tick_ns) == (" ".join(words), 100_000_000)
    asked = {("echo", 30_000): 20, ("http", 75_000): 60, ("http", 10_000): 5, ("other", 1): 5}
    assert {key: setting.timeout_ns(*key) for key in asked} == {
        key: value * 10**9 for key, value in asked.items()
    }
    assert Setting("base").timeout_ns("echo", 30_000) == 30 * 10**9


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("tick", "KEY=VALUE"),
        ("timeout.ecko=5s", "no listener 'ecko' in the log; it has: echo"),
        ("timeout=5", "'5' is not a duration"),
        ("timeout=0s", "not longer than 0s"),
        ("tack=1s", "unknown key 'tack'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name_and_value(word: str, says: str) -> None:
    with pytest.raises(Fault, match=says):
        parse([word], ["echo"])


def test_a_timeout_below_what_the_journal_wrote_is_refused_and_one_at_it_is_not() -> None:
    in_force = [InForce(0, "echo", 7, 30_000)]
    for timeout, refused in ((999_000_000, True), (1_000_000_000, False)):
        reason = refusal(Setting("", {("", 0): timeout}), in_force, {0: 1_000_000_000})
        assert (reason is not None) == refused
    assert refusal(Setting("", {("", 0): 1}), in_force, {0: 0}) is None
    assert refusal(Setting(""), [InForce(0, "echo", 7, 500)], {0: 1_000_000_000}) is None


def group(**changes: Any) -> SimpleNamespace:
    known = {
        "run": 0,
        "listener_hash": 1,
        "timeout_ms": 5000,
        "silences": 9,
        "opened": 70,
        "first": 60,
        "reaps": 50,
    }
    return SimpleNamespace(**{**known, "slack": [490, 500, 510], **changes})


@pytest.mark.parametrize(
    ("changes", "blur", "epochs"),
    [
        ({}, 500, 2),
        ({"slack": [50, 250, 450]}, 0, 2),
        ({"slack": [100, 500, 900]}, 0, 1),
        ({"reaps": 19, "slack": [900, 900, 900]}, 0, 2),
        ({"slack": None, "reaps": 0}, 0, 2),
    ],
    ids=["all equally far", "spread over an epoch", "over a tick", "too few to tell", "none"],
)
def test_self_logging_leases_are_recognised_by_the_distance_of_their_reaps(
    changes: Any, blur: int, epochs: int
) -> None:
    rows = [group(**changes), group(timeout_ms=None, reaps=0, slack=None, opened=None, first=10)]
    facts = whatif_replay.facts_of_runs(rows, {0: 1000})
    assert facts == {0: {"origin_ns": 70, "epochs": epochs, "blur_ns": blur}}


# ---- through the journal and Spark


def record(
    directory: Path,
    log: Truth,
    timeout_ms: int,
    *,
    mode: str = "full",
    listener: str = "echo",
    writer: int = 7,
) -> Inputs:
    """Write what *log* shows as a server would; the connections get the numbers first +
    1, ... in order of `lives`.
    """
    with journal(directory, writer, Clock(), mode=mode, tick=1.0) as out:
        for life in log.lives:
            connection = out.open(life.opened * UNIT, timeout_ms, listener)
            for t in life.activity:
                connection.touch(t * UNIT)
            if life.how == "reap" and life.ended is not None:
                connection.reap(life.ended * UNIT, life.ended * UNIT, "idle")
            elif life.ended is not None:
                connection.close_peer(life.ended * UNIT)
        out.drain(log.end * UNIT)
    return check([directory], now_ns=WALL)


def most_at_once(truths: list[Truth]) -> int:
    """Connections open at once, in several processes. One that ends at an instant is
    open then.
    """
    lives = [life for truth in truths for life in truth.lives]
    return max(
        sum(life.opened <= at.opened <= (life.ended or NEVER) for life in lives) for at in lives
    )


def test_the_replay_of_journals_is_what_the_real_reaper_would_have_done(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [traffic(11, 120, longest=12 * 512), traffic(12, 50, longest=12 * 512)]
    logs = [run(script, LONG, 512) for script in scripts]
    record(tmp_path, logs[0], LONG * UNIT // 10**6)
    inputs = record(tmp_path, logs[1], LONG * UNIT // 10**6, writer=8, listener="http")
    # Both were written with made-up clocks that are one already; what this machine's
    # clock says of them is noise.
    monkeypatch.setattr(Timeline, "offset_ns", lambda *_: 0)
    asked = [["timeout=3s"], ["timeout=8s", "tick=500ms"], ["timeout.echo=3s"]]
    settings: list[list[tuple[int, int] | None]] = [
        [(3, 512), (3, 512)],
        [(8, 256), (8, 256)],
        [(3, 512), None],
    ]  # timeout and tick, of each script

    def lived(row: int, returns: bool) -> list[Truth]:
        return [
            run(script, of[0] * 512, of[1], until=log.end, returns=returns) if of else log
            for script, log, of in zip(scripts, logs, settings[row], strict=True)
        ]

    summary = what_if(spark, inputs, asked)
    assert summary["rows_read"] == summary["rows_judged"] + summary["rows_of_writers"]
    current, *rows = summary["rows"]
    assert current["come_back"]["reaps"] == sum(log.reaps for log in logs)
    assert summary["calibration"]["peak_open"] == dict.fromkeys(
        ("logged", "replayed"), most_at_once(logs)
    )
    for number, row in enumerate(rows):
        back, never = row["come_back"], row["never_come_back"]
        for world, truths in ((back, lived(number, True)), (never, lived(number, False))):
            assert world["reaps"] == sum(truth.reaps for truth in truths)
            assert world["false_cuts"] == sum(len(truth.back) for truth in truths) > 0
            assert world["peak_open"] == most_at_once(truths)
            held = sum(truth.held(log.end) for truth, log in zip(truths, logs, strict=True))
            assert world["descriptor_hours"] == pytest.approx(held * UNIT / 3600e9)
        assert never["reaps"] < back["reaps"]
        for key in ("reaps", "false_cuts", "peak_open", "descriptor_hours"):
            figure = row[key]
            assert figure["kind"] == ("exact" if figure["low"] == figure["high"] else "bounded")
            assert figure["low"] <= never[key] <= back[key] <= figure["high"]


def test_what_the_log_cannot_know_is_bounded_and_the_truth_lies_within(
    pipeline: Ran, tmp_path: Path
) -> None:
    script = traffic(12, 150, longest=20 * 512)
    log = run(script, 5 * 512, 512, sentinel=False)
    record(tmp_path / "server", log, 5000, mode="gaps")
    arguments = [
        "what-if",
        "--events",
        tmp_path / "server",
        "--out",
        tmp_path / "out",
        "--timeouts",
    ]
    status, said, _ = pipeline(*arguments, "999ms,3300ms,12s", "--json")
    assert (status, said) == (0, (tmp_path / "out" / "what-if.json").read_text())
    summary = json.loads(said)
    as_it_was, refused, off_grid, longer = summary["rows"]
    assert refused["refused"].startswith("echo: timeout 999 ms is below 1 s")

    def holds(row: Any, **real: float) -> None:
        for key, value in real.items():
            assert row[key]["low"] <= value <= row[key]["high"], key

    # Epochs of the real core lie elsewhere: it starts anew whenever nothing is armed,
    # and timeouts are no whole ticks.
    truth = run(script, round(3.3 * 512), 512, sentinel=False, until=log.end)
    # Of the cuts, those after which the client came back before the log's reaper would
    # have cut it too are known.
    known = {(life.client, until) for life in log.lives for until in life.activity}
    holds(off_grid, reaps=truth.reaps, false_cuts=len(truth.back & known))
    truth = run(script, 12 * 512, 512, sentinel=False, until=log.end)
    held = truth.held(log.end) * UNIT / 3600e9
    holds(longer, reaps=truth.reaps, peak_open=most_at_once([truth]), descriptor_hours=held)
    # As it was, the clients of all cuts may have come back: which did, the log cannot
    # tell.
    holds(as_it_was, false_cuts=len({client for client, _ in log.back}))
    assert as_it_was["false_cuts"]["high"] >= log.reaps
    assert {
        row[key]["kind"]
        for row, key in ((longer, "reaps"), (longer, "peak_open"), (as_it_was, "false_cuts"))
    } == {"bounded"}
    text = as_text(summary)
    assert "REFUSED" in text
    assert (off_grid["cannot_know"], summary["result"]) == (None, "pass")
    assert longer["cannot_know"].startswith("the log cannot know: its own reaper cut ")
    assert f"{longer['name']}: {longer['cannot_know']}" in text
    shown = {
        line.split()[0]: line.split()[1:]
        for line in text.splitlines()
        if line.startswith("timeout=")
    }
    never, back = off_grid["never_come_back"]["reaps"], off_grid["come_back"]["reaps"]
    assert shown["timeout=3300ms"][1:3] == [f"{never:,}", f"{back:,}"]
    assert shown["timeout=12s"][1:3] == ["?", "?"]
    status, _, said = pipeline(*arguments, "10ms")
    assert (status, "the log cannot tell: echo: timeout 10 ms is below 1 s" in said) == (2, True)
