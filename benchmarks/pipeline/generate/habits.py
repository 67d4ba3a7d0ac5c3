"""What generated connections do: a table of habits, and silences drawn from it for millions of connections at once.

No silence drawn here reaches its timeout: a connection that outlasts it is reaped, and that is the end row's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.uint8]

S = 1_000_000_000
MS = 1_000_000

LISTENERS = (("echo", 30_000), ("http", 75_000), ("websocket", 300_000), ("tunnel", 3_600_000))
"""Name and idle timeout in ms; the usual ones: an echo server's, nginx's keep-alive, a websocket's, a tunnel's."""

FOREVER = 1 << 40
"""As a number of activities: lives until its server ends it."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How one kind of client behaves."""

    listener: int
    share: float
    """Of ordinary arrivals; 0: comes by other ways."""
    least: int
    """Activities at least ..."""
    more: float
    """... and so many more on average, geometrically distributed."""
    median_s: float
    """Of its silences, which are lognormal ..."""
    sigma: float
    tail: float = 0.0
    """... but this share of them is stretched by a Pareto factor (exponent 1.1)."""
    reap: float = 0.5
    """Share that goes silent at last and is reaped; the rest closes ..."""
    app: float = 0.0
    """... this share of all by the program, otherwise by the peer."""
    before: bool = False
    """The silences are measured back from the timeout: a byte just before it would strike."""
    deadline_s: float = 0.0
    """Reaped by a deadline that activity does not move; 0: by its silence."""


HABITS = (
    Habit(0, 0.17, 0, 14.0, 0.8, 1.3, tail=0.02, reap=0.55),  # echo: chatty
    Habit(0, 0.08, 0, 1.0, 0.2, 1.0, reap=0.95),  # echo: silent
    Habit(0, 0.01, 2, 8.0, 0.06, 1.0, reap=0.7, before=True),  # echo: a slow drip
    Habit(1, 0.42, 1, 1.5, 0.03, 1.2, reap=0.0, app=0.25),  # http: one page and gone
    Habit(1, 0.24, 1, 9.0, 2.5, 1.7, tail=0.05, reap=0.6, app=0.05),  # http: keep-alive
    Habit(1, 0.01, 2, 3.0, 0.9, 0.3, reap=1.0, deadline_s=10.0),  # http: headers byte by byte
    Habit(2, 0.06, 2, 40.0, 6.0, 1.6, tail=0.05, reap=0.5),  # websocket: chat
    Habit(2, 0.01, 20, 130.0, 25.0, 0.05, reap=0.3),  # websocket: heartbeats
    Habit(3, 0.0, FOREVER, 0.0, 900.0, 0.6),  # tunnel: as long as its server lives
    Habit(2, 0.0, 3, 10.0, 45.0, 0.8, reap=0.6),  # websocket: one of a crowd that a campaign brings
    Habit(2, 0.0, 2, 0.0, 0.8, 0.6, reap=0.9),  # websocket: the crowd again after a storm, silent soon
)
CHATTY, DEADLINE, TUNNEL, CROWD, HERD = 0, 5, 8, 9, 10
OWN = len(HABITS)
"""In the place of a habit: a row of the writer itself."""


def _column(values: list[float]) -> NDArray[np.float64]:
    return np.array(values, np.float64)


LISTENER_OF = np.array([habit.listener for habit in HABITS] + [0], np.int16)
TIMEOUT_MS = np.array([LISTENERS[habit.listener][1] for habit in HABITS] + [0], np.int32)
TIMEOUT_NS = TIMEOUT_MS.astype(np.int64) * MS
_SHARES = _column([habit.share for habit in HABITS])
_EDGES = np.cumsum(_SHARES)
_LEAST = np.array([habit.least for habit in HABITS], np.int64)
_MORE = _column([habit.more for habit in HABITS])
_MU = np.log(_column([habit.median_s * S for habit in HABITS]))
_SIGMA = _column([habit.sigma for habit in HABITS])
_TAIL = _column([habit.tail for habit in HABITS])
_BEFORE = np.array([habit.before for habit in HABITS])
REAP_SHARE = _column([habit.reap for habit in HABITS])
APP_SHARE = _column([habit.app for habit in HABITS])

ROWS_PER_CONNECTION = 2 + float(_SHARES @ (_LEAST + _MORE)) / float(_SHARES.sum())
"""Of ordinary arrivals, when every activity is written."""

LONGEST = 0.999
"""Silences end within this share of the timeout; except for drips, which come closer."""


def choose(rng: np.random.Generator, count: int) -> Codes:
    """The habits of *count* ordinary arrivals."""
    chosen: Codes = np.searchsorted(_EDGES, rng.random(count) * _EDGES[-1], side="right").astype(np.uint8)
    return chosen


def activities(rng: np.random.Generator, habits: Codes) -> Ints:
    """How often each will be active in its life."""
    more = rng.standard_exponential(len(habits)) * _MORE[habits]
    return _LEAST[habits] + more.astype(np.int64)


def silences(rng: np.random.Generator, habits: Codes) -> Ints:
    """One silence for each, ns: at least 20 us, shorter than the timeout in force."""
    gaps = rng.standard_normal(len(habits))
    gaps *= _SIGMA[habits]
    gaps += _MU[habits]
    np.exp(gaps, out=gaps)
    luck = rng.random(len(habits), np.float32)
    tail = np.flatnonzero(luck < _TAIL[habits])
    gaps[tail] *= (1.0 - rng.random(len(tail))) ** (-1 / 1.1)
    limit = (TIMEOUT_NS * LONGEST)[habits]
    over = np.flatnonzero(gaps > limit)
    gaps[over] = limit[over] * rng.random(len(over)) ** 0.3
    drips = np.flatnonzero(_BEFORE[habits])
    timeouts = TIMEOUT_NS[habits[drips]]
    gaps[drips] = timeouts - np.clip(gaps[drips], MS, timeouts // 2)
    return np.maximum(gaps, 20_000).astype(np.int64)
