"""What a keeper is told, declared and checked once for all its worlds.

A wrong option is refused where you give it, by name and value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from ..config.settings import ReaperConfig
from ..core.ticks import check_count, check_timeout
from ..driver.watched import check_handler, check_idle
from ..errors import InvalidArgument, shown
from ..journal import Journal
from ..policy.jitter import check_share
from ..policy.pressure import Pressure

log: logging.Logger = logging.getLogger("reaper")

IDLE = 600.0
"""Seconds that a thing may be idle, where nothing is said."""

DRAIN = 30.0
"""Seconds that closing waits for what is in use, where nothing is said."""

ENDS_AT_ONCE = 8
"""Ends that run at once, where nothing is said."""


class KeeperOptions(TypedDict, total=False):
    """What the keepers of all worlds take. Each may be left out."""

    idle: float | None
    """Seconds for which a thing may be idle, counted from the end of its last use; 0 or
    None: for ever. 600.
    """
    tick: float
    """Precision, seconds, > 0: how late an end may begin. 1."""
    max_age: float | None
    """Seconds, > 0: what is older is ended as soon as nobody uses it. None: any age."""
    jitter: float
    """0 to 1: `idle` and `max_age` are longer by up to that share, drawn for each
    thing. 0.
    """
    most: int | None
    """At most so many are kept: for one more the longest idle is ended. What is in use
    is not; so there may be more, until it is left. None: any number.
    """
    ends_at_once: int
    """So many ends run at once, >= 1. 8."""
    overlap: bool
    """Whether who asks for a key that is being ended gets a new thing at once. False:
    after that end.
    """
    pressure: Pressure | None
    """Judges memory, descriptors and how many there are: the longest idle are ended
    when one runs short. None: nobody judges.
    """
    on_error: Callable[[BaseException, Any], object] | None
    """Called with (error, key) when `ask` or `end` raises. None: that is logged. The
    thing counts as working after `ask`, and as ended after `end`.
    """
    journal: Journal | None
    """Where the life of every thing is written. You close it, after the keeper."""
    name: str
    """What the keeper is called in the journal, the log and the metrics. `keeper`."""
    drain: float
    """Seconds, > 0, that closing waits for what is in use; then for the ends; then for
    those that had to wait for their turn. 30.
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """`KeeperOptions`, checked, and whether there is an `ask`."""

    idle: float
    tick: float
    max_age: float
    jitter: float
    most: int
    ends_at_once: int
    overlap: bool
    pressure: Pressure | None
    on_error: Callable[[BaseException, Any], object] | None
    journal: Journal | None
    name: str
    drain: float
    ask: bool

    @property
    def reaper(self) -> dict[str, Any]:
        """The options of the reaper that a keeper has of its own."""
        return {
            "config": _CONFIG,
            "idle": self.idle,
            "tick": self.tick,
            "jitter": self.jitter,
            "journal": self.journal,
            "listener": self.name,
        }

    def went_wrong(self, what: str, key: Any, error: BaseException) -> None:
        """*what* raised *error* for *key*: tell who wants to know."""
        if self.on_error is None:
            log.error("%s of %s in %s raised", what, shown(key), self.name, exc_info=error)
            return
        try:
            self.on_error(error, key)
        except Exception:
            log.exception("on_error of %s raised", self.name)

    def say_what_is_left(self, count: int, names: str) -> None:
        """The keeper is closed, and *count* ends have not run to their end; *names* of
        those that had begun.
        """
        log.error(
            "%s is closed, and %d ends have not run to their end within %g s: %s",
            *(self.name, count, self.drain, names or "none has begun"),
        )


def _config() -> ReaperConfig:
    """No file and no variable decides about a keeper; and no kernel knows of its
    things, so none is asked whether a peer has vanished.
    """
    config = ReaperConfig()
    return replace(
        config,
        timeouts=replace(config.timeouts, vanished=0.0),
        reaper=replace(config.reaper, release_buffers=False),
    )


_CONFIG = _config()


def settings_of(make: object, end: object, ask: object, options: Mapping[str, Any]) -> Settings:
    """Check what `open_keeper` was given.

    Raises:
        InvalidArgument: by name and value.
        TypeError: one of *options* is unknown.
    """
    for name in options:
        if name not in KeeperOptions.__annotations__:
            known = ", ".join(("make", "end", "ask", *KeeperOptions.__annotations__))
            raise TypeError(f"unexpected keyword argument {name!r}; the options are {known}")
    check_handler("make", make, "function")
    check_handler("end", end, "function")
    if ask is not None:
        check_handler("ask", ask, "function or None")
    on_error = options.get("on_error")
    if on_error is not None:
        check_handler("on_error", on_error, "function or None")
    for name, kind in (("pressure", Pressure), ("journal", Journal)):
        if not isinstance(options.get(name), kind | None):
            raise InvalidArgument(
                f"{name} must be a {kind.__name__} or None, got {shown(options[name])}"
            )
    overlap, called = options.get("overlap", False), options.get("name", "keeper")
    if overlap is not True and overlap is not False:
        raise InvalidArgument(f"overlap must be True or False, got {shown(overlap)}")
    if not isinstance(called, str) or not called:
        raise InvalidArgument(f"name must be a text, got {shown(called)}")
    most = options.get("most")
    return Settings(
        idle=check_idle(options.get("idle", IDLE)) or 0.0,
        tick=check_timeout("tick", options.get("tick", 1.0)),
        max_age=check_idle(options.get("max_age"), "max_age") or 0.0,
        jitter=check_share("jitter", options.get("jitter", 0.0)),
        most=0 if most is None else check_count("most", most, 1),
        ends_at_once=check_count("ends_at_once", options.get("ends_at_once", ENDS_AT_ONCE), 1),
        overlap=overlap,
        pressure=options.get("pressure"),
        on_error=on_error,
        journal=options.get("journal"),
        name=called,
        drain=check_timeout("drain", options.get("drain", DRAIN)),
        ask=ask is not None,
    )
