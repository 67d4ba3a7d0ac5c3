"""Servers that give asyncio a protocol factory and let nobody change it.
`create_server` and `create_unix_server` of every loop are wrapped; the wrapper
recognises such a factory and guards it. With TLS the handshake is bounded by
`timeouts.handshake`, unless the server gives an `ssl_handshake_timeout`.

uvloop's loop is wrapped once the program has imported uvloop, and never imported here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from ..foreign import PYTHON, RESTING, SHAKES, SOCKETS, Foreign
from .guest import Visit, around

UVLOOP = "uvloop"


BY_ADDRESS, BY_PATH = "create_server", "create_unix_server"


def _loops(sign: str) -> tuple[Foreign, ...]:
    """What is used of the loops of asyncio and uvloop; *sign* is `=` where the methods
    that make a server are replaced.
    """
    by_address, by_path = f"{sign}{BY_ADDRESS}", f"{sign}{BY_PATH}"
    of_asyncio = {
        "asyncio.base_events:BaseEventLoop": by_address,
        "asyncio:SelectorEventLoop": by_path,
        "asyncio.base_events:Server": "=close",
    }
    of_uvloop = {"uvloop:Loop": f"{by_address} {by_path}"}
    return (
        Foreign(PYTHON, ("3.11", "3.14"), of_asyncio),
        Foreign(UVLOOP, ("0.23.0", "0.23.0"), of_uvloop, optional=True),
    )


LOOPS = _loops("=")
"""What `on_loops` replaces, if the program imports it."""

OUR_LOOPS = _loops("")
"""What a server uses of loops that runs on one of `asyncio.loop_factory`'s."""

SPARED = (
    SHAKES,
    Foreign(
        UVLOOP,
        ("0.23.0", "0.23.0"),
        {"uvloop.loop:": "Loop SSLProtocol"},
        optional=True,
        without=SHAKES.without,
    ),
    RESTING,
    SOCKETS,
)
"""What is used of the connections of both."""

Wrap = Callable[[Any], Any]
Own = Callable[[Any], float | None]


def names_none(factory: Any) -> float | None:
    """The program sets no keep-alive."""
    return None


class Kind(NamedTuple):
    """The factories of one such server.

    Attributes:
        means: Recognises them.
        wrap: Guards one.
        visit: To whom it is said that the server listens.
        own: Returns the keep-alive that the program has set, in seconds.
        says: Whether it is said here that the server listens.
        handshake: The server's default of `ssl_handshake_timeout`, which nobody has
            asked for.
    """

    means: Callable[[Any], bool]
    wrap: Wrap
    visit: Visit
    own: Own = names_none
    says: bool = True
    handshake: float | None = None


_FACTORIES: list[Kind] = []
_LOOPS: list[Any] = []
"""The classes of loops that are wrapped."""


def on_loops(*given: Any, **named: Any) -> None:
    """Guard the protocol factories of a `Kind`, of which these are the fields, on every
    asyncio loop.
    """
    _FACTORIES.append(Kind(*given, **named))
    from asyncio import SelectorEventLoop
    from asyncio.base_events import BaseEventLoop

    _wrap(BaseEventLoop, BY_ADDRESS)
    if hasattr(SelectorEventLoop, BY_PATH):  # Windows has none
        _wrap(SelectorEventLoop, BY_PATH)
    if (uvloop := sys.modules.get(UVLOOP)) is not None:
        on_uvloop(uvloop)


def on_uvloop(module: ModuleType) -> None:
    """Guard on the loop of uvloop, *module*, what is guarded on those of asyncio.
    `reaper.run` calls this when the program has imported uvloop.
    """
    if _FACTORIES and (kind := getattr(module, "Loop", None)) is not None:
        _wrap(kind, BY_ADDRESS, BY_PATH)


def _wrap(kind: Any, *names: str) -> None:
    if kind not in _LOOPS:
        _LOOPS.append(kind)
        for name in names:
            around(kind, name)(_meeting)


def _meeting(create_server: Any) -> Any:
    from ..asyncio.reaper import reaper_of
    from ..asyncio.tls import create_server as created

    async def instead(loop: Any, protocol_factory: Any, *arguments: Any, **options: Any) -> Any:
        for kind in _FACTORIES:
            if kind.means(protocol_factory):
                if options.get("ssl_handshake_timeout") == kind.handshake:
                    options.pop("ssl_handshake_timeout", None)
                load = kind.visit.host.load
                made = await created(
                    functools.partial(create_server, loop),
                    kind.wrap(protocol_factory),
                    options,
                    load().timeouts.handshake,
                    functools.partial(reaper_of, config=load),
                    *arguments,
                )
                if kind.says:
                    kind.visit.listens(made.sockets, keep_alive=kind.own(protocol_factory))
                return made
        return await create_server(loop, protocol_factory, *arguments, **options)

    return instead
