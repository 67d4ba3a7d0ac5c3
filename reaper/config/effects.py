"""Where a setting acts: each reader of the configuration has a column, which says what
acts in it.

The rule of this module: *what a reader does not do is written in its column, and
nowhere else*. A reader is a server, or one kind of it; who they are is known above
(`reaper.servers.cards`). `reaper run` and its `--explain`, `reaper check --for`, the
line in the log and the pages of docs/settings/ are made of their columns.
tests/run/test_effects.py has every server read its settings, and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .settings import BEHIND, DEFAULT, OPTIONS, ReaperConfig


class Which(str):
    """A note that says which of two settings holds: the server's own or ours, or the
    default if nobody sets ours. The setting acts as a whole.
    """

    __slots__ = ()


@dataclass(frozen=True)
class Column:
    """A reader of the settings.

    Attributes:
        name: What `reaper check --for` calls it.
        about: What it is, for people.
        acts: By setting that acts in it, what is to be known of that; empty: nothing.
        instead: By setting that does nothing in it, what holds instead, where anything
            does.
    """

    name: str
    about: str
    acts: Mapping[str, str]
    instead: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (*self.acts, *self.instead):
            if path not in OPTIONS:
                raise ValueError(f"{self.name}: {path}: no such setting")
        if both := self.acts.keys() & self.instead.keys():
            raise ValueError(f"{self.name}: {', '.join(both)}: acts, and does nothing")

    def cell(self, path: str) -> str:
        """`yes`, `-`, or `partly` where a note says in which cases alone the setting
        *path* acts.
        """
        note = self.acts.get(path)
        if note is None:
            return "-"
        return "yes" if not note or isinstance(note, Which) else "partly"


def without_effect(config: ReaperConfig, column: Column) -> dict[str, str]:
    """Return the settings that *config* sets, by any means, and that do nothing in
    *column*, each with what holds instead, or nothing. They come in the order of the
    settings.

    `[attach]` and `server.behind` are for other readers, and are never named.
    """
    found = {}
    for path in OPTIONS:
        origin = config.origin(path)
        if origin == DEFAULT or origin.startswith(BEHIND) or path in column.acts:
            continue
        if not path.startswith("attach.") and path != BEHIND:
            found[path] = column.instead.get(path, "")
    return found


def said(found: Mapping[str, str]) -> str:
    """Write *found*, what `without_effect` returned, for people in one line; empty if
    it is empty.
    """
    parts = (f"{path} (instead: {but})" if but else path for path, but in found.items())
    return "set, but without effect here: " + ", ".join(parts) if found else ""
