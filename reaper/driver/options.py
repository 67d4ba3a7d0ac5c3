"""The options that both adapters, their servers and their guards take, declared once.

`Driver` is made of them; everything between it and the user passes them on as
`**options: Unpack[Options]`. A wrong option is refused where you give it, by the
function that `Driver` itself calls. Otherwise a server would start, and then refuse
each client.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict, TypeVar, get_type_hints

from ..config.durations import format_duration
from ..config.settings import ReaperConfig
from ..core.reaper import IdleReaper
from ..errors import InvalidArgument, shown
from ..journal import Journal
from ..policy.jitter import Bucket, Jitter, check_rate, check_share
from .ends import log_hook_error
from .watched import check_idle, is_off

log: logging.Logger = logging.getLogger("reaper")


class Options(TypedDict, total=False):
    """How precise a reaper is, how many connections it closes at once, and where it
    writes about them.

    Each may be left out. None, too, leaves it to the configuration, or to the default.
    """

    tick: float | None
    """Precision, seconds, > 0; instead of the configuration's."""
    wheel_size: int | None
    """Ticks that the ring spans, and slots per wheel level, >= 2; instead of the
    configuration's.
    """
    journal: Journal | None
    """Where the life of every connection is written, on the clock of `journal_clock`.
    You close it.
    """
    listener: str | None
    """The name that the journal gives these connections, for instance that of their
    port.
    """
    jitter: float | None
    """0 to 1: a connection's own timeout is longer by up to that share, drawn at
    random, in whole ticks; instead of the configuration's. A `retime` is exact.
    """
    reaps_per_second: float | None
    """At most so many connections are closed in a second. Others that are due wait, and
    their lateness says so. 0: no bound. Instead of the configuration's.
    """
    seed: int | None
    """A seed of the jitter, which makes it the same in every run."""


Door = TypeVar("Door", bound=Callable[..., Any])


def spelled_out(door: Door) -> Door:
    """Have `help()` and `inspect.signature` name each of `Options` where *door* has
    `**options`.

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


def check_names(options: Mapping[str, object], own: tuple[str, ...] = ()) -> None:
    """Make sure that *options* have the names of `Options`. Raises TypeError: one has
    not, as for any argument.

    Args:
        own: What the caller takes besides; the message names those too.
    """
    for name in options:
        if name not in Options.__annotations__:
            known = ", ".join(("config", "idle", *own, *Options.__annotations__))
            raise TypeError(f"unexpected keyword argument {name!r}; the options are {known}")


class Parts(NamedTuple):
    """What a driver is made of."""

    config: ReaperConfig
    idle: float
    """Seconds of silence allowed where nothing else is said; 0: any."""
    core: IdleReaper
    jitter: Jitter
    bucket: Bucket | None
    """Bounds the closes in a second; None: nothing does."""
    journal: Journal | None
    listener: str | None


def parts(config: Any, idle: Any, options: Mapping[str, Any]) -> Parts:
    """Make the parts of a driver.

    Args:
        config, idle: As in `Driver`.
        options: Of `Options`; what is missing, or None, is the configuration's.
    Raises:
        InvalidArgument: by name and value.
        TypeError: one of *options* is unknown.
    """
    check_names(options)
    journal, listener = options.get("journal"), options.get("listener")
    for name, value, kind in (
        ("config", config, ReaperConfig),
        ("journal", journal, Journal),
        ("listener", listener, str),
    ):
        if not isinstance(value, kind | None):
            raise InvalidArgument(f"{name} must be a {kind.__name__} or None, got {shown(value)}")
    settings: ReaperConfig = ReaperConfig() if config is None else config

    def chosen(name: str) -> Any:
        given = options.get(name)
        return getattr(settings.reaper, name) if given is None else given

    # Two epochs a tick: half of the promised tick stays in hand for a loop that wakes
    # late.
    core = IdleReaper(
        chosen("tick"), chosen("wheel_size"), epochs_per_tick=2, on_error=log_hook_error
    )
    jitter = Jitter(check_share("jitter", chosen("jitter")), core.tick, options.get("seed"))
    rate = chosen("reaps_per_second")
    bucket = None if is_off(rate) else Bucket(check_rate("reaps_per_second", rate))
    seconds = settings.timeouts.idle if idle is None else idle
    check_idle(seconds)
    if 0 < seconds <= core.tick:
        _warn_of_a_coarse_tick(core.tick, seconds)
    return Parts(settings, seconds, core, jitter, bucket, journal, listener)


@functools.cache  # said once, however many drivers are made so
def _warn_of_a_coarse_tick(tick: float, idle: float) -> None:
    """Log that *tick* is not shorter than the timeout *idle*, both in seconds."""
    late, right = format_duration(round(idle + tick, 6)), format_duration(round(idle / 4, 6))
    log.warning(
        "tick %s is not shorter than idle %s: a close is up to one tick late, so it may come after "
        "%s; use a tick of at most %s",
        format_duration(tick),
        format_duration(idle),
        late,
        right,
    )


def check_options(
    config: object, idle: object, options: Mapping[str, object], own: tuple[str, ...] = ()
) -> None:
    """Make sure that a driver can be made of these later. Raises as `parts` does, with
    *own* as in `check_names`. Cost: about 20 us.
    """
    check_names(options, own)
    parts(config, idle, options)
