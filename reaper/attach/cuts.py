"""What a guard from outside cuts although it was in use, in words that stand beside the
limits.

One rule: *whoever sets a limit is told what it costs*. From outside nothing tells an
answer that is complete from one that pauses: the kernel knows when bytes moved, and no
protocol. So `idle` counts from the server's last byte, and an answer that has begun and
pauses for longer is cut with it. The lines that `attach` and `reaper run` print when
they begin say so, by `said`.

For the same reason a setting that is meant for the time between two requests
(`keep_alive`) is no limit outside. Only an `idle` that was asked for is; where none
was, `UNASKED_IDLE` is longer than any answer is known to pause.
"""

from __future__ import annotations

from ..config.durations import format_duration

UNASKED_IDLE = 3600.0
"""Seconds of silence after which `reaper run` closes a connection from outside if
nobody asked for an `idle`.
"""


def said(idle: float, max_age: float, even_unanswered: bool = False) -> str:
    """What limits of these lengths cut besides idle connections, in one line; empty if
    nothing.

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
