"""Servers that ought to be there: a journal that never arrived has no file that could
be put aside.

One rule: *an expected server that is missing is named*. An idle server still leaves a
row every five minutes. So if all its files are silent for long, the server is, and not
only its connections.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ...config.flags import Parser
from ...html.units import spoken
from ..arguments import duration_ns
from .runs import Facts
from .span import ALWAYS, Span

WITHIN_NS = 900 * 10**9
"""How long a server may be silent: three times what its writer lets pass, and what
rotation adds.
"""


def add_expected(parser: Parser) -> None:
    """Give *parser* the flags `--expect` and `--expect-within`."""
    parser.add_argument(
        "--expect", type=server_names, default=(), metavar="FILE|NAMES",
        help="servers that ought to be there: a file with a name per line, or names between commas",
    )  # fmt: skip
    parser.add_argument(
        "--expect-within", type=duration_ns, default=WITHIN_NS, metavar="DURATION",
        help="how long one of them may leave no row; default 15m",
    )  # fmt: skip


def server_names(text: str) -> tuple[str, ...]:
    """The names in the file *text*, one per line, `#` begins a remark; or in *text*
    itself, between commas.

    For argparse.

    Returns:
        Each name once, in order.
    """
    path = Path(text)
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {error}") from None
        found = [line.partition("#")[0].strip() for line in lines]
    elif "/" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no file: name one, or servers between commas"
        )
    else:
        found = [name.strip() for name in text.split(",")]
    names = tuple(dict.fromkeys(filter(None, found)))
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names no server")
    return names


Missing = list[dict[str, str]]
"""Servers, each with the reason why it is missing: as a summary has them."""


def silent(
    expected: Sequence[str], files: Iterable[Facts], within_ns: int, span: Span = ALWAYS
) -> Missing:
    """Which of the *expected* servers are `missing` from *files*.

    Args:
        files: Of all servers. One whose instants are not known speaks for its server at
            any time.
        span: The time that is asked about; without bounds, from each server's first row
            up to the newest row of all.
    """
    spans: dict[str, list[tuple[int, int]]] = {}
    newest = 0
    for facts in files:
        spans.setdefault(facts.server, []).append(facts.bounds or (0, 1 << 63))
        newest = max(newest, facts.bounds[1] if facts.bounds else 0)
    until = (
        newest if span.until is None else min(span.until, max(newest, time.time_ns()))
    )  # not the time to come
    return missing(expected, spans, within_ns, until, span.since)


def missing(
    expected: Sequence[str],
    spans: Mapping[str, Sequence[tuple[int, int]]],
    within_ns: int,
    until_ns: int,
    since_ns: int | None = None,
) -> Missing:
    """Which of the *expected* servers are missing, or were silent for more than
    *within_ns*.

    Args:
        spans: name -> first and last rows of its files, Unix ns.
        until_ns: Where they should be.
        since_ns: From where on; None: from the first row of each.
    """
    found = {
        name: _hole(sorted(spans[name]), within_ns, since_ns, until_ns)
        for name in expected
        if name in spans
    }
    return [
        {"server": name, "reason": why}
        for name in expected
        if (why := found.get(name, "no file of it"))
    ]


def line(entry: Mapping[str, str]) -> str:
    """An entry of `Missing` in words."""
    return f"server {entry['server']} was expected: {entry['reason']}"


def _hole(
    spans: list[tuple[int, int]], within_ns: int, since_ns: int | None, until_ns: int
) -> str | None:
    """The first silence in *spans* beyond *within_ns*, in words; None: there is
    none.
    """
    at = spans[0][0] if since_ns is None else since_ns
    for first, last in [*spans, (until_ns, until_ns)]:
        first = min(first, until_ns)
        if first - at > within_ns:
            return f"no row from {instant(at)} to {instant(first)}, {spoken((first - at) / 1e9)}"
        at = max(at, last)
    return None


def instant(unix_ns: int) -> str:
    """An instant as text: `2026-11-21 09:30:00 UTC`."""
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
