"""Seconds <-> ticks: the only module in the project that rounds.

One rule: *deadlines round up, now rounds down*. Both errors then point the same way,
towards later, and nothing can fire early. (Rounding a deadline down, as Kafka's
TimingWheel does, fires up to one tick early.)

The checks for time arguments live here too, because what may be rounded and what may
not is one subject.
"""

from __future__ import annotations

import math

from ..errors import ClockWentBackwards, InvalidArgument, shown


def deadline_to_tick(deadline: int, tick: int) -> int:
    """The first multiple of *tick*, in ticks, that is not before *deadline* (integers,
    same unit). Rounds up.
    """
    return -(-deadline // tick)


def now_to_tick(now: int, tick: int) -> int:
    """The last multiple of *tick*, counted in ticks, that is not after *now* (integers,
    same unit). Rounds down.
    """
    return now // tick


FAR_AWAY = 1 << 62
"""Beyond any deadline that is ever reached: 146 years of nanosecond ticks.
`seconds_to_tick` stops counting here.
"""


def seconds_to_tick(instant: float, origin: float, tick: float) -> int:
    """Whole ticks of *tick* seconds from *origin* to *instant*, rounded down: use it
    for `now`, never for a deadline.

    At most `FAR_AWAY`, which also stands for quotients that no float can hold.
    """
    ticks = (instant - origin) / tick
    return math.floor(ticks) if ticks < FAR_AWAY else FAR_AWAY


def seconds_to_ms_deadline(instant: float) -> int:
    """*instant* in whole milliseconds, rounded up: use it for deadlines."""
    return math.ceil(instant * 1000.0)


def seconds_to_ms_now(instant: float) -> int:
    """*instant* in whole milliseconds, rounded down: use it for `now`."""
    return math.floor(instant * 1000.0)


def ms_to_seconds(ms: int) -> float:
    """An instant that `seconds_to_ms_now` counts as *ms*, not earlier than it: when to
    wake for a deadline in ms.

    ms / 1000 alone will not do: some quotients lie a rounding error below, and a caller
    that wakes then finds that it is not time yet, again and again.
    """
    instant = ms / 1000.0
    while seconds_to_ms_now(instant) < ms:
        instant = math.nextafter(instant, math.inf)
    return instant


def check_instant(name: str, value: float) -> float:
    """Return *value* as a float. Raises InvalidArgument, by *name* and value: it is no
    finite instant in seconds.
    """
    return _finite(name, value, "a finite number of seconds")


def check_timeout(name: str, value: float, also: str = "") -> float:
    """*value* as a float. Raises InvalidArgument: it is no finite number of seconds >
    0; *also*: what else would do.
    """
    wanted = f"a finite number of seconds > 0{also}" if also else "a finite number of seconds > 0"
    number = _finite(name, value, wanted)
    if number <= 0:
        raise InvalidArgument(f"{name} must be {wanted}, got {shown(value)}")
    return number


def check_count(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return *value*. Raises InvalidArgument: it is no integer, or less than *least*,
    or more than *most*.
    """
    if type(value) is not int or value < least:
        raise InvalidArgument(f"{name} must be an integer >= {least}, got {shown(value)}")
    if most is not None and value > most:
        raise InvalidArgument(f"{name} must be an integer <= {most}, got {shown(value)}")
    return value


def check_limit(limit: int | None) -> None:
    """Make sure that *limit* is None or an integer >= 1. Raises InvalidArgument: it is
    anything else.
    """
    if limit is not None:
        check_count("limit", limit, 1)


def check_now(now: float, latest: float, after: str = "after") -> float:
    """Return *now* as a float. Raises InvalidArgument: it is no instant;
    ClockWentBackwards: it precedes *latest*, of which *after* says what it is.
    """
    now = check_instant("now", now)
    if now < latest:
        raise ClockWentBackwards(f"now must not decrease: got {now!r} {after} {latest!r}")
    return now


def _finite(name: str, value: float, wanted: str) -> float:
    # float is the common case; exact type first, because register() runs this once per
    # connection.
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidArgument(f"{name} must be {wanted}, got {shown(value)}")
        try:
            value = float(value)
        except OverflowError:
            raise InvalidArgument(f"{name} must be {wanted}, got {shown(value)}") from None
    if not math.isfinite(value):
        raise InvalidArgument(f"{name} must be {wanted}, got {shown(value)}")
    return value
