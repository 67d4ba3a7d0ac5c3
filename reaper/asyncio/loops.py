"""Event loops that guard every server started on them: for servers that let in nothing but a loop.

The rule of this module: *what a server says itself is respected*. Only what it leaves open is filled in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..config.settings import ReaperConfig
from ..driver.watched import check_idle
from .protocols import guard

Options = dict[str, Any]
Wrap = Callable[[Callable[[], Any]], Callable[[], Any]]


def loop_factory(
    idle: float | None = None,
    handshake: float | None = None,
    base: type[asyncio.AbstractEventLoop] | None = None,
    wrap: Wrap | None = None,
) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes loops on which `create_server` guards: `asyncio.Runner(loop_factory=...)`, or a server's own setting.

    Args:
        idle: As in `guard`: seconds in which nothing moves on a connection; None: connections are not guarded.
        handshake: Seconds for a TLS handshake, which asyncio gives 60; None: `timeouts.handshake`, 10 s by default.
        base: The class of loop; None: uvloop's if it is installed, else asyncio's.
        wrap: Instead of `guard` with *idle*: given a protocol factory, returns the one to use.
    Raises:
        InvalidArgument: idle is NaN, negative or infinite.
    """
    kind: Any = default_loop() if base is None else base
    check_idle(idle)
    seconds = ReaperConfig().timeouts.handshake if handshake is None else handshake

    class Loop(kind):  # type: ignore[misc]
        """A loop that guards what is served on it."""

        async def create_server(self, protocol_factory: Any, *arguments: Any, **options: Any) -> Any:
            """As the loop's own."""
            if wrap is not None:
                protocol_factory = wrap(protocol_factory)
            elif idle is not None:
                protocol_factory = guard(protocol_factory, idle)
            return await super().create_server(protocol_factory, *arguments, **_filled(options, seconds))

    return Loop


def default_loop() -> type[asyncio.AbstractEventLoop]:
    """uvloop's if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop
    return uvloop.Loop


def _filled(options: Options, handshake: float) -> Options:
    if options.get("ssl") is None or options.get("ssl_handshake_timeout") is not None or not handshake:
        return options
    return {**options, "ssl_handshake_timeout": handshake}
