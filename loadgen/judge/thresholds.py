"""Conditions on the report that decide the exit status, such as `lateness.p99<1.1s`.

Others are `reaps.late==0` and, as k6 writes it, `latency.p(95)<200ms`.

One rule: a condition that cannot be evaluated is broken, never silently true; a name
that does not exist is refused before the run.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..units import BadArgument, parse_duration
from .histogram import PERCENTILES

_PERCENTILES = (*PERCENTILES, "avg", "max")
_K6 = {"med": "p50", **{f"p({percent:g})": name for name, percent in PERCENTILES.items()}}
"""The name of a figure here, by what k6 calls it."""
_SECONDS = {"lateness": ("lateness_s",), "latency": ("latency_s",), "lag": ("loadgen", "lag_s")}
_FIGURES = {
    "lateness": ("min", *_PERCENTILES),
    "latency": _PERCENTILES,
    "lag": _PERCENTILES,
    "reaps": (
        "expected",
        "observed",
        "early",
        "late",
        "missed",
        "false",
        "late_raw",
        "own_lag",
        "undecided",
    ),
    "connections": ("established", "failed", "refused", "peak_open"),
    "actions": (
        "done",
        "per_s",
        "blocked",
        "asked",
        "answered",
        "unanswered",
        "cut",
        "refused",
        "surplus",
    ),
}
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*([a-z]+)\.(\w+(?:\([\d.]+\))?)\s*(<=|>=|==|<|>)\s*([\w.]+)\s*")


@dataclass(frozen=True)
class Threshold:
    """One condition: the figure at *path* of the report, compared with *bound*."""

    text: str
    path: tuple[str, ...]
    comparison: str
    bound: float

    def broken(self, report: dict[str, Any]) -> str | None:
        """Why *report* breaks the condition; None when it holds."""
        value: Any = report
        for key in self.path:
            value = value[key]
        if value is not None and _OPERATORS[self.comparison](value, self.bound):
            return None
        shown = "unknown" if value is None else format(value, ".6g")
        return f"threshold {self.text} broken: it is {shown}"


def parse_threshold(text: str) -> Threshold:
    """Read one condition. Raises BadArgument: its form, name or value is not
    understood.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise BadArgument(
            f"{text!r} is no threshold: "
            "write NAME<VALUE, such as lateness.p99<1.1s or reaps.late==0"
        )
    group, figure, comparison, value = match.groups()
    figure = _K6.get(figure, figure)
    if figure not in _FIGURES.get(group, ()):
        known = ", ".join(
            f"{group}.{figure}" for group, figures in _FIGURES.items() for figure in figures
        )
        raise BadArgument(f"{text!r}: {group}.{figure} is not known: choose from {known}")
    if group in _SECONDS:
        return Threshold(
            text.strip(), (*_SECONDS[group], figure), comparison, parse_duration(value)
        )
    try:
        return Threshold(text.strip(), (group, figure), comparison, float(value))
    except ValueError:
        raise BadArgument(
            f"{text!r}: {value!r} must be a number: {group}.{figure} is a count"
        ) from None
