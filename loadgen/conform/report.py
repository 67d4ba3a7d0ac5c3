"""What was found, for people, for machines and for CI.

One rule: *the number of what was not judged stands beside the verdict*.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from ..plan.acts import Kind
from ..units import seconds
from .grounds import GROUPS, ground
from .subject import Subject
from .verdicts import NOT_JUDGED, RIGHT, WRONG, Verdict

SCHEMA = "reaper-loadgen-conform/1"
WORDS = (RIGHT, WRONG, NOT_JUDGED)
_SHARE = re.compile(r"(?<![\w.])(\d+\.\d+|\d+) s\b")


def said(kind: Kind) -> str:
    """The kind in words: what its clients rest is a share of a limit, `0.7T`."""
    return _SHARE.sub(r"\1T", kind.name)


def counted(verdicts: Iterable[Verdict]) -> Counter[str]:
    """How many verdicts say what."""
    return Counter(each.word for each in verdicts)


def as_json(verdicts: Sequence[Verdict], subject: Subject, target: str) -> dict[str, Any]:
    """The report for a machine."""
    count = counted(verdicts)
    return {
        "schema": SCHEMA,
        "target": target,
        "limits_s": {
            name: {"seconds": limit.seconds, "given": limit.given}
            for name, limit in subject.limits.items()
        },
        "speaks": sorted(subject.speaks),
        "routes": sorted(subject.routes),
        "lag_s": round(max((each.lag_s for each in verdicts), default=0.0), 3),
        **{word.replace(" ", "_"): count[word] for word in WORDS},
        "verdict": "fail" if count[WRONG] else "pass" if count[RIGHT] else "inconclusive",
        "kinds": [each.row() for each in verdicts],
    }


def as_text(verdicts: Sequence[Verdict], subject: Subject, *, every: bool = False) -> list[str]:
    """The lines for a terminal. *every*: what is right is named, too."""
    lines = [f"limits      {_limits(subject)}"]
    missing = Counter(each.why for each in verdicts if each.word == NOT_JUDGED)
    for group in GROUPS:
        mine = [each for each in verdicts if each.ground.group == group]
        count = counted(mine)
        if not mine or (count[NOT_JUDGED] == len(mine) and not every):
            continue
        words = ", ".join(f"{count[word]} {word}" for word in WORDS if count[word])
        lines.append(f"{group:<14}{words}")
        for each in mine:
            if each.word == WRONG or every:
                lines += _told(each)
    if missing:
        lines.append("not judged")
        lines += [f"  {count:>3}  {why}" for why, count in missing.most_common()]
    lag = max((each.lag_s for each in verdicts), default=0.0)
    count = counted(verdicts)
    total = ", ".join(f"{count[word]} {word}" for word in WORDS)
    lines.append(f"{_answer(count)}: {total}; the machine was up to {seconds(lag)} late")
    return lines


def _answer(count: Counter[str]) -> str:
    return "WRONG" if count[WRONG] else "RIGHT" if count[RIGHT] else "NOT JUDGED"


def _limits(subject: Subject) -> str:
    known = [
        f"{name} {seconds(limit.seconds)}{'' if limit.given else ' (learnt)'}"
        for name, limit in subject.limits.items()
    ]
    return ", ".join(known) or "none is known"


def _told(verdict: Verdict) -> list[str]:
    about = verdict.ground
    why = ", ".join(part for part in (about.level, about.source, about.why) if part)
    lines = [f"  {verdict.word:<11}{said(verdict.kind)}"]
    if verdict.why:
        lines += [f"             {verdict.why}", f"             {why}"]
    if verdict.word == WRONG and verdict.saw:
        lines.append(f"             saw {verdict.saw}")
    return lines


def listed(kinds: Iterable[Kind]) -> list[str]:
    """A line for each kind, under its group."""
    lines: list[str] = []
    by_group: dict[str, list[Kind]] = {group: [] for group in GROUPS}
    for kind in kinds:
        by_group[ground(kind).group].append(kind)
    for group, mine in by_group.items():
        if mine:
            lines += ["", group]
        for kind in mine:
            about = ground(kind)
            ends = f"ended by `{kind.limit}`" if kind.limit else "is served"
            source = f" {about.source}" if about.source else ""
            lines.append(f"  {said(kind)}: {ends} ({about.level}{source}: {about.why})")
    return lines[1:]


def junit(verdicts: Sequence[Verdict], target: str) -> str:
    """JUnit XML, a test case for each kind; what is not judged is skipped."""
    count = counted(verdicts)
    head = (
        f"<testsuite name='reaper-loadgen conform' tests='{len(verdicts)}'"
        f" failures='{count[WRONG]}' skipped='{count[NOT_JUDGED]}'>"
    )
    cases = []
    for each in verdicts:
        about = each.ground
        inside = ""
        if each.word == WRONG:
            text = f"{each.why} ({about.level} {about.source or about.why}); saw {each.saw}"
            inside = f"<failure message={_attribute(text)}/>"
        elif each.word == NOT_JUDGED:
            inside = f"<skipped message={_attribute(each.why)}/>"
        name = f"{about.group}: {said(each.kind)}"
        cases.append(
            f"  <testcase classname={_attribute(target)} name={_attribute(name)}"
            f" time='{each.after_s or 0:.3f}'>{inside}</testcase>"
        )
    return "\n".join(["<?xml version='1.0' encoding='utf-8'?>", head, *cases, "</testsuite>", ""])


def _attribute(text: str) -> str:
    """*text* as XML may have it: no control characters."""
    return quoteattr("".join(sign if sign.isprintable() else "?" for sign in text))


def write_junit(verdicts: Sequence[Verdict], target: str, path: Path) -> None:
    """Write `junit` to *path*."""
    path.write_text(junit(verdicts, target), encoding="utf-8")


def compared(one: Sequence[Verdict], other: Sequence[Verdict]) -> list[str]:
    """A line for each kind on which the verdicts differ, with what each server did."""
    lines = []
    for mine, its in _pairs(one, other):
        if mine.word != its.word:
            lines.append(f"  {said(mine.kind)}")
            lines += [
                f"    {name:<6}{each.word}{f': {each.why}' if each.why else ''}"
                for name, each in (("one", mine), ("other", its))
            ]
    return lines


def worse(one: Sequence[Verdict], other: Sequence[Verdict]) -> bool:
    """Whether the other is wrong somewhere where the one is right."""
    return any(mine.word == RIGHT and its.word == WRONG for mine, its in _pairs(one, other))


def _pairs(one: Iterable[Verdict], other: Iterable[Verdict]) -> Iterator[tuple[Verdict, Verdict]]:
    of_other = {each.kind.name: each for each in other}
    for mine in one:
        if mine.kind.name in of_other:
            yield mine, of_other[mine.kind.name]
