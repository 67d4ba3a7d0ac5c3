"""What the questions are asked of: Spark, embedded in this process or wherever the user says.

One rule: *what the user has set is never set again*.
"""

from __future__ import annotations

from .functions import F, Window, answering, here, use
from .spark import (
    EMBEDDED_HEAP_MB,
    NoJava,
    NoSpark,
    check_java,
    check_reachable,
    expect,
    line_of,
    open_session,
    together,
)

__all__ = [
    "F",
    "Window",
    "answering",
    "here",
    "use",
    "EMBEDDED_HEAP_MB",
    "NoJava",
    "NoSpark",
    "check_java",
    "check_reachable",
    "expect",
    "line_of",
    "open_session",
    "together",
]
