"""Guards for HTTP servers that do not report phases: the guard asks for the phase of a
connection when it is due.

The rule of this module: *the server says whose turn it is, the kernel says since when*.
While the server works, nothing is due. While the client has to send a request, only
bytes that the server sent begin the timeout anew: a request that drips does not extend
it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from ..asyncio.guards import (
    Ask,
    Guard,
    Rules,
    guarded,
    kernel_must_tell,
    no_farewell,
    not_invited,
    say_nothing,
)
from ..asyncio.guards import watch as watch_by
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..driver.watched import check_idle
from ..policy import ANSWERS, Phase
from .configured import ages
from .goodbye import TIMED_OUT

LIMITED = (Phase.FIRST_BYTE, Phase.HEADERS, Phase.KEEP_ALIVE, Phase.BODY, Phase.TUNNEL, Phase.WRITE)
"""Phases whose timeout is in force: `timeouts` of the config by their names."""


class Face:
    """Takes the part of a transport where a server has none. Each such server derives
    its own.
    """

    def known(self) -> dict[str, Any]:
        """The `socket` and the `peername` as they are now; without one that there is
        not.
        """
        raise NotImplementedError

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what `known` has under *name*."""
        return self.known().get(name, default)

    def is_reading(self) -> bool:
        """Always True: such a server does not say that it has stopped reading."""
        return True

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken: none here."""
        return 0


class SocketFace(Face):
    """Stands for the transport of asyncio's that a server does not have.

    Args:
        whose: The server's own object for the connection. It refers to this one, which
            refers back weakly.
        socket: The connection's.
    """

    def __init__(self, whose: Any, socket: Any) -> None:
        self._known = {"socket": socket}
        with suppress(OSError):
            self._known["peername"] = socket.getpeername()
        self._whose = weakref.ref(whose)

    @property
    def whose(self) -> Any:
        """The server's object; None once it is freed: the connection is closing."""
        return self._whose()

    def known(self) -> dict[str, Any]:
        """The socket and its peer; empty once the server's object is freed."""
        return {} if self.whose is None else self._known


def nothing_known(transport: Any) -> bool:
    """It is not known whether a part of an answer was sent."""
    return False


def timed_out(
    owes: Callable[[Any], bool], begun: Callable[[Any], bool] = nothing_known
) -> Callable[[Any, str], bytes]:
    """The `answer` of `Rules`: 408 for a request that does not come in time.

    Args:
        owes: Whether no part of the answer was sent yet while the request's body is
            awaited. It does not matter for a head: all requests before it were
            answered.
        begun: Whether a part of a head has come after all on a connection that is
            closed for `keep_alive`. Asked once, for nothing is read any more.
    """

    def answer(transport: Any, reason: str) -> bytes:
        if reason == Phase.KEEP_ALIVE.value and begun(transport):
            return TIMED_OUT
        if ANSWERS.get(reason) != HTTPStatus.REQUEST_TIMEOUT:
            return b""
        with suppress(Exception):  # what cannot be read may have begun
            if reason == Phase.HEADERS.value or owes(transport):
                return TIMED_OUT
        return b""

    return answer


def readable(ask: Ask) -> Ask:
    """Like *ask*, but IN_FLIGHT where an attribute is missing: what cannot be read is
    in use.
    """

    def asked(transport: Any) -> Phase:
        try:
            return ask(transport)
        except AttributeError:
            return Phase.IN_FLIGHT

    return asked


_LIMITS: weakref.WeakKeyDictionary[
    AsyncioReaper, tuple[dict[Phase, float | None], Callable[[], float]]
] = weakref.WeakKeyDictionary()
"""By reaper, what `rules_of` has read from its settings: the limits, and the age."""


_SHARED: weakref.WeakKeyDictionary[AsyncioReaper, dict[Any, Rules]] = weakref.WeakKeyDictionary()
"""By reaper, the rules that `watch` has made of three functions."""


def rules_of(
    reaper: AsyncioReaper,
    ask: Ask,
    gone: Callable[[Any], object] | None = None,
    farewell: Callable[[Any], bytes] = no_farewell,
    last: Callable[[Any], object] = say_nothing,
    invited: Callable[[Any], bool] = not_invited,
    owes: Callable[[Any], bool] = nothing_known,
    begun: Callable[[Any], bool] = nothing_known,
) -> Rules:
    """The rules for a server that *ask* asks, by the config of *reaper*; *gone*,
    *farewell*, *last* and *invited*: see `Rules`; *owes* and *begun*: see `timed_out`.
    """
    known = _LIMITS.get(reaper)
    if known is None:
        timeouts = reaper.config.timeouts
        limits = {phase: check_idle(getattr(timeouts, phase.value)) for phase in LIMITED}
        known = _LIMITS[reaper] = limits, ages(reaper.config)
    limits, age = known
    said = farewell, last, invited, timed_out(owes, begun)
    return Rules(readable(ask), limits, None, True, age, True, gone, *said)


def watch(
    reaper: AsyncioReaper,
    transport: Any,
    ask: Ask,
    last: Callable[[Any], object] = say_nothing,
    owes: Callable[[Any], bool] = nothing_known,
) -> None:
    """Guard the connection of *transport*, for a server that lets no factory in. That
    it has ended is known when *transport* is freed. *last*: see `Rules`; *owes*: see
    `timed_out`. All connections that are guarded with the same functions share their
    rules.
    """
    shared = _SHARED.setdefault(reaper, {})
    asked = ask, last, owes
    if (rules := shared.get(asked)) is None:
        rules = shared[asked] = rules_of(reaper, ask, last=last, owes=owes)
    watch_by(reaper, transport, rules)


def transports_of(reaper: AsyncioReaper) -> list[Any]:
    """The transports of the connections that *reaper* guards."""
    guards = [one for one in reaper.driver.connections.values() if isinstance(one, Guard)]
    return [transport for guard in guards if (transport := guard.transport()) is not None]


def guard(
    protocol_factory: Callable[[], Any],
    ask: Ask,
    *,
    reaper: AsyncioReaper | None = None,
    gone: Callable[[Any], object] | None = None,
    farewell: Callable[[Any], bytes] = no_farewell,
    last: Callable[[Any], object] = say_nothing,
    invited: Callable[[Any], bool] = not_invited,
    owes: Callable[[Any], bool] = nothing_known,
    begun: Callable[[Any], bool] = nothing_known,
) -> Callable[[], Any]:
    """As `reaper.asyncio.guard`, for the protocols of an HTTP server.

    Args:
        protocol_factory: The server's own.
        ask: Called with a transport: whose turn it is.
        reaper: Watches the connections, by its config's `timeouts`; None: the loop's
            own.
        gone, farewell, last, invited: See `Rules`.
        owes, begun: See `timed_out`.
    """
    kernel_must_tell()
    watching = reaper_of if reaper is None else lambda: reaper

    def rules(watcher: AsyncioReaper) -> Rules:
        return rules_of(watcher, ask, gone, farewell, last, invited, owes, begun)

    return guarded(protocol_factory, rules, watching)
