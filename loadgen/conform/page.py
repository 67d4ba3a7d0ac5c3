"""Writes what was found as one HTML page that opens offline.

Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reaper.html.parts import card, document, footer, header, table, tiles

from ..units import seconds
from .grounds import GROUPS
from .report import counted, said
from .subject import Subject
from .verdicts import NOT_JUDGED, RIGHT, WRONG, Verdict

WRONGS = ("the client", "what was wrong", "ground", "what it saw")
JUDGED = ("the client", "verdict", "after", "ground")
LEFT = ("why", "kinds", "the clients")


def write_page(verdicts: Sequence[Verdict], subject: Subject, target: str, path: Path) -> None:
    """Write the page to *path*."""
    path.write_text(page(verdicts, subject, target), encoding="utf-8")


def page(verdicts: Sequence[Verdict], subject: Subject, target: str) -> str:
    """The whole page."""
    count = counted(verdicts)
    answer = "fail" if count[WRONG] else "pass" if count[RIGHT] else "inconclusive"
    limits = ", ".join(f"{name} {seconds(each.seconds)}" for name, each in subject.limits.items())
    headline = f"{count[WRONG]} of {len(verdicts)} kinds of clients are served wrong"
    body = [
        header(answer, "conformance of a server to time", headline, f"{target}; {limits}"),
        tiles(
            (word, f"{count[word]:,}", meaning, "bad" * (word == WRONG and bool(count[word])))
            for word, meaning in (
                (RIGHT, "served, or ended in time"),
                (WRONG, "lost something, or held"),
                (NOT_JUDGED, "nothing grants a verdict"),
            )
        ),
    ]
    wrong = [each for each in verdicts if each.word == WRONG]
    if wrong:
        rows = [(said(each.kind), each.why, _ground(each), each.saw) for each in wrong]
        body.append(card("what is wrong", "all of it, with its ground", table(WRONGS, rows, set())))
    for group in GROUPS:
        mine = [each for each in verdicts if each.ground.group == group]
        judged = [each for each in mine if each.word != NOT_JUDGED]
        if judged:
            body.append(card(group, _words(mine), table(JUDGED, map(_row, judged), {2})))
    left: dict[str, list[str]] = {}
    for each in verdicts:
        if each.word == NOT_JUDGED:
            left.setdefault(each.why, []).append(said(each.kind))
    if left:
        others = [(why, str(len(names)), "; ".join(names)) for why, names in left.items()]
        body.append(card("what is not judged", "and why", table(LEFT, others, {1})))
    lag = max((each.lag_s for each in verdicts), default=0.0)
    note = "T is the limit that a client is measured by. "
    body.append(footer([note + f"The machine was up to {seconds(lag)} late."]))
    return document(f"conform: {target}", body)


def _words(verdicts: Sequence[Verdict]) -> str:
    count = counted(verdicts)
    return ", ".join(f"{count[word]} {word}" for word in (RIGHT, WRONG, NOT_JUDGED) if count[word])


def _row(verdict: Verdict) -> tuple[str, ...]:
    after = "-" if verdict.after_s is None else seconds(verdict.after_s)
    return said(verdict.kind), verdict.word, after, _ground(verdict)


def _ground(verdict: Verdict) -> str:
    about = verdict.ground
    return f"{about.level}: {about.source or about.why}"
