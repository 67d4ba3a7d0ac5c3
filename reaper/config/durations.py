"""Durations as people write them: `250ms`, `30s`, `5m`, `1h30m`, `7d`.

One rule: *text and seconds are the same number*. Reading goes through exact fractions,
so that `parse_duration(format_duration(x)) == x` for every finite x >= 0, to the last
bit.
"""

from __future__ import annotations

import contextlib
import math
import re
from decimal import Decimal
from fractions import Fraction

from ..errors import InvalidArgument

NEVER = 10**8
"""Seconds; what a timer of others is given that must not fire, because ours is in
force: after a pause of the process it would fire before what came meanwhile is read.
"""

WANTED = "a duration such as 250ms, 30s, 5m, 1h or 7d"
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_TEXT = re.compile(
    "(?=.)" + "".join(f"(?:({_NUMBER}){unit})?" for unit in ("d", "h", "m(?!s)", "s", "ms")),
    re.ASCII,
)
_UNITS = {  # largest first, as the groups of _TEXT
    "d": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
}


def parse_duration(text: str) -> float:
    """The number of seconds that *text* says.

    Args:
        text: A decimal number and one of the units `d`, `h`, `m`, `s`, `ms`, or several
            of these in that order, as `1m30s`, with nothing between or around them.

    Returns:
        Seconds, finite, >= 0. `0s` is zero; what zero means is the caller's (a timeout
        of zero is switched off).

    Raises:
        InvalidArgument: *text* is not a string of that form, or too large for a float;
            the message shows it.
    """
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is not None:
        with contextlib.suppress(
            OverflowError
        ):  # past 1e308 s there is no float: not a duration either
            parts = zip(match.groups(default="0"), _UNITS.values(), strict=True)
            return float(sum(Fraction(number) * unit for number, unit in parts))
    raise InvalidArgument(f"{text!r} is not {WANTED}")


def format_duration(seconds: float) -> str:
    """The shortest text in the largest unit that divides *seconds*; `90m`, `1.5ms`,
    `0s`.

    Args:
        seconds: Finite, >= 0.

    Returns:
        Text that `parse_duration` turns back into exactly *seconds*.

    Raises:
        InvalidArgument: *seconds* is NaN, negative, infinite or no number.
    """
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, (int, float))
        or not math.isfinite(seconds)
        or seconds < 0
    ):
        raise InvalidArgument(f"seconds must be a finite number >= 0, got {seconds!r}")
    exact = Fraction(repr(float(seconds)))
    if exact == 0:
        return "0s"
    for name, unit in _UNITS.items():
        if (exact / unit).denominator == 1:
            return f"{int(exact / unit)}{name}"
    decimal = Decimal(repr(float(seconds)))
    return f"{decimal.scaleb(3):f}ms" if seconds < 1 else f"{decimal:f}s"
