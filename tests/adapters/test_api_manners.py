"""What is wrong with a call is said at once, by name and value; and what an object is,
its repr says.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import pydoc
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import reaper
import reaper.asyncio
import reaper.trio
import reaper.websockets
from reaper import InvalidArgument
from reaper.asyncio import start_server
from reaper.asyncio.guards import guarded as guarding
from reaper.attach import Guard
from reaper.driver.driver import Driver
from reaper.driver.options import Options, _warn_of_a_coarse_tick
from reaper.driver.watched import check_probe
from reaper.trio import serve_parked, serve_tcp
from tests.helpers.loops import Asyncio, Trio
from tests.helpers.streams import SECONDS

SOON = 5.0
"""Seconds within which even a busy machine refuses."""


async def handler(stream: Any) -> None:
    """Ends at once."""


def sync(connection: object) -> None:
    """No async function."""


def refusal(name: str) -> Any:
    """InvalidArgument itself is raised, in no group, and its message begins with
    *name*.
    """
    return pytest.raises(reaper.InvalidArgument, match=rf"^{name} must be .*, got ")


def refused(name: str, call: Callable[[], object]) -> None:
    with refusal(name):
        call()


WATCH: list[tuple[str, dict[str, Any]]] = [
    *(("idle", {"idle": bad}) for bad in (-1, "30s", math.nan, math.inf, True)),
    ("probe", {"probe": 3}),
    ("probe", {"probe": sync}),
    ("grace", {"probe": handler, "grace": 0}),
    ("reason", {"reason": 3}),
]
MADE: list[tuple[str, dict[str, Any]]] = [
    ("config", {"config": "reaper.toml"}),
    ("idle", {"idle": -1}),
    ("tick", {"tick": 0}),
    ("tick", {"tick": "500ms"}),
    ("wheel_size", {"wheel_size": "64"}),
    ("wheel_size", {"wheel_size": 1}),
    ("journal", {"journal": "directory"}),
    ("listener", {"listener": 8080}),
    ("jitter", {"jitter": 2}),
    ("reaps_per_second", {"reaps_per_second": -1}),
    ("seed", {"seed": []}),
]


def of_asyncio(**wrong: Any) -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        reaper.asyncio.AsyncioReaper(loop=loop, **wrong)


def guarded(**options: Any) -> None:
    reaper.asyncio.guard(asyncio.Protocol, **options)


@pytest.mark.parametrize(
    ("name", "make", "wrong"),
    [
        *(
            (name, make, wrong)
            for make in (
                *(reaper.trio.TrioReaper, reaper.trio.open_reaper),
                *(of_asyncio, reaper.asyncio.open_reaper, guarded),
            )
            for name, wrong in MADE
        ),
        ("tame_gc", reaper.trio.open_reaper, {"tame_gc": 1}),
        ("tame_gc", reaper.asyncio.open_reaper, {"tame_gc": 1}),
        ("handshake", reaper.asyncio.loop_factory, {"handshake": "10s"}),
        ("config", reaper.asyncio.loop_factory, {"config": "reaper.toml"}),
        ("wrap", reaper.asyncio.loop_factory, {"wrap": 3}),
        ("idle", reaper.websockets.connection, {"idle": -1}),
        ("reaper", reaper.websockets.connection, {"reaper": 3}),
        ("protocol_factory", reaper.asyncio.guard, {"protocol_factory": None}),
        ("idle", reaper.asyncio.guard, {"protocol_factory": asyncio.Protocol, "idle": -5}),
        ("busy", reaper.asyncio.guard, {"protocol_factory": asyncio.Protocol, "busy": 3}),
        ("reaper", reaper.asyncio.guard, {"protocol_factory": asyncio.Protocol, "reaper": 3}),
        ("idle", reaper.asyncio.loop_factory, {"idle": -1}),
    ],
)
def test_a_reaper_or_a_guard_refuses_a_wrong_argument_before_a_connection_comes(
    name: str, make: Callable[[], object], wrong: dict[str, Any]
) -> None:
    refused(name, lambda: make(**wrong))


def test_the_reapers_and_their_doors_have_the_same_names_and_take_the_same_arguments() -> None:
    def taken(door: Callable[..., object], but: set[str]) -> dict[str, tuple[object, object]]:
        found = inspect.signature(door).parameters.items()
        return {name: (each.default, each.annotation) for name, each in found if name not in but}

    wanted = taken(Driver, {"clock", "wake", "probe"})
    assert taken(reaper.trio.TrioReaper, set()) == wanted
    assert taken(reaper.trio.open_reaper, {"tame_gc"}) == wanted
    assert taken(reaper.asyncio.AsyncioReaper, {"loop"}) == wanted
    assert taken(reaper.asyncio.open_reaper, {"tame_gc"}) == wanted
    options = taken(Driver, {"clock", "wake", "probe", "config", "idle"})
    assert set(options) == set(Options.__annotations__)
    for door in (serve_tcp, serve_parked, start_server, reaper.asyncio.guard):
        assert {"config", "idle"} <= set(taken(door, set()))
        assert options.items() <= taken(door, set()).items(), door
    names = [set(adapter.__all__) for adapter in (reaper.trio, reaper.asyncio)]
    assert max(map(len, names)) <= 15  # no more than a reader holds
    assert {
        "open_reaper",
        "Connection",
        "Probe",
        "LoopStatistics",
        "journal_clock",
    } <= set.intersection(*names)


@pytest.mark.parametrize("kind", [reaper.trio.Connection, reaper.asyncio.Connection])
def test_help_says_what_each_attribute_of_a_connection_is(kind: type) -> None:
    plain = vars(pydoc)["plaintext"]  # typeshed does not know it
    said = pydoc.render_doc(kind, renderer=plain)
    assert "Why the reaper ended it" in said
    assert "Seconds that the peer has" in said


@pytest.mark.trio
async def test_an_unknown_option_is_a_type_error_that_names_the_known_ones() -> None:
    wrong: dict[str, Any] = {"ticks": 1}
    for make in (
        reaper.trio.TrioReaper,
        lambda **wrong: reaper.asyncio.guard(asyncio.Protocol, **wrong),
    ):
        with pytest.raises(TypeError, match="'ticks'; the options are config, idle, tick, "):
            make(**wrong)
    for door in (reaper.trio.open_reaper, reaper.asyncio.open_reaper):
        with pytest.raises(TypeError, match="config, idle, tame_gc, tick, "):
            door(**wrong)


def test_a_server_of_asyncio_with_options_is_watched_by_a_reaper_of_its_own() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        options: Any = {"idle": 0.2, "tick": 0.05}
        servers = [await start_server(handler, "127.0.0.1", 0, **options) for _ in range(2)]
        servers.append(
            await loop.create_server(
                reaper.asyncio.guard(asyncio.Protocol, **options), "127.0.0.1", 0
            )
        )
        for server in servers:
            async with server, asyncio.timeout(SECONDS):
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                assert await reader.read() == b""
                writer.close()
        with pytest.raises(InvalidArgument, match="reaper must be None where tick is given"):
            reaper.asyncio.guard(asyncio.Protocol, reaper=reaper.asyncio.AsyncioReaper(), tick=1)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reapers.append(reader.connection._driver)  # type: ignore[attr-defined]
        await reader.read()

    reapers: list[Driver] = []
    asyncio.run(main())
    assert [driver.core.tick for driver in reapers] == [0.05, 0.05]
    assert reapers[0] is not reapers[1]


@pytest.mark.parametrize(("name", "wrong"), [*WATCH, (None, {})])
@pytest.mark.parametrize("kind", [Trio, Asyncio])
def test_a_watch_refuses_a_wrong_argument(
    kind: type[Trio | Asyncio], name: str | None, wrong: dict[str, Any]
) -> None:
    loop = kind()

    async def body() -> None:
        async with loop.adapter.open_reaper() as r:
            if name is None:
                refused("stream" if kind is Trio else "transport", lambda: r.watch("x"))
            else:
                refused(name, lambda: r.watch(None, **wrong))
            assert len(r) == 0
            if kind is Trio and name in (
                "probe",
                "grace",
            ):  # at once, and not at the first connection
                refused(name, lambda: r.watched(handler, 5, **wrong))
                refused("handler", lambda: r.watched(None, 5))

    loop.run(body)


class Pinging:
    async def __call__(self, connection: object) -> None: ...


@pytest.mark.parametrize(
    "probe", [handler, partial(handler), Pinging(), lambda connection: handler(connection)]
)
def test_whatever_gives_an_awaitable_is_a_probe(probe: Any) -> None:
    check_probe(probe)


@pytest.mark.trio
async def test_a_watch_takes_every_kind_of_socket_and_finds_its_descriptor() -> None:
    async with reaper.trio.open_reaper() as r:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            trios = trio.socket.from_stdlib_socket(ours.dup())
            with (
                r.watch(ours) as one,
                r.watch(trios) as two,
                r.watch(trio.SocketStream(trios)) as three,
            ):
                assert one.descriptor == ours.fileno()
                assert two.descriptor == three.descriptor == trios.fileno()
            trios.close()
        stream, _ = trio.testing.memory_stream_pair()
        with r.watch(stream) as memory:
            assert memory.descriptor == -1


@pytest.mark.parametrize("kind", [Trio, Asyncio])
def test_a_reaper_that_does_not_run_refuses_what_it_would_never_close(
    kind: type[Trio | Asyncio],
) -> None:
    async def body() -> None:
        async with loop.adapter.open_reaper() as ended:
            pass
        made = reaper.trio.TrioReaper() if kind is Trio else reaper.asyncio.AsyncioReaper()
        for r, hint in (
            (made, "start"),
            (ended, "its block is over" if kind is Trio else "it was stopped"),
        ):
            for call in (lambda r=r: r.watch(None, 5), lambda r=r: r.register("uid", 5.0)):
                with pytest.raises(RuntimeError, match=rf"would never close anything: {hint}"):
                    call()

    loop = kind()
    loop.run(body)


def test_a_protocol_refuses_a_wrong_idle_when_its_class_is_made() -> None:
    refused("idle", lambda: type("Mine", (reaper.asyncio.Protocol,), {"idle": -1}))


def test_a_guard_that_can_watch_nothing_says_so_where_asyncio_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_reaper() -> reaper.asyncio.AsyncioReaper:
        raise RuntimeError("no psutil")

    make = guarding(asyncio.Protocol, lambda *_: pytest.fail("it has no reaper"), no_reaper)
    assert type(make()) is asyncio.Protocol
    assert caplog.messages == ["no connection can be guarded: no psutil"]


@pytest.mark.parametrize(
    ("serve", "name", "wrong"),
    [
        *(
            (serve, name, wrong)
            for serve in (serve_tcp, start_server)
            for name, wrong in WATCH[:-1]
        ),
        (serve_tcp, "handler", {"handler": None}),
        *(
            (serve, name, wrong)
            for serve in (serve_tcp, serve_parked, start_server)
            for name, wrong in MADE
        ),
        (serve_parked, "linger", {"linger": -1}),
        (serve_parked, "handler", {"handler": 3}),
        (start_server, "client_connected_cb", {"client_connected_cb": 3}),
        (start_server, "reaper", {"reaper": 3}),
        (start_server, "limit", {"limit": 0}),
    ],
)
def test_a_server_refuses_a_wrong_argument_before_it_listens(
    serve: Callable[..., Awaitable[object]], name: str, wrong: dict[str, Any]
) -> None:
    of_trio = serve is not start_server
    arguments = {
        "handler" if of_trio else "client_connected_cb": handler,
        "port": 0,
        "host": "127.0.0.1",
        **wrong,
    }

    async def main() -> None:
        with (
            refusal(name),
            trio.fail_after(SOON) if of_trio else nullcontext(),
        ):  # it would serve for ever
            await serve(**arguments)

    if of_trio:
        trio.run(main)
    else:
        asyncio.run(main())


@pytest.mark.trio
@pytest.mark.parametrize("serve", [serve_tcp, serve_parked])
async def test_a_port_that_cannot_be_had_is_an_os_error_in_no_group(serve: Any) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
        trio.fail_after(SOON),
    ):
        await serve(handler, taken.getsockname()[1], host="127.0.0.1")


@pytest.mark.parametrize("kind", [Trio, Asyncio])
def test_a_server_probes_before_it_closes(kind: type[Trio | Asyncio]) -> None:
    loop = kind()

    async def reads(stream: Any, writer: object = None) -> None:
        while await (stream.receive_some(9) if writer is None else stream.read(9)):
            pass

    async def ping(connection: Any) -> None:
        os.write(connection.descriptor, b"?")

    async def talk(address: Any) -> None:
        with socket.create_connection(address) as client:
            client.settimeout(SECONDS)
            await loop.sleep(12)
            assert client.recv(9) == b"?"
            client.send(b"!")  # an answer keeps it
            await loop.sleep(12)
            assert client.recv(9) == b"?"
            await loop.sleep(8)  # none: closed
            assert client.recv(9) == b""

    async def body() -> None:
        options: Any = {
            "host": "127.0.0.1",
            "port": 0,
            "idle": 10,
            "tick": 1,
            "probe": ping,
            "grace": 5,
        }
        if kind is Trio:
            async with trio.open_nursery() as nursery:
                (listener,) = await nursery.start(partial(serve_tcp, reads, **options))
                await talk(listener.socket.getsockname())
                nursery.cancel_scope.cancel()
        else:
            async with await start_server(reads, **options) as server:
                await talk(server.sockets[0].getsockname())

    loop.run(body)


@pytest.mark.trio
async def test_a_lease_with_a_small_number_for_its_uid_is_in_no_connections_way() -> None:
    async with reaper.trio.open_reaper() as r:
        leases = [r.register(uid, 60.0) for uid in range(1, 9)]
        with r.watch(None, 5) as one, r.watch(None, 5) as two:
            assert one.uid != two.uid
            assert {one.uid, two.uid}.isdisjoint(range(1, 9))
        assert all(lease.alive for lease in leases)


@pytest.mark.trio
async def test_a_repr_says_what_it_is_and_how_it_is() -> None:
    ring = reaper.IdleRing(timeout_ticks=3)
    ring.add("uid")
    loop = asyncio.new_event_loop()
    with Guard(idle=60) as guard:
        assert list(map(repr, (ring, guard, reaper.asyncio.AsyncioReaper(loop=loop)))) == [
            "<IdleRing timeout_ticks=3 tick=0 uids=1>",
            "<Guard of 0 sockets, 0 closed so far>",
            "<AsyncioReaper tick=1 s, not started, 0 connections>",
        ]
    loop.close()
    assert repr(reaper.Purgatory(reaper.TimingWheel())) == "<Purgatory delayed=0 watched=0>"
    async with reaper.trio.open_reaper(tick=0.25) as r:
        with r.watch(None, 5) as connection:
            assert repr(r.core) == "<IdleReaper tick=0.25 s, 1 registered>"
            assert repr(r) == "<TrioReaper tick=0.25 s, running, 1 connections>"
            assert repr(connection) == "<Connection 1 armed, idle=5.0 s, reason 'idle'>"
        assert repr(connection) == "<Connection 1 ended, reason None>"
    assert "ended, 0 connections" in repr(r)


@pytest.mark.parametrize(
    ("idle", "tick", "said"),
    [(300.0, 60.0, []), (2.0, 3.0, ["tick 3s is not shorter than idle 2s"])],
)
@pytest.mark.parametrize("serve", ["serve_tcp", "serve_parked", "start_server", "guard"])
def test_a_tick_is_compared_with_the_idle_of_the_call_and_not_with_the_default(
    serve: str, idle: float, tick: float, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def on_asyncio() -> None:
        if serve == "guard":
            reaper.asyncio.guard(asyncio.Protocol, idle, tick=tick)
        else:
            (await start_server(lambda *_: None, "127.0.0.1", 0, idle=idle, tick=tick)).close()

    async def on_trio() -> None:
        serving: Any = serve_tcp if serve == "serve_tcp" else serve_parked
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(serving, handler, 0, host="127.0.0.1", idle=idle, tick=tick)
            )
            nursery.cancel_scope.cancel()

    _warn_of_a_coarse_tick.cache_clear()
    trio.run(on_trio) if serve.startswith("serve") else asyncio.run(on_asyncio())
    assert [message.partition(":")[0] for message in caplog.messages] == said


@pytest.mark.anyio
async def test_the_tick_of_a_reaper_that_is_given_is_not_taken_for_the_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _warn_of_a_coarse_tick.cache_clear()
    async with reaper.asyncio.open_reaper(tick=0.1) as r:
        reaper.asyncio.guard(asyncio.Protocol, idle=1.0, reaper=r)
        (await start_server(lambda *_: None, "127.0.0.1", 0, idle=1.0, reaper=r)).close()
    assert not [said for said in caplog.messages if "is not shorter than" in said]
