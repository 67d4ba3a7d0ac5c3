"""What the questions are asked of: Spark, embedded in this process or wherever the user says.

One rule: *what the user has set is never set again*.
"""

from __future__ import annotations

from .functions import F, Window, answering, here, use
from .spark import NoSpark, expect, line_of, open_session, together

__all__ = [
    "F",
    "NoSpark",
    "Window",
    "answering",
    "expect",
    "here",
    "line_of",
    "open_session",
    "together",
    "use",
]
