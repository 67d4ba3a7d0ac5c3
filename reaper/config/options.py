"""The declaration of a setting: its kind, default, precedent and meaning, with the
field that holds it.

One rule: *everything said about a setting is derived from its declaration*. Validation,
`--help`, the table in the documentation and `python -m reaper check` read the same
`Option`, so they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import ConfigError
from .durations import WANTED, format_duration, parse_duration


def host_and_port(text: str, least: int = 0) -> tuple[str, int]:
    """Read HOST:PORT or [HOST]:PORT, with a port of *least* or more. Raises ValueError
    if *text* is neither.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdecimal() and least <= int(port) < 65536):
        raise ValueError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:6379 or [::1]:6379")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Kind(ABC):
    """How values of one type are read, checked and shown."""

    __slots__ = ()
    quoted: ClassVar[bool] = False
    """Whether its values are read from texts in TOML too. A number in quotes is a
    mistake that hides others.
    """

    @property
    @abstractmethod
    def wanted(self) -> str:
        """What would be accepted, in words that complete "expected ..."."""

    @abstractmethod
    def check(self, value: Any) -> bool:
        """Whether the typed *value* may be used."""

    def read(self, text: str) -> object:
        """The typed value that *text* says. Raises ValueError when it says none."""
        return text

    def show(self, value: Any) -> str:
        """*value* as the user would write it."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Duration(Kind):
    """Seconds, written `30s`, at least *least*. Zero means switched off where *off* is
    true, else it is refused.
    """

    quoted: ClassVar[bool] = True  # a bare number has no unit, and people guess differently

    off: bool = True
    least: float = 0.0

    @property
    def wanted(self) -> str:
        least = (
            f", at least {format_duration(self.least)}"
            if self.least
            else ""
            if self.off
            else ", more than 0s"
        )
        return WANTED + least + ("; 0s switches it off" if self.off else "")

    def check(self, value: Any) -> bool:
        if not _is_number(value):
            return False
        return self.off if value == 0 else 0 < value >= self.least

    def read(self, text: str) -> object:
        return parse_duration(text)

    def show(self, value: Any) -> str:
        return format_duration(value)


@dataclass(frozen=True, slots=True)
class Integer(Kind):
    """A whole number from *least* to *most*, both inclusive; *word*, where given, may
    stand in its place.
    """

    least: int
    most: int | None = None
    word: str | None = None

    @property
    def wanted(self) -> str:
        limits = (
            f"an integer >= {self.least}"
            if self.most is None
            else f"an integer {self.least}..{self.most}"
        )
        return limits if self.word is None else f'{limits} or "{self.word}"'

    def check(self, value: Any) -> bool:
        if self.word is not None and value == self.word:
            return True
        return (
            type(value) is int and value >= self.least and (self.most is None or value <= self.most)
        )

    def read(self, text: str) -> object:
        return int(text) if text != self.word and text.isascii() else text


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A finite number >= 0 (a rate, a share), at most *most* where given."""

    most: float | None = None

    @property
    def wanted(self) -> str:
        return "a number >= 0" if self.most is None else f"a number 0..{self.most:g}"

    def check(self, value: Any) -> bool:
        return _is_number(value) and value >= 0 and (self.most is None or value <= self.most)

    def read(self, text: str) -> object:
        return float(text)

    def show(self, value: Any) -> str:
        return f"{value:g}"


@dataclass(frozen=True, slots=True)
class Place(Kind):
    """HOST:PORT or [HOST]:PORT; empty means none."""

    @property
    def wanted(self) -> str:
        return "HOST:PORT, for example 127.0.0.1:9180; or nothing"

    def check(self, value: Any) -> bool:
        try:
            return value == "" or bool(host_and_port(value))
        except (ValueError, AttributeError):  # no such text, or no text
            return False


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A string: one of *choices* where there are any, and empty only where *empty* is
    true.
    """

    choices: tuple[str, ...] = ()
    empty: bool = False

    @property
    def wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        return "a text" if self.empty else "a text that is not empty"

    def check(self, value: Any) -> bool:
        if not isinstance(value, str) or "\x00" in value:
            return False
        return value in self.choices if self.choices else self.empty or value != ""


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """True or false."""

    wanted = "true or false"

    def check(self, value: Any) -> bool:
        return isinstance(value, bool)

    def read(self, text: str) -> object:
        return {"true": True, "false": False}.get(text)

    def show(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting.

    Attributes:
        path: `section.key`, as TOML spells it.
        default: The typed value in force when nothing else is set.
        doc: What it does, one sentence for users.
        precedent: What other servers call it and where they put it.
        kind: How its values are read, checked and shown.
        live: Whether a changed value reaches connections that are already open.
    """

    path: str
    default: object
    doc: str
    precedent: str
    kind: Kind
    live: bool

    @property
    def section(self) -> str:
        return self.path.partition(".")[0]

    @property
    def key(self) -> str:
        return self.path.partition(".")[2]

    @property
    def flag(self) -> str:
        """The flag on a command line, such as `--keep-alive`. `reaper attach` leaves
        the prefix `attach-` out.
        """
        return ("--attach-" if self.section == "attach" else "--") + self.key.replace("_", "-")

    @property
    def environment(self) -> str:
        """The environment variable that sets it, such as `REAPER_TIMEOUTS_IDLE`. A
        setting of `[reaper]` does not say `reaper` twice: `REAPER_TICK`.
        """
        name = self.key if self.section == "reaper" else self.path.replace(".", "_")
        return "REAPER_" + name.upper()


def option(
    default: Any, doc: str, *, precedent: str = "", kind: Kind = Duration(), live: bool = True
) -> Any:
    """A dataclass field that carries its own `Option`; to be used in the sections of
    `reaper.config`.
    """
    return field(
        default=default, metadata={"doc": doc, "precedent": precedent, "kind": kind, "live": live}
    )


class Section:
    """Base of the sections: refuses values that its options refuse, however it was
    made.
    """

    __slots__ = ()
    live: ClassVar[bool] = True
    """Whether a changed value may reach connections that are already open."""

    def __post_init__(self) -> None:
        faults = []
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            kind = item.metadata["kind"]
            if not kind.check(value):
                faults.append(
                    f"{type(self).__name__.lower()}.{item.name}: {value!r}: expected {kind.wanted}"
                )
        if faults:
            raise ConfigError("\n".join(faults))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
