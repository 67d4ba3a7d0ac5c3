"""The factories of servers that let nobody change them, over TLS."""

from __future__ import annotations

import asyncio
import ssl
import sys
from asyncio import sslproto
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from reaper.asyncio import tls
from reaper.asyncio.tls import Door
from reaper.config import ReaperConfig
from reaper.servers import factories

CONFIG = ReaperConfig.load(environ={}, overrides={"timeouts.handshake": "7s"})


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, None),
        ({"ssl": True}, 7.0),
        ({"ssl": True, "ssl_handshake_timeout": 3.0}, 3.0),
        ({"ssl": True, "ssl_handshake_timeout": 60}, 7.0),  # the server's default
    ],
)
def test_a_handshake_has_our_limit_unless_the_server_names_one(
    options: dict[str, Any], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    said: list[Any] = []

    async def create_server(loop: Any, factory: Any, **rest: Any) -> Any:
        given.append((factory(), rest))
        return SimpleNamespace(sockets=[])

    def listens(sockets: Any, keep_alive: float | None = None) -> None:
        said.append(sockets)

    visit: Any = SimpleNamespace(host=SimpleNamespace(load=lambda: CONFIG), listens=listens)
    kind = factories.Kind(lambda factory: True, lambda factory: factory, visit, handshake=60)
    monkeypatch.setattr(factories, "_FACTORIES", [kind])
    if "ssl" in options:
        options = options | {"ssl": ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)}

    async def main() -> None:
        await factories._meeting(create_server)(
            asyncio.get_running_loop(), asyncio.Protocol, **options
        )

    asyncio.run(main())
    (made, rest), *_ = given
    assert rest == {}
    assert (made._handshakes.seconds if isinstance(made, Door) else None) == seconds
    assert said == [[]]


def test_where_asyncios_protocol_for_tls_is_gone_the_loop_bounds_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sslproto, "SSLProtocol")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    given: list[Any] = []

    async def create(factory: Any, **options: Any) -> None:
        given.append((factory, options))

    async def main() -> None:
        await tls.create_server(create, asyncio.Protocol, {"ssl": context}, 7.0, Mock())

    asyncio.run(main())
    bound = {"ssl": context, "ssl_handshake_timeout": 7.0}
    assert given == [(asyncio.Protocol, bound)]


def test_the_loop_of_uvloop_is_met_once_whichever_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Loop:
        async def create_server(self) -> None: ...

        async def create_unix_server(self) -> None: ...

    uvloop: Any = SimpleNamespace(Loop=Loop)
    stock, by_path = Loop.create_server, Loop.create_unix_server
    for name in ("_FACTORIES", "_LOOPS"):
        monkeypatch.setattr(factories, name, [])
    factories.on_uvloop(uvloop)
    assert Loop.create_server is stock, "nobody is guarded yet"
    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "create_server", stock)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "create_unix_server", by_path)
    for _ in range(2):
        monkeypatch.setitem(sys.modules, "uvloop", uvloop)
        factories.on_loops(lambda factory: False, lambda factory: factory, None)
        factories.on_uvloop(uvloop)
        assert Loop.create_server.__wrapped__ is stock  # type: ignore[attr-defined]
        assert Loop.create_unix_server.__wrapped__ is by_path  # type: ignore[attr-defined]


def test_uvloop_is_not_imported_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FACTORIES", "_LOOPS"):
        monkeypatch.setattr(factories, name, [])
    kind, by_path = asyncio.base_events.BaseEventLoop, asyncio.SelectorEventLoop
    monkeypatch.setattr(kind, "create_server", kind.create_server)
    monkeypatch.setattr(by_path, "create_unix_server", by_path.create_unix_server)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    factories.on_loops(lambda factory: False, lambda factory: factory, None)
    assert [kind, by_path] == factories._LOOPS
