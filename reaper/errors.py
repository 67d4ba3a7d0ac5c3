"""Every error `reaper` raises, under one base.

The strategy is written once, here: an error that carries a wrong *argument* is raised
before anything is changed, so the caller may correct it and call again. Messages say
what was wrong, which value came, and what would be right.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_POSIX = ("fcntl", "resource", "termios")
"""Modules of the standard library that Windows does not have."""


def shown(value: object) -> str:
    """*value* for a message: its repr, cut to 80 characters; its type's name if it has
    none that can be made.
    """
    try:
        text = repr(value)
    except Exception:  # the value's own; or an int of more digits than Python prints
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def one_line(error: BaseException | str) -> str:
    """What *error* says, in one line of at most 400 characters; the name of its type if
    it says nothing.
    """
    return " ".join(str(error).split())[:400] or type(error).__name__


def printable(text: str) -> str:
    """*text*, which a peer chose in part, for a terminal, a log or a page: what does
    not print is escaped.

    So no peer moves the operator's cursor, forges a line of the log, or turns what
    follows around. Backslashes stay.
    """
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else _escaped(each) for each in text)
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class ReaperError(Exception):
    """Base of every error of this library. Never raised itself."""


class InvalidArgument(ReaperError, ValueError):
    """The caller passed a value outside what the docstring states (NaN, negative,
    infinite, wrong type).

    State unchanged.
    """


class ClockWentBackwards(ReaperError):
    """The caller passed a `now` that precedes an instant this object has already seen.

    State unchanged. Every `now` must come from one monotonic clock.
    """


class DuplicateUid(ReaperError):
    """The caller registered a uid that is still registered. State unchanged; release
    the old lease first.
    """


class ConfigError(ReaperError):
    """A configuration that cannot be used.

    The message lists every fault found, one per line, each with its path, the value,
    and what would be accepted. Nothing of the configuration is in force.
    """


class InvariantViolated(ReaperError):
    """`check()` found a broken invariant: a bug in `reaper`, not in the caller. The
    state is not to be trusted.
    """


class UnknownUid(ReaperError, KeyError):
    """The caller asked about a uid that is not registered. State unchanged."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would print the message in quotes


class KeeperClosed(ReaperError, RuntimeError):
    """The caller asked a keeper that is being closed, or is closed, for a thing.
    Nothing was made.
    """


class ConnectionReaped(ReaperError, RuntimeError):
    """The caller wants to use a connection that the reaper has closed. It stays
    closed.
    """


class HookErrors(ReaperError, ExceptionGroup[Exception]):
    """One or more of the caller's hooks raised. Everything else was done first; nothing
    is left to repeat.

    Attributes:
        expired: What the call would have returned.
    """

    expired: list[Any]

    def __new__(cls, message: str, errors: Sequence[Exception], expired: list[Any]) -> HookErrors:
        self = super().__new__(cls, message, errors)
        self.expired = expired
        return self

    def __init__(self, message: str, errors: Sequence[Exception], expired: list[Any]) -> None:
        super().__init__(message, errors)

    def derive(self, errors: Sequence[Exception]) -> HookErrors:  # type: ignore[override]
        return HookErrors(self.message, errors, self.expired)


class NotInstalled(ReaperError, ModuleNotFoundError):
    """This installation lacks what was asked for. The message says what to install, or
    where it works.

    Attributes:
        name: The module that was not found.
    """


@contextmanager
def needs(door: str, package: str) -> Iterator[None]:
    """Around imports of other packages: what is not installed is said in one line, with
    what installs it.

    Args:
        door: What needs them, as the user knows it.
        package: For `pip install`.
    Raises:
        NotInstalled: one is not.
    """
    try:
        yield
    except NotInstalled:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or __name__).partition(".")[0]
        if missing == __name__.partition(".")[0]:
            raise  # a fault of ours
        if missing in _POSIX:
            why = (
                f"{door} needs Linux or macOS: {sys.platform} has no {missing}; "
                "the core (`import reaper`) works"
            )
        else:
            why = f"{door} needs {missing}: pip install '{package}'"
        raise NotInstalled(why, name=error.name) from None
