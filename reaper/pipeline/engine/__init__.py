"""The engines that answer: Spark, started here or wherever the user says, and DuckDB in
this process.

One rule: *a setting that the user has made is never overwritten*.
"""

from __future__ import annotations

from .functions import F, Window, answering, here, use
from .parts import Ladder, Part
from .spark import NoSpark, check_version, expect, line_of, open_session, together

__all__ = [
    "F",
    "Ladder",
    "NoSpark",
    "Part",
    "Window",
    "answering",
    "check_version",
    "expect",
    "here",
    "line_of",
    "open_session",
    "together",
    "use",
]
