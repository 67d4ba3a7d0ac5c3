"""How a public name goes: for two minor releases it still works, and says so wherever
it is used.

The rule of this module: *what is deprecated is a row of `NOTICES`*. The warning, the
table of docs/stability.md and the test that nothing outlives its notice are made of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Notice(NamedTuple):
    """What is said of one name that goes.

    Attributes:
        since: The release that first warns.
        until: The release that no longer has the name: two minor releases after
            *since*.
        instead: What to write instead.
    """

    since: str
    until: str
    instead: str


NOTICES: Mapping[str, Notice] = {
    "reaper.policy.TOO_OLD": Notice("0.4.0", "0.6.0", "reaper.policy.reasons.MAX_AGE"),
    "reaper.policy.Rule.status": Notice("0.4.0", "0.6.0", "reaper.policy.ANSWERS[phase.value]"),
}
"""By the full name of what goes."""


def warn(name: str, *, stacklevel: int = 2) -> None:
    """Warn of the use of *name*, a key of `NOTICES`, with a DeprecationWarning.

    Args:
        name: The full name, as `reaper.policy.TOO_OLD`.
        stacklevel: Which caller the warning points at, as `warnings.warn` counts: 2 is
            the caller of the function that calls this.
    """
    notice = NOTICES[name]
    warnings.warn(
        f"{name} is deprecated since {notice.since} and goes in {notice.until}: "
        f"use {notice.instead}",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


def attribute(module: str, values: Mapping[str, object]) -> Callable[[str], object]:
    """Make the `__getattr__` of *module*, which still has the names of *values* and
    warns of each.

    Args:
        module: Its `__name__`.
        values: By name, what the name still means.
    """

    def find(name: str) -> object:
        if name not in values:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}")
        return values[name]

    return find


def markdown() -> str:
    """Write the table for docs/stability.md."""
    rows = [
        f"| `{name}` | {notice.since} | {notice.until} | `{notice.instead}` |"
        for name, notice in NOTICES.items()
    ]
    return "\n".join(
        ["| name | warns since | removed in | write instead |", "|---|---|---|---|", *rows, ""]
    )
