"""How Spark works for tests, which ask it of a few hundred rows."""

from __future__ import annotations

from typing import Any

AS_USERS_HAVE_IT = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.constraintPropagation.enabled": "true",
}
"""Spark's own: it writes Java for each stage of a query, compiles it, and plans the
rest of the query anew after each stage.
"""

INTERPRETED = dict.fromkeys(AS_USERS_HAVE_IT, "false") | {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN"
}
"""The same questions of the same rows, planned once, and by Spark's interpreter. For a
few hundred rows writing and compiling is a third of all work: an audit of both sides
took 31 s of processor time, and takes 20. Of one side, in a Spark that has answered
before, it took 6.1 to 7.4 s, and planned once 4.5 to 5.4 s.
"""


def set_all(session: Any, settings: dict[str, str]) -> None:
    """Have *session* work by *settings*."""
    for name, value in settings.items():
        session.conf.set(name, value)
