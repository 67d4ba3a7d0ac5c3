"""How a transport is closed: every close of a connection on asyncio comes through here.

The rule of this module: *no close waits for its peer without a bound*. asyncio keeps a
closed transport for as long as its peer takes nothing of what is left to be sent, and
with TLS for 30 s more, waiting for a close_notify that an attacker never sends. So a
transport that is closed here is looked at in the reaper's sweep until its descriptor is
free.
"""

from __future__ import annotations

import contextlib
from typing import Any

from ..driver import sockets
from ..policy.min_rate import patience
from . import transports
from .reaper import AsyncioReaper


def close(reaper: AsyncioReaper, transport: Any, farewell: bytes = b"") -> None:
    """Close *transport*. What is buffered, and then *farewell*, has `timeouts.linger`
    to go out.

    With TLS, and without a farewell, what is buffered is thrown away.
    """
    if farewell and not transport.is_closing():
        transport.write(farewell)
    if transports.is_tls(transport) and not farewell:
        transport.abort()
    else:
        transport.close()
        bound(reaper, transport)
    shut(transport)


def shut(transport: Any) -> None:
    """Tell the peer at once that nothing more comes. Does nothing if something has yet
    to be sent.

    The loop closes a descriptor in a later pass, and what the peer sends until then is
    lost.
    """
    descriptor = transports.descriptor_of(transport)
    if not transports.buffered(transport):
        sockets.shut(descriptor)


def bound(reaper: AsyncioReaper, transport: Any, *, patient: bool = False) -> None:
    """Cut *transport*, which is closed, if it takes too long to send what is buffered
    and to be answered the goodbye of TLS: longer than `timeouts.linger`.

    Args:
        patient: The server has closed it, not the reaper: it may take any time, as long
            as the peer takes something every `timeouts.write`. Once all is taken, the
            goodbye of TLS has `timeouts.linger`.
    """
    if transports.buffered(transport) or transports.is_tls(transport):
        reaper.sweep.add(_Farewell(reaper, transport, patient))


def reset(transport: Any) -> None:
    """Close *transport* at once by a reset, so that the kernel forgets what is queued.

    Use it for a peer that does not take its response: after an ordinary close the
    kernel would go on offering it for minutes.
    """
    found = transports.socket_of(transport)
    if found is not None:
        with contextlib.suppress(NotImplementedError):
            sockets.reset_on_close(found)
    transport.abort()


class _Farewell:
    """A transport that is closed, and has something left to send."""

    __slots__ = ("_progress", "_reaper", "_transport", "_until")

    def __init__(self, reaper: AsyncioReaper, transport: Any, patient: bool) -> None:
        self._reaper = reaper
        self._transport = transport
        self._progress = transports.Progress(transport) if patient else None
        self._until = reaper.driver.now() + self._seconds()

    def _seconds(self) -> float:
        """How long it may still take, if its peer takes nothing."""
        config, progress = self._reaper.config, self._progress
        seconds = config.timeouts.linger
        if progress is not None:
            write, rate = config.timeouts.write, config.limits.min_out_rate
            seconds = patience(write, rate, progress.hidden)
        return seconds or self._reaper.core.tick

    def charge(self, now: float) -> None:
        """The sweep asks: has it ended, and is its time over?"""
        if transports.descriptor_of(self._transport) < 0:
            self._reaper.sweep.discard(self)
            return
        if self._progress is not None:
            taken = self._progress.taken()
            if not transports.queued(self._transport):
                self._progress = None  # its goodbye is all that is waited for
                taken = 1
            if taken:
                self._until = now + self._seconds()
        if now >= self._until:
            self._reaper.sweep.discard(self)
            reset(self._transport)
