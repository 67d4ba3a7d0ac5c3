"""When the tasks of a connection of hypercorn's end.

One rule: *a connection that has been read to its end is not kept alive*. hypercorn has
a task for each connection that sleeps for its keep-alive, also when the client is gone.
That task holds all of the connection. It sleeps for 5 s, and for ever where the guard
has the keep-alive.
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
        await method(server)
        setattr(server, READ, True)
        await server.idle_task.stop()

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
