"""When the tasks of a connection of hypercorn's end.

One rule: *a connection that has been read to its end is not kept alive*. hypercorn has
a task for each connection that sleeps for its keep-alive, also when the client is gone.
That task holds all of the connection. It sleeps for 5 s, and for ever where the guard
has the keep-alive. Its task that reads waits for ever, too, where a client has
pipelined a request behind an answer that was the last: a stop would then wait for
nobody until its grace is over.
"""

from __future__ import annotations

from typing import Any

READ = "_reaper_read"
"""The attribute of a hypercorn `TCPServer` whose client can send no more."""


def read(method: Any) -> Any:
    """Read all that the client of *server*, a `TCPServer`, sends; then end the task
    that sleeps.

    Requests that are being answered have tasks of their own. hypercorn waits for those
    before it closes.
    """

    async def instead(server: Any) -> None:
        try:
            await method(server)
        except Ended:
            from hypercorn.events import Closed

            await server.protocol.handle(Closed())
        setattr(server, READ, True)
        await server.idle_task.stop()

    return instead


class Ended(Exception):
    """The connection is closed: what else was pipelined is not read."""


class Over:
    """Stands in the place of the event that a reader of HTTP/1 waits for, once none can
    come any more.
    """

    async def set(self) -> None:
        """Nobody waits."""

    async def clear(self) -> None:
        """Raises Ended: the reader would wait now."""
        raise Ended


def closed(method: Any) -> Any:
    """Close the connection of *server*, and let its reader end, which may wait for the
    end of an answer.
    """

    async def instead(server: Any) -> None:
        try:
            await method(server)
        finally:
            protocol: Any = getattr(getattr(server, "protocol", None), "protocol", None)
            event = getattr(protocol, "can_read", None)  # HTTP/2 has none
            if event is not None:
                protocol.can_read = Over()
                await event.set()

    return instead


def rest(method: Any) -> Any:
    """Wait for the next request of *server*, unless none can come: hypercorn then
    closes.

    An answer that ends after the client's end of file comes here last.
    """

    async def instead(server: Any) -> None:
        if not getattr(server, READ, False):
            await method(server)

    return instead
