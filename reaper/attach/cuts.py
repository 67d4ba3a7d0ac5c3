"""What a guard from outside cuts although it was in use, in words for those who set the
limits.

One rule: *if you set a limit, you are told what it costs*. From outside, a complete
answer and one that pauses look alike: the kernel knows when bytes moved, and knows no
protocol. So `idle` counts from the server's last byte, and an answer that has begun and
pauses for longer is cut with it. The lines that `attach` and `reaper run` print when
they begin say so, by `said`.

For the same reason a setting that is meant for the time between two requests
(`keep_alive`) is no limit outside. Only an `idle` that you set is. Without one,
`UNASKED_IDLE` is longer than any answer is known to pause.
"""

from __future__ import annotations

from ..config.durations import format_duration

UNASKED_IDLE = 3600.0
"""Seconds of silence after which `reaper run` closes a connection from outside if
`idle` is not set.
"""


def said(idle: float, max_age: float, even_unanswered: bool = False) -> str:
    """Say in one line what limits of these lengths cut besides idle connections; empty
    if nothing.

    Args:
        idle, max_age, even_unanswered: As in `[attach]`; seconds, 0: off.
    """
    cut: list[str] = []
    if idle:
        begun = "takes longer than" if even_unanswered else "has begun and pauses for"
        cut.append(f"an answer that {begun} {format_duration(idle)}")
    if max_age:
        age = format_duration(max_age)
        cut.append(f"an answer that has begun when its connection is {age} old")
    return f"this also cuts {' and '.join(cut)}" if cut else ""
