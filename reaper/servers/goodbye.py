"""How a guarded server tells the program that it stops: `reaper.stopping()` becomes
true.

`reaper run` imports this library under a name of its own, so that a module `reaper` of
the program is the program's. If that is this library as well, there are two of it in
the process, and the program awaits the other one's flag.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from ..stops import TURN, Turn, stopping, was_asked


def begin_stopping() -> None:
    """The server has been told to stop: wake the tasks of this loop that await
    `reaper.stopping()`. Call it in a task of the loop, before anything is closed.
    """
    stopping().begin(in_loop=True)
    programs = sys.modules.get("reaper.stops")
    with suppress(AttributeError):  # it is something else of that name
        if programs is not None and programs.stopping is not stopping:
            programs.stopping().begin(in_loop=True)


def take_turn(turn: Turn | None) -> None:
    """From now on *turn* answers for `reaper.stopping()` in this task; None: the loop
    does.
    """
    TURN.set(turn)
    programs = sys.modules.get("reaper.stops")
    with suppress(AttributeError):
        if programs is not None and programs.TURN is not TURN:
            programs.TURN.set(turn)


def program_asks() -> bool:
    """Whether the program has asked `reaper.stopping()`, or awaits it: then it says
    goodbye by itself, and needs time for that. Call it in a task of the loop.
    """
    programs = sys.modules.get("reaper.stops")
    with suppress(AttributeError):
        if programs is not None and programs.was_asked():
            return True
    return was_asked()
