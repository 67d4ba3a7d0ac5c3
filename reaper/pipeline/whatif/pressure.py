"""The replay in order, for what depends on everybody else at once: pressure. NumPy arrays, no Spark.

The rule of this module: *one event after the other, as the reaper would have met them*. At one instant bytes come
first, then ends, then what is due, then the look at how full the process is: once a tick, after reaping.

Modelled as the library's defaults have it (the tests compare with the real ones): watermarks, the share of its timeout
that silence is borne, who has been silent longest goes first. Not modelled: the door. While it would be shut the
openings of the log happen all the same; for how long it was is reported.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

LOW, HIGH, FLOOR, MARGIN = 0.8, 0.95, 0.1, 0.05
MIN_AGE_NS = 1_000_000_000
"""Silence before which nobody goes on account of pressure."""
LOOKS = 1024
"""Connections looked at, longest silent first, per reading."""

MOST = 10_000_000
"""Silences and connections that may be replayed in order: about 1.5 GB and three minutes."""

RETURNED, CLOSED, CUT = 0, 1, 2
"""How a silence ended: bytes came; the connection was closed; never, as far as anybody knows."""

CHUNK = 1 << 18
"""Events turned into Python integers at a time."""

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_UP, _START, _RETURN, _DOWN, _END, _DUE, _LOOK = range(7)
_FIRST = (0, 0, 0, 1, 1, 2, 3)
"""Which comes first at one instant."""


class Valve:
    """How full, and what follows. Remembers only what hysteresis needs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.borne = 1.0
        self.accepting = True

    def judge(self, connections: int) -> tuple[float, int]:
        """(share of its timeout that silence is borne, connections that are to go) when so many are open."""
        load = connections / self.limit
        borne = _borne(load)
        if borne > self.borne:
            borne = max(self.borne, _borne(load + MARGIN))
        self.borne = borne
        self.accepting = load < 1 and (self.accepting or load < 1 - MARGIN)
        return borne, max(1, round(connections * (1 - HIGH / load))) if load > HIGH else 0


def _borne(load: float) -> float:
    return 1 - (1 - FLOOR) * min(max((load - LOW) / (HIGH - LOW), 0.0), 1.0)


def closed_epochs(starts: Ints, origin: int, epoch_ns: int) -> Ints:
    """The end of the epoch that each instant belongs to; the first epoch begins with *origin*, ends are inclusive."""
    result: Ints = origin + np.maximum(-((origin - starts) // epoch_ns), 1) * epoch_ns
    return result


@dataclass(slots=True)
class Process:
    """One process of the log. Times in ns on its clock. The arrays `opened`, `ended` have an entry a connection, the
    others an entry a silence that lasted long enough to matter."""

    opened: Ints
    ended: Ints
    """Ends as logged, of those that have one."""
    starts: Ints
    ends: Ints
    """What `how` says, and when; of a silence that was `CUT` in the log: when the log's reaper ended it."""
    how: Ints
    timeouts: Ints
    origin: int
    """The first opening: where the grid of epochs begins."""
    log_end: int


@dataclass(slots=True)
class Outcome:
    """What the replay of one process came to."""

    gone_at: Ints
    """Of each silence: when it was cut; -1: it was not."""
    evicted: Bools
    """Of each silence: cut on account of pressure."""
    instants: Ints
    """When the number of open connections changed, ascending; one entry a change."""
    steps: Ints
    """By how much: +1 or -1."""
    openings: Bools
    """Which of them are connections opened; at one instant they come first."""
    unmet: int
    """Connections that had to go and were not found among those silent long enough."""
    shut_ns: int
    """How long the door would have been shut."""


def replay(process: Process, epoch_ns: int, tick_ns: int, limit: int | None) -> Outcome:
    """Replay one process; *limit* None: without pressure.

    Cost: O(events + ticks + evictions), about 1 us each.
    """
    p = process
    closed = closed_epochs(p.starts, p.origin, epoch_ns)
    due = closed + p.timeouts
    never = p.how == CUT
    silences = np.arange(len(p.starts))
    expiring = silences[(due < p.ends) | never]
    looks = np.empty(0, np.int64) if limit is None else np.arange(p.origin + tick_ns, p.log_end + 1, tick_ns)
    parts = [
        (_UP, p.opened, np.zeros(len(p.opened), np.int64)),
        (_DOWN, p.ended, np.zeros(len(p.ended), np.int64)),
        (_START, p.starts, silences),
        (_RETURN, p.ends[p.how == RETURNED], silences[p.how == RETURNED]),
        (_END, p.ends[p.how != RETURNED], silences[p.how != RETURNED]),
        (_DUE, due[expiring], expiring),
        (_LOOK, looks, np.zeros(len(looks), np.int64)),
    ]
    when = np.concatenate([part[1] for part in parts])
    what = np.concatenate([np.full(len(part[1]), part[0]) for part in parts])
    which = np.concatenate([part[2] for part in parts])
    order = np.lexsort((which, what, np.array(_FIRST)[what], when))
    within = order[when[order] <= p.log_end]
    state = _State(closed, p, None if limit is None else Valve(limit), tick_ns)
    for i in range(0, len(within), CHUNK):
        part = within[i : i + CHUNK]
        state.run(when[part].tolist(), what[part].tolist(), which[part].tolist())
    return Outcome(
        np.array(state.gone_at, np.int64),
        np.frombuffer(bytes(state.evicted), np.bool_),
        np.array(state.instants, np.int64),
        np.array(state.steps, np.int64),
        np.frombuffer(bytes(state.openings), np.bool_),
        state.unmet,
        state.shut_ns,
    )


class _State:
    def __init__(self, closed: Ints, process: Process, valve: Valve | None, tick_ns: int) -> None:
        count = len(closed)
        # Lists of a few million Python integers would be most of the memory.
        self.closed, self.timeouts = array("q", closed.tobytes()), array("q", process.timeouts.tobytes())
        self.never = (process.how == CUT).tobytes()
        self.gone_at = array("q", [-1]) * count
        self.evicted = bytearray(count)
        self.silent: dict[int, None] = {}  # who is silent now, longest first
        self.open = 0
        self.instants, self.steps, self.openings = array("q"), array("b"), bytearray()
        self.valve = valve
        self.tick_ns = tick_ns
        self.unmet = self.shut_ns = 0

    def run(self, when: list[int], what: list[int], which: list[int]) -> None:
        gone_at, silent, never = self.gone_at, self.silent, self.never
        for t, event, i in zip(when, what, which, strict=True):
            if event == _UP:
                self._step(t, 1, opening=True)
            elif event == _START:
                silent[i] = None
            elif event == _RETURN:
                silent.pop(i, None)
                if gone_at[i] >= 0:
                    self._step(t, 1, opening=True)  # it connects again
            elif event == _DOWN:
                self._step(t, -1)
            elif event == _END:
                if gone_at[i] >= 0 or never[i]:
                    self._step(t, 1)  # its end in the log, counted just before, was earlier here, or is later
                else:
                    silent.pop(i, None)
            elif event == _LOOK:
                self._look(t)
            elif i in silent:
                self._cut(i, t)

    def _step(self, t: int, by: int, *, opening: bool = False) -> None:
        self.open += by
        self.instants.append(t)
        self.steps.append(by)
        self.openings.append(opening)

    def _cut(self, i: int, t: int) -> None:
        self.gone_at[i] = t
        del self.silent[i]
        self._step(t, -1)

    def _look(self, t: int) -> None:
        if self.valve is None:
            return
        borne, evict = self.valve.judge(self.open)
        self.shut_ns += 0 if self.valve.accepting else self.tick_ns
        if borne >= 1 and not evict:
            return
        doomed: list[int] = []
        for looked, i in enumerate(self.silent):
            age = t - self.closed[i]
            if age < MIN_AGE_NS or looked == LOOKS:
                break
            if age >= self.timeouts[i] * borne or len(doomed) < evict:
                doomed.append(i)
        self.unmet += max(0, min(evict, LOOKS) - len(doomed))
        for i in doomed:
            self._cut(i, t)
            self.evicted[i] = 1


def most_open(parts: list[tuple[Ints, Ints, Bools]]) -> int:
    """The most connections open at once over all of *parts*: (instants on one timeline, steps, openings) of each
    process."""
    instants, steps, openings = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((~openings, instants))
    levels = np.cumsum(steps[order])[openings[order]]
    return int(levels.max()) if len(levels) else 0
