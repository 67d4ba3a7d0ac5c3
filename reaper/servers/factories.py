"""Servers that give asyncio a protocol factory and let nobody change it.
`create_server` of every loop is wrapped; the wrapper recognises such a factory and
guards it. With TLS the handshake is bounded by `timeouts.handshake`, unless the server
gives an `ssl_handshake_timeout`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .guest import Visit, around

Wrap = Callable[[Any], Any]
Own = Callable[[Any], float | None]
_FACTORIES: list[tuple[Callable[[Any], bool], Wrap, Visit, Own]] = []
"""For each such server, functions: one recognises its factory, one guards it; then the
visit; and one returns the keep-alive that the program has set, in seconds.
"""


def names_none(factory: Any) -> float | None:
    """The program sets no keep-alive."""
    return None


def on_loops(means: Callable[[Any], bool], wrap: Wrap, visit: Visit, own: Own = names_none) -> None:
    """Guard the protocol factories for which *means* is true, on every asyncio loop."""
    if not _FACTORIES:
        from asyncio.base_events import BaseEventLoop

        kinds: list[Any] = [BaseEventLoop]
        with suppress(ImportError):
            from uvloop import Loop

            kinds.append(Loop)
        for kind in kinds:
            around(kind, "create_server")(_meeting)
    _FACTORIES.append((means, wrap, visit, own))


def _meeting(create_server: Any) -> Any:
    from ..asyncio.reaper import reaper_of
    from ..asyncio.tls import door

    async def instead(loop: Any, protocol_factory: Any, *arguments: Any, **options: Any) -> Any:
        for means, wrap, visit, own in _FACTORIES:
            if means(protocol_factory):
                guarded = door(
                    wrap(protocol_factory),
                    options,
                    visit.host.load().timeouts.handshake,
                    functools.partial(reaper_of, config=visit.host.load),
                )
                made = await create_server(loop, guarded, *arguments, **options)
                visit.listens(made.sockets, keep_alive=own(protocol_factory))
                return made
        return await create_server(loop, protocol_factory, *arguments, **options)

    return instead
