"""The options that every way to a reaper takes, declared once: of both adapters, their servers and
their guards.

`Driver` reads them; everything between it and the user passes them on as
`**options: Unpack[Options]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, get_type_hints

from ..journal import Journal


class Options(TypedDict, total=False):
    """How precise a reaper is, how many connections it closes at once, and where it writes of them.

    You may leave out each of them. None, too, leaves it to the configuration, or to the default.
    """

    tick: float | None
    """Precision, seconds, > 0; instead of the configuration's."""
    wheel_size: int | None
    """Ticks that the ring spans, and slots per wheel level, >= 2; instead of the configuration's.
    """
    journal: Journal | None
    """Where the life of every connection is written, on the clock of `journal_clock`. You close it.
    """
    listener: str | None
    """The name that the journal gives these connections, for instance that of their port."""
    jitter: float | None
    """0 to 1: a connection's own timeout is longer by up to that share, drawn at random, in whole
    ticks; instead of the configuration's. A `retime` is exact."""
    reaps_per_second: float | None
    """At most so many connections are closed in a second. Others that are due wait, and their
    lateness says so. 0: no bound. Instead of the configuration's.
    """
    seed: int | None
    """A seed of the jitter, which makes it the same in every run."""


Door = TypeVar("Door", bound=Callable[..., Any])


def spelled_out(door: Door) -> Door:
    """Have `help()` and `inspect.signature` name each of `Options` where *door* has `**options`.

    What *door* takes beyond them stays `**options`.
    """
    signature = inspect.signature(door)
    *own, rest = signature.parameters.values()
    hints = get_type_hints(Options).items()
    own += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in hints
    ]
    if rest.annotation != "Unpack[Options]":
        own.append(rest)
    door.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return door


def check_names(options: Mapping[str, object]) -> None:
    """Make sure that *options* have the names of `Options`. Raises TypeError: one has not, as for
    any argument.
    """
    for name in options:
        if name not in Options.__annotations__:
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"unexpected keyword argument {name!r}; the options are {known}")
