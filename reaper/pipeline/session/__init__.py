"""Where Spark runs: embedded, in a session that stays, or wherever the user says.

One rule: *what the user has set is never set again*. Read `java` (the machine below), `spark` (one session a command),
`standing` (a session that stays, as commands find it), `keeper` (the process that keeps it), `command`.
"""

from __future__ import annotations

from .java import NoJava, NoSpark, check_java, little
from .spark import EMBEDDED_HEAP_MB, check_reachable, expect, line_of, open_session, together

__all__ = [
    "EMBEDDED_HEAP_MB",
    "NoJava",
    "NoSpark",
    "check_java",
    "check_reachable",
    "expect",
    "line_of",
    "little",
    "open_session",
    "together",
]
