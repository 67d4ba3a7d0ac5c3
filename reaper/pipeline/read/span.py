"""The time that is asked about: `--from` and `--to`, and which files it takes to
answer.

One rule: *no file is left out that may hold a row of that time*. Names rule out
directories of the layout, footers rule out files; a file that does not state its time
is read. Files are taken whole, with their rows before and after that time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from ...config.durations import parse_duration
from ...config.flags import Parser
from ...errors import InvalidArgument
from ...journal.layout import may_hold
from ..arguments import Fault


@dataclass(frozen=True, slots=True)
class Span:
    """Unix ns, from inclusive *since* to exclusive *until*; None: no bound."""

    since: int | None = None
    until: int | None = None

    def __bool__(self) -> bool:
        """Whether anything is ruled out at all."""
        return self.since is not None or self.until is not None

    def below(self, parts: Iterable[str]) -> bool:
        """Whether a file in directories named *parts* may hold a row of this time."""
        return not self or may_hold(parts, self.since, self.until)

    def meets(self, bounds: tuple[int, int] | None) -> bool:
        """Whether a file whose rows lie between *bounds*, both inclusive, may hold one.
        None: unknown.
        """
        if bounds is None:
            return True
        return (self.until is None or bounds[0] < self.until) and (
            self.since is None or self.since <= bounds[1]
        )


ALWAYS = Span()


def add_span(parser: Parser) -> None:
    """Give *parser* the flags `--from` and `--to`; see `span_of`."""
    how = "2026-11-21T09:30 (UTC unless it says), or 2h: ago"
    for flag, name, text in (("--from", "since", "ended before"), ("--to", "until", "began after")):
        what = f"leave out files that {text}; {how}"
        parser.add_argument(flag, dest=name, type=instant_ns, metavar="INSTANT", help=what)


def span_of(arguments: argparse.Namespace) -> Span:
    """The time that `--from` and `--to` name.

    Raises:
        Fault: nothing lies between them.
    """
    if (
        arguments.since is not None
        and arguments.until is not None
        and arguments.since >= arguments.until
    ):
        raise Fault("--from must be before --to")
    return Span(arguments.since, arguments.until)


def instant_ns(text: str) -> int:
    """Read an instant of ISO 8601, UTC where it does not say, or a duration: so long
    ago. Unix ns; for argparse.
    """
    try:
        return time.time_ns() - round(parse_duration(text) * 1e9)
    except InvalidArgument:
        pass
    try:
        instant = datetime.fromisoformat(text)
        instant = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant
        return (round(instant.timestamp() * 10**6)) * 1000
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no instant such as 2026-11-21T09:30, or 2h for two hours ago"
        ) from None
