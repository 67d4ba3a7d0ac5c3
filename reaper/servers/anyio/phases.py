"""What a connection waits for, read from anyio.

The rule of this module: *a handler that waits in `receive` waits for the client*. While
the handler does anything else, the connection is in use.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...asyncio.guards import watch as watch_by
from ...asyncio.overload import refuse
from ...asyncio.reaper import AsyncioReaper, reaper_of
from ...driver.served import tried
from ...policy import Phase
from ..configured import settings
from ..plain import Plain


def note(listener: Any) -> None:
    """Guard each connection that *listener*, a `TCPSocketListener`, accepts from now
    on. Those that are too many are reset.
    """
    accept = listener.accept

    async def accept_guarded() -> Any:
        while True:
            stream, reaper = await accept(), reaper_of(config=settings)
            if tried(reaper.welcomes) is not False:
                watch(stream, reaper)
                return stream
            refuse(reaper, stream._transport, http=False)

    listener.accept = accept_guarded


class Listened(Plain):
    """A connection of anyio's `SocketStream` on asyncio."""

    __slots__ = ()

    def phase(self) -> Phase:
        """IDLE while the handler waits in `receive`, or has dropped the stream;
        otherwise IN_FLIGHT.
        """
        stream = self.protocol._reaper_stream()
        if stream is None:  # the handler has forgotten it, unclosed: nobody reads any more
            return Phase.IDLE
        return Phase.IDLE if stream._receive_guard._guarded else Phase.IN_FLIGHT


def watch(stream: Any, reaper: AsyncioReaper) -> None:
    """Guard the connection of *stream*, anyio's `SocketStream` on asyncio."""
    protocol = stream._protocol
    # The stream holds the protocol: a reference back would keep both until the
    # collector comes.
    protocol._reaper_stream = weakref.ref(stream)
    watch_by(reaper, Listened, stream._transport, protocol)
