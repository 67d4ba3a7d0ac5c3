"""Whether a server is right with a kind of clients, by what the client saw.

One rule: *right, wrong, or not judged*: a client that was late itself, a limit that
nobody knows, a route that is missing judge nothing, and are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..plan.acts import Busy, Drip, Kind, Rest, Shake, Take, Until
from ..playing.client import Seen, says_the_last
from ..units import seconds
from .grounds import Ground, ground
from .judge import End, judged, meets
from .subject import STOP, Limit, Subject

RIGHT, WRONG, NOT_JUDGED = "right", "wrong", "not judged"
MACHINE = 0.1
"""Seconds by which the machine may be late before a client that rests until the last
150 ms of a limit proves no loss.
"""
ANSWER = 2.5
"""Seconds for an answer, besides those that its route takes."""
EARLY = 0.02
"""Seconds by which a close may be early: the kernel's clocks are two."""


@dataclass(frozen=True)
class Verdict:
    """What is to be said of a server and a kind of clients.

    Attributes:
        word: `right`, `wrong` or `not judged`.
        why: What is wrong, or why it is not judged.
        saw: What the client sent, what came back, and when.
        limit_s: The limit that it was measured by, in seconds; None: none.
        after_s: Seconds from the beginning of that limit to the end; None: there was
            none, or no limit ends the kind.
        lag_s: By how much the machine itself was late meanwhile.
        tries: How often it was tried.
    """

    kind: Kind
    word: str
    why: str = ""
    saw: str = ""
    limit_s: float | None = None
    after_s: float | None = None
    lag_s: float = 0.0
    tries: int = 1

    @property
    def ground(self) -> Ground:
        """Why a server is to do so."""
        return ground(self.kind)

    def row(self) -> dict[str, Any]:
        """The verdict for a machine."""
        about = self.ground
        return {
            "kind": self.kind.name,
            "group": about.group,
            "verdict": self.word,
            "level": about.level,
            "source": about.source or None,
            "ground": about.why,
            "why": self.why or None,
            "saw": self.saw or None,
            "limit_s": self.limit_s,
            "after_s": self.after_s,
            "lag_s": round(self.lag_s, 3),
            "tries": self.tries,
        }


def judge(kind: Kind, seen: Seen, subject: Subject, lag: float, stop: float = 0.0) -> Verdict:
    """The verdict on a client of *kind*, which is cut to *subject*.

    Args:
        lag: Seconds by which the machine was late.
        stop: When the server was told to stop, by the loop's clock.
    """
    end = judged(kind, seen, stop)
    limit = Limit(subject.drain) if kind.world == "stop" else subject.limits.get(kind.limit)
    why = _lost(kind, end, seen) if kind.lives else _held(kind, end, seen, limit, subject.tick, lag)
    word = WRONG if why else RIGHT
    if why and kind.lives and (late := too_late(kind, subject, lag)):
        word, why = NOT_JUDGED, late
    if end.doubt and (word == WRONG or not kind.lives):
        word, why = NOT_JUDGED, f"the client was {end.doubt}"
    return Verdict(
        kind,
        word,
        why,
        end.about,
        None if limit is None or kind.lives else limit.seconds,
        None if end.after is None else round(end.after, 3),
        lag,
    )


def too_late(kind: Kind, subject: Subject, lag: float) -> str:
    """Why what a live client of *kind* lost proves nothing: the machine was *lag*
    seconds late, and it can have lost by that. "": it proves a loss.
    """
    if lag <= _margin(kind, subject.measures(kind)):
        return ""
    return f"the machine was {seconds(lag)} late itself"


def _margin(kind: Kind, measures: Sequence[float]) -> float:
    """Seconds by which the machine may be late before it can be what a live client lost
    by. *measures*: for each act, the limit that its rest is measured by.
    """
    margin = math.inf
    for act, one in zip(kind.acts, measures, strict=True):
        rests = 0.0
        if isinstance(act, Rest | Busy):
            rests = act.seconds
        elif isinstance(act, Shake):
            rests = act.apart or 0.0
        if 0.75 * one < rests < one:
            return MACHINE
        if rests or isinstance(act, Drip | Take):
            margin = min(margin, max(MACHINE, 0.25 * one))
    return margin


def _lost(kind: Kind, end: End, seen: Seen) -> str:
    if seen.broke:
        return seen.broke
    if end.kept or _announced(kind, seen):
        return ""
    return "the client lost what it asked for"


def _announced(kind: Kind, seen: Seen) -> bool:
    """Whether the server has said, in an answer to one of several requests, that it is
    the last: the others may be asked elsewhere (RFC 9112 9.6).
    """
    came, wanted = seen.answers, kind.answers
    return (
        says_the_last(seen.data) and 0 < len(came) < len(wanted) and all(map(meets, wanted, came))
    )


def amiss(
    kind: Kind, end: End, limit: Limit, tick: float, lag: float, clocks: float = EARLY
) -> str:
    """What is wrong with the *end* of a client of *kind*, which *limit* ends: it was
    held, or ended late, or early, by more than two *clocks* may differ; "": nothing.
    """
    name = "the stop" if kind.limit == STOP or kind.world == "stop" else f"`{kind.limit}`"
    if end.after is None:  # or it was closed; when, the client's window hides
        return "" if end.behind else f"held beyond {name}, {seconds(limit.seconds)}"
    if end.after > limit.seconds + limit.spread + tick + lag:
        return f"ended {seconds(end.after)} after it, where {name} is {seconds(limit.seconds)}"
    if kind.world != "stop" and not kind.done:
        first = limit.seconds if limit.given else 0.9 * limit.seconds
        if end.early is not None and end.early + lag < first - clocks:
            return f"ended {seconds(end.early)} after it, before {name}, {seconds(limit.seconds)}"
    return ""


def _held(kind: Kind, end: End, seen: Seen, limit: Limit | None, tick: float, lag: float) -> str:
    assert limit is not None  # or it would not have been tried
    why = amiss(kind, end, limit, tick, lag)
    answers = kind.limit == "keep_alive" and len(seen.answers) > _asked(kind)
    if answers and not why and end.after is not None:
        return f"answers {seen.answers[-1][0]} to a request that nobody made"
    return why


def _asked(kind: Kind) -> int:
    """How many requests a dead client has made, and waited for."""
    return max((act.count for act in kind.acts if isinstance(act, Until)), default=0) or 1


def too_far(kind: Kind, subject: Subject) -> float:
    """Seconds after its acts at which a client that is not ended is held, and one that
    lacks something has lost it.
    """
    if kind.lives:  # the slowest route takes 1.6 of what it is measured by
        return ANSWER + 2.0 * subject.measure(kind)
    if kind.world == "stop":
        return subject.drain + subject.tick + 1.0
    limit = subject.limits[kind.limit]
    answers = any(isinstance(act, Until) for act in kind.acts)
    owed = ANSWER + 2.0 * subject.longest if answers else 1.0  # its route may be slow
    return limit.seconds + limit.spread + subject.tick + owed
