"""Questions to journals: was every close right, and which timeouts does your traffic
want?

One rule: *what was not judged is said*. Each file and each row is counted, or put aside
with a reason.

Room by room, in the order of their imports:

    places            a path of this machine, or a URI of any file system that Spark
                      reaches
    arguments engine  flags read and refused; one session per command, of Spark or of
                      DuckDB
    read/             files checked before an engine sees them; events as a frame
    audit/            one verdict per connection
    advise/           survival of silences, from journals and access logs; the
                      recommended timeout
    losses/           requests that a proxy lost to an idle close, from its log
    live/             journals that grow
    report/ whatif/   the audit as a page; a journal replayed under other settings
    notebook          the same questions of DataFrames; reaper.pipeline.events, .audit,
                      ...
    cli               the commands, assembled

In each room `command.py` declares the flags and `run.py` does the work. Nothing in the
library imports this package. Of the library it imports the journal's schema and layout,
a few tables of `reaper.config`, and `reaper.html` for its pages; `audit/` imports the
schema alone, because a judge that shares code with what it judges shares its errors.

Stability: provisional.
"""

from __future__ import annotations

from typing import Any

__all__ = ["advise", "audit", "events", "losses", "summary", "table"]


def __getattr__(name: str) -> Any:
    """Import a name of this package when it is first used."""
    if name in ("events", "summary", "table"):
        from . import notebook

        return getattr(notebook, name)
    if name == "audit":
        import reaper.pipeline.audit

        return reaper.pipeline.audit
    if name == "advise":
        import reaper.pipeline.advise

        return reaper.pipeline.advise
    if name == "losses":
        import reaper.pipeline.losses

        return reaper.pipeline.losses
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
