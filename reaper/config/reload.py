"""What a new configuration may change while connections are open.

One rule: *reloading never needs a restart it did not announce*. A change that reaches open connections is applied, any
other is reported as waiting for the restart and the old value stays in force.
"""

from __future__ import annotations

from dataclasses import dataclass

from .settings import OPTIONS, ReaperConfig


@dataclass(frozen=True, slots=True)
class Change:
    """One setting whose value differs.

    Attributes:
        path: `section.key`.
        old, new: Values as the user would write them.
        live: True: reaches open connections at once. False: needs a restart.
    """

    path: str
    old: str
    new: str
    live: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}" + ("" if self.live else " (needs a restart)")


def changes(old: ReaperConfig, new: ReaperConfig) -> tuple[Change, ...]:
    """Every setting that differs, in the order of the documentation; empty when there is none."""
    return tuple(
        Change(path, found.kind.show(old.get(path)), found.kind.show(new.get(path)), found.live)
        for path, found in OPTIONS.items()
        if old.get(path) != new.get(path)
    )


def applied(old: ReaperConfig, new: ReaperConfig) -> ReaperConfig:
    """*old* with the live settings of *new*: what is in force after a reload.

    Origins follow the values: a setting that waits for a restart keeps the origin of its old value.
    """
    source = {path: new if found.live else old for path, found in OPTIONS.items()}
    origins = {path: config.origins[path] for path, config in source.items() if path in config.origins}
    return old.replaced({path: config.get(path) for path, config in source.items()}, origins)
