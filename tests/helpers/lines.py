"""Counts the lines that a call executes in the files of a folder.

    with Lines("/reaper/core/") as lines:
        found, count = lines.of(call, argument)

A line counts each time it is begun, and each time a loop that is one line goes round:
as `sys.settrace` has it, on every CPython. From 3.12 on that is built on
`sys.monitoring`, and to switch it on and off makes the interpreter prepare all code
anew. So there the events stay on for the length of the block, nobody hears them but
amid a call, and what is not in the folder is heard once. There they are those of all
threads, of which only the one that calls counts: an earlier test of the process may
have left one that runs in the folder.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["Lines"]

if sys.version_info >= (3, 12):
    events = sys.monitoring.events

    TOOL = 4
    """Of the ids that `sys.monitoring` gives, one that no debugger (0), coverage (1),
    profiler (2) or Hypothesis (3) takes.
    """

    RESUME = 2
    """Bytes of the instruction with which a function starts: what follows begins its
    first line.
    """

    class Lines:
        """See above. *folder*: a part of the paths of its files."""

        def __init__(self, folder: str) -> None:
            self._folder = folder
            self._count = 0
            self._rounds: dict[tuple[int, int], CodeType] = {}
            self._short: dict[int, CodeType] = {}
            self._begun: CodeType | None = None
            self._caller = 0
            self._callbacks = {
                events.PY_START: self._start,
                events.LINE: self._line,
                events.JUMP: self._jump,
            }

        def __enter__(self) -> Lines:
            sys.monitoring.use_tool_id(TOOL, "lines of a folder")
            sys.monitoring.set_events(TOOL, sum(self._callbacks))
            # What another block has switched off, where it is in this folder.
            sys.monitoring.restart_events()
            return self

        def __exit__(self, *error: object) -> None:
            sys.monitoring.set_events(TOOL, events.NO_EVENTS)
            sys.monitoring.free_tool_id(TOOL)

        def of(self, call: Callable[..., Any], *args: Any, **named: Any) -> tuple[Any, int]:
            """What *call* returns, and the lines it has taken."""
            self._count, self._caller = 0, threading.get_ident()
            for event, callback in self._callbacks.items():
                sys.monitoring.register_callback(TOOL, event, callback)
            try:
                found = call(*args, **named)
            finally:
                for event in self._callbacks:
                    sys.monitoring.register_callback(TOOL, event, None)
            return found, self._count

        def _start(self, code: CodeType, offset: int) -> Any:
            # That a lambda's line begins 3.12 tells by itself, and 3.13 does not.
            if id(code) not in self._short:
                begins = line_of(code, offset + RESUME)
                if self._folder not in code.co_filename or begins != code.co_firstlineno:
                    return sys.monitoring.DISABLE
                self._short[id(code)] = code  # which keeps its id its own
            if threading.get_ident() == self._caller:
                self._begun = code
                self._count += 1
            return None

        def _line(self, code: CodeType, line: int) -> Any:
            if self._folder not in code.co_filename:
                return sys.monitoring.DISABLE
            if threading.get_ident() == self._caller:
                self._count += code is not self._begun or line != code.co_firstlineno
                self._begun = None
            return None

        def _jump(self, code: CodeType, offset: int, target: int) -> Any:
            place = id(code), offset
            if place not in self._rounds:
                if (
                    self._folder not in code.co_filename
                    or target > offset
                    or line_of(code, target) != line_of(code, offset)
                ):
                    return sys.monitoring.DISABLE
                self._rounds[place] = code
            if threading.get_ident() == self._caller:
                self._count += 1
            return None

    def line_of(code: CodeType, offset: int) -> int | None:
        """The line of the instruction at *offset*."""
        return next(line for begin, end, line in code.co_lines() if begin <= offset < end)

else:

    class Lines:
        """See above. *folder*: a part of the paths of its files."""

        def __init__(self, folder: str) -> None:
            self._folder = folder
            self._count = 0

        def __enter__(self) -> Lines:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def of(self, call: Callable[..., Any], *args: Any, **named: Any) -> tuple[Any, int]:
            """What *call* returns, and the lines it has taken."""
            before, self._count = sys.gettrace(), 0
            sys.settrace(self._begin)
            try:
                found = call(*args, **named)
            finally:
                sys.settrace(before)
            return found, self._count

        def _begin(self, frame: FrameType, event: str, arg: object) -> Any:
            return self._local if self._folder in frame.f_code.co_filename else None

        def _local(self, frame: FrameType, event: str, arg: object) -> Any:
            self._count += event == "line"
            return self._local
