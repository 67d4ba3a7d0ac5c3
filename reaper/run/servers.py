"""The servers that `reaper run` guards from inside: what it changes in each, and which versions of
them the tests ran.

One rule: *what a server can be told is told, and only the rest is wrapped*. uvicorn has a setting
for it (`http=`), gunicorn another (the worker class), websockets a third (`create_connection=`).
Where a server has none, the one method that meets every connection is wrapped.

What a guest may change here: the names that the table `SERVERS` lists, in the process that imported
the server, and only after each of these names has been found. A server that lacks one of them is
left alone, and a line on stderr says so; `--strict` ends the program with status 2 instead. An
exception in here never reaches the program.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from ..config.effects import said, without_effect
from ..errors import one_line
from . import report

PACKAGE = __name__.partition(".")[0]
"""The name of this library in this process: `_idle_reaper` where the hook has imported it."""

HTTP = ("first_byte", "headers", "body", "keep_alive", "write", "tunnel", "vanished")
"""The timeouts that hold for an HTTP server."""
SOCKETS = ("tunnel", "vanished")
"""The timeouts that hold for a server of WebSockets and nothing else."""


@dataclass(frozen=True)
class Server:
    """A server that can be guarded from inside.

    Attributes:
        name: Its name on PyPI.
        tested: The lowest and the highest version that the tests ran, both inclusive.
        module: `change` is called when the program has imported this module.
        uses: The names in the module that are changed, or used although they are private; dots
            lead into a class. Nothing is changed unless all of them are there.
        change: Makes the change; called with the module and this object.
        limits: The timeouts that hold afterwards.
        own: Timeouts that stay the server's own unless they are set here, and where it has them
            from.
        columns: Its kinds in `config.effects`; empty: its name is the only one.
        note: Which of its kinds are guarded, for people; empty: all.
    """

    name: str
    tested: tuple[str, str]
    module: str
    uses: tuple[str, ...]
    change: Callable[[ModuleType, Server], None]
    limits: tuple[str, ...] = HTTP
    own: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    note: str = ""

    def guard(self, module: ModuleType, *, strict: bool) -> None:
        """Change *module*, which has just been imported.

        Raises:
            SystemExit: it does not fit, and *strict* is set.
        """
        try:
            if why := self.misfit(module, strict=strict):
                self._refuse(why, strict=strict)
            else:
                self.change(module, self)
        except Exception as error:  # the program goes on without us
            self._refuse(f"{type(error).__name__}: {one_line(error)}", strict=strict)

    def misfit(self, module: ModuleType, *, strict: bool) -> str:
        """Why *module* cannot be guarded; empty if it can."""
        lost = [name for name in self.uses if not _has(module, name)]
        if lost:
            return f"it has no {', '.join(lost)}; tested with {self.range}"
        if strict and not _within(self.version, self.tested):
            return f"tested with {self.range}"
        return ""

    def _refuse(self, why: str, *, strict: bool) -> None:
        if strict:
            report.refuse(f"{self} does not fit: {why}")
        report.left_alone(str(self), why)

    @property
    def version(self) -> str:
        """The version that is installed; empty if none is."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return ""

    @property
    def range(self) -> str:
        """The versions that were tested, in words."""
        return " to ".join(dict.fromkeys(self.tested))

    def in_force(self) -> Mapping[str, float]:
        """The timeouts that hold for this server, in seconds; 0 is off."""
        timeouts = report.load().timeouts
        return {name: getattr(timeouts, name) for name in self.limits}

    def listens(self, sockets: Iterable[Any], column: str = "", **known: float) -> None:
        """Say that the server listens on *sockets*, guarded, and what is set and does nothing in it.

        Args:
            sockets: Its listening sockets.
            column: Which of its `kinds` it is; empty: the first.
            known: Timeouts that are the server's own and hold instead of ours, in seconds.
        """
        vain = said(without_effect(report.load(), [column or self.kinds[0]]))
        report.guarded(str(self), sockets, {**self.in_force(), **known}, vain)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its names in `config.effects`."""
        return self.columns or (self.name,)

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


def _has(module: ModuleType, path: str) -> bool:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:  # which has attributes of its own
            return False
    return True


def _within(found: str, tested: tuple[str, str]) -> bool:
    return _parts(tested[0]) <= _parts(found) <= _parts(tested[1])


def _parts(text: str) -> tuple[int, ...]:
    numbers = (part for part in text.replace("-", ".").split("."))
    return tuple(int(part) for part in numbers if part.isdigit())


def around(kind: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replace the method *name* of the class *kind* by the decorated function.

    The function is called with the original method, and then with the arguments of the call. What
    was a coroutine function stays one.
    """

    def decorate(instead: Callable[..., Any]) -> None:
        method = getattr(kind, name)
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def awaited(*arguments: Any, **options: Any) -> Any:
                return await instead(method, *arguments, **options)

            setattr(kind, name, awaited)
            return

        @functools.wraps(method)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            return instead(method, *arguments, **options)

        setattr(kind, name, wrapped)

    return decorate


def after(kind: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Have the decorated function called each time the method *name* of *kind* has returned.

    The function is called with the result, and then with the arguments of the call.
    """

    def decorate(then: Callable[..., Any]) -> None:
        @around(kind, name)
        def both(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            then(result, *arguments, **options)
            return result

    return decorate


# ---- uvicorn: told by Config.http, as its command line is by --http

UVICORN_HTTP = {"auto": "Auto", "httptools": "HttpTools", "h11": "H11"}


def _uvicorn_config(module: ModuleType, server: Server) -> None:
    @after(module.Config, "__init__")
    def told(_: None, config: Any, *__: Any, **___: Any) -> None:
        name = UVICORN_HTTP.get(config.http) if isinstance(config.http, str) else None
        http2 = config.http == "zttp" and bool(getattr(config, "http2", False))
        if http2:
            name = "Http2"
        if name is None:
            if "reaper" not in repr(config.http):
                report.left_alone(
                    str(server),
                    f"its protocol is {config.http!r}, not one of {', '.join(UVICORN_HTTP)}, "
                    "or zttp with HTTP/2",
                )
            return
        from ..servers.uvicorn.names import missing

        try:
            lost = missing(http2=http2)
        except ImportError:
            return  # uvicorn says what its HTTP/2 needs
        if lost:
            report.left_alone(
                str(server), f"it has no {', '.join(lost)}; tested with {server.range}"
            )
            return
        config.http = f"{PACKAGE}.uvicorn:{name}"
        if http2:
            config.http2 = False  # uvicorn refuses it beside any class but its own
        if config.loop == "auto":  # bounds TLS handshakes; a loop that was asked for stays
            config.loop = f"{PACKAGE}.uvicorn:loop"


def _uvicorn_server(module: ModuleType, server: Server) -> None:
    @around(module.Server, "startup")
    async def startup(method: Callable[..., Any], self: Any, sockets: Any = None) -> None:
        await method(self, sockets=sockets)
        if "reaper" in f"{self.config.http_protocol_class.__module__}":
            own = (
                {}
                if report.is_set("keep_alive")
                else {"keep_alive": self.config.timeout_keep_alive}
            )
            server.listens(
                sockets or [sock for each in getattr(self, "servers", ()) for sock in each.sockets],
                **own,
            )


# ---- gunicorn: told by its worker class, as its command line is by -k

GUNICORN = {
    "gunicorn.workers.gasgi.ASGIWorker": "ASGIWorker",
    "gunicorn.workers.gthread.ThreadWorker": "ThreadWorker",
}


GUNICORN_COLUMNS = {"ASGIWorker": "gunicorn-asgi", "ThreadWorker": "gunicorn-gthread"}


def is_ours(kind: Any) -> bool:
    """Whether *kind* is a class of this library: of this copy, or of the one the program imports."""
    return kind.__module__.partition(".")[0] in (PACKAGE, "reaper")


def _gunicorn_config(module: ModuleType, server: Server) -> None:
    read = module.Config.worker_class.fget
    how, said = os.environ.get(report.RUN), set[type]()

    def worker_class(self: Any) -> Any:
        found = read(self)
        name = GUNICORN.get(f"{found.__module__}.{found.__qualname__}")
        if name is None:
            guards = is_ours(found) or found.__module__.startswith("uvicorn")
            # Where somebody watches from outside, he says what becomes of it.
            alone = how == report.STRICT_INSIDE or not os.environ.get(report.ADDRESS)
            if not guards and alone and found not in said:
                said.add(found)  # gunicorn reads the class again and again
                kind = f"{server}'s worker {found.__qualname__}"
                report.left_alone(kind, "-k asgi or gthread can be, from inside")
            return found
        try:
            from .. import gunicorn

            return getattr(gunicorn, name)
        except Exception as error:  # gunicorn goes on with its own
            report.left_alone(f"{server}'s {name}", one_line(error))
            return found

    module.Config.worker_class = property(worker_class, doc=module.Config.worker_class.__doc__)


def _gunicorn_worker(module: ModuleType, server: Server) -> None:
    @around(module.Worker, "init_process")
    def init_process(method: Callable[..., Any], self: Any) -> None:
        kind = type(self)
        if is_ours(kind) and kind.__name__ in GUNICORN.values():
            own = getattr(self, "own_keep_alive", self.cfg.keepalive)
            known = {} if report.is_set("keep_alive") or not own else {"keep_alive": float(own)}
            column = GUNICORN_COLUMNS[kind.__name__]
            server.listens((each.sock for each in self.sockets), column, **known)
        method(self)  # this returns when the worker has ended


# ---- websockets: told by create_connection=


def _websockets(module: ModuleType, server: Server) -> None:
    # Until version 16 `serve` is a class, whose objects are awaited; then it is a function.
    kind, name = (module.serve, "__init__") if isinstance(module.serve, type) else (module, "serve")

    @around(kind, name)
    def serve(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if options.get("create_connection") is None:
            options["create_connection"] = _configured()
        return method(*arguments, **options)

    # The server is met where it gets its sockets: 17 awaits them, 14 to 16 wrap asyncio's server.
    if hasattr(module.Server, "wrap"):

        @after(module.Server, "wrap")
        def wrapped(_: None, __: Any, inner: Any) -> None:
            server.listens(inner.sockets)

    else:

        @around(module.Server, "_await")
        async def awaited(method: Callable[..., Any], self: Any) -> Any:
            result = await method(self)
            server.listens(self.sockets)
            return result


def _configured() -> type[Any]:
    """The guarded connection, by the settings of `reaper run` and not by the defaults."""
    from ..websockets import connection

    class Configured(connection()):  # type: ignore[misc]  # made anew for each server
        def connection_made(self, transport: Any) -> None:
            from .phases import reaper

            self.reaper = reaper()  # of the loop that runs now; there may be none yet in `serve`
            super().connection_made(transport)

    return Configured


# ---- aiohttp, Sanic: their factory meets the loop

Wrap = Callable[[Any], Any]
_FACTORIES: list[tuple[Callable[[Any], bool], Wrap, Server]] = []
"""For each server that gives asyncio a protocol factory: what recognises the factory, what guards
it, and the server. `create_server` of every loop looks here.
"""


def _on_loops(means: Callable[[Any], bool], wrap: Wrap, server: Server) -> None:
    """Guard the protocol factories for which *means* is true, on every asyncio loop."""
    if not _FACTORIES:
        from asyncio.base_events import BaseEventLoop

        kinds: list[Any] = [BaseEventLoop]
        with suppress(ImportError):
            from uvloop import Loop

            kinds.append(Loop)
        for kind in kinds:
            around(kind, "create_server")(_meeting)
    _FACTORIES.append((means, wrap, server))


async def _meeting(
    create_server: Any, loop: Any, protocol_factory: Any, *arguments: Any, **options: Any
) -> Any:
    for means, wrap, server in _FACTORIES:
        if means(protocol_factory):
            made = await create_server(loop, wrap(protocol_factory), *arguments, **options)
            server.listens(made.sockets)
            return made
    return await create_server(loop, protocol_factory, *arguments, **options)


def _aiohttp(module: ModuleType, server: Server) -> None:
    def guard(factory: Any) -> Any:
        from ..servers.aiohttp import guard as guarded
        from .phases import reaper

        return guarded(factory, reaper=reaper())

    _on_loops(lambda factory: isinstance(factory, module.Server), guard, server)


def _aiohttp_runner(module: ModuleType, server: Server) -> None:
    @after(module.AppRunner, "__init__")
    def told(_: None, runner: Any, app: Any, *__: Any, **___: Any) -> None:
        from ..servers import aiohttp

        config = report.load()
        if runner._shutdown_timeout == aiohttp.OWN_GRACE:
            runner._shutdown_timeout = config.timeouts.drain
        with suppress(RuntimeError):  # another runner has started the application
            aiohttp.end_streams(app, config)


def _sanic(module: ModuleType, server: Server) -> None:
    def means(factory: Any) -> bool:
        made = getattr(factory, "func", factory)
        return isinstance(made, type) and issubclass(made, module.HttpProtocol)

    def guard(factory: Any) -> Any:
        from ..servers import polled
        from . import phases

        return polled.guard(factory, phases.sanic, reaper=phases.reaper())

    _on_loops(means, guard, server)


# ---- hypercorn, tornado, Twisted: the method that meets every connection


def _hypercorn(module: ModuleType, server: Server) -> None:
    @around(module.TCPServer, "run")
    async def run(method: Callable[..., Any], self: Any) -> None:
        from ..servers.hypercorn import stand_around
        from .phases import forget, reaper, watch_hypercorn

        if watch_hypercorn(self):
            stand_around(self, reaper())
            try:
                await method(self)
            finally:
                forget(self)

    _hypercorn_changes(module, server)


def _hypercorn_trio(module: ModuleType, server: Server) -> None:
    from .phases_trio import guarded_run

    around(module.TCPServer, "run")(guarded_run)
    _hypercorn_changes(module, server)


def _hypercorn_changes(module: ModuleType, server: Server) -> None:
    """What is changed in both flavours alike."""
    from hypercorn.config import Config

    from ..servers.http2.hypercorn import close, guard
    from ..servers.hypercorn import hear

    around(module.TCPServer, "_initiate_server_close")(close)
    guard(around)
    if report.load().timeouts.abandoned:
        hear(around)

    if hasattr(Config.create_sockets, "__wrapped__"):
        return  # the other flavour has wrapped it

    @after(Config, "create_sockets")
    def told(sockets: Any, config: Any, *_: Any) -> None:
        own = {} if report.is_set("keep_alive") else {"keep_alive": config.keep_alive_timeout}
        server.listens([*sockets.secure_sockets, *sockets.insecure_sockets], **own)


def _tornado(module: ModuleType, server: Server) -> None:
    from tornado.tcpserver import TCPServer

    from . import phases

    @after(module.HTTP1Connection, "__init__")
    def noted(_: None, conn: Any, stream: Any, is_client: bool, *__: Any, **___: Any) -> None:
        if not is_client:
            phases.note_tornado(conn, stream)

    @after(TCPServer, "add_sockets")
    def told(_: None, __: Any, sockets: Iterable[Any]) -> None:
        server.listens(sockets)


def _twisted(module: ModuleType, server: Server) -> None:
    from . import phases

    def on_asyncio(which: Any) -> bool:
        """Whether the reactor of *which* is a loop of asyncio; the default one has no clock of ours."""
        return hasattr(which.reactor, "_asyncioEventloop")

    @after(module.Server, "__init__")
    def met(_: None, transport: Any, *__: Any, **___: Any) -> None:
        if on_asyncio(transport):
            phases.watch_twisted(transport)

    @after(module.Port, "startListening")
    def told(_: None, port: Any) -> None:
        if on_asyncio(port):
            server.listens([port.socket])


HYPERCORNS = "keep_alive_timeout, 5s unless given"

SERVERS: tuple[Server, ...] = (
    Server(
        "uvicorn",
        ("0.36.0", "0.54.0"),
        "uvicorn.config",
        ("Config.__init__",),
        _uvicorn_config,
    ),
    Server(
        "uvicorn",
        ("0.36.0", "0.54.0"),
        "uvicorn.server",
        ("Server.startup",),
        _uvicorn_server,
        own={"keep_alive": "--timeout-keep-alive, 5s unless given"},
    ),
    Server(
        "gunicorn",
        ("27.0.1", "27.0.1"),
        "gunicorn.config",
        ("Config.worker_class.fget",),
        _gunicorn_config,
        columns=("gunicorn-asgi", "gunicorn-gthread", "gunicorn-uvicorn"),
    ),
    Server(
        "gunicorn",
        ("27.0.1", "27.0.1"),
        "gunicorn.workers.base",
        ("Worker.init_process",),
        _gunicorn_worker,
        columns=("gunicorn-asgi", "gunicorn-gthread", "gunicorn-uvicorn"),
        note="with the workers asgi, gthread and uvicorn's; the others from outside",
    ),
    Server("aiohttp", ("3.12", "3.14.5"), "aiohttp.web_server", ("Server",), _aiohttp),
    Server(
        "aiohttp",
        ("3.12", "3.14.5"),
        "aiohttp.web_runner",
        ("AppRunner.__init__",),
        _aiohttp_runner,
    ),
    Server(
        "sanic",
        ("25.12.1", "25.12.1"),
        "sanic.server.protocols.http_protocol",
        ("HttpProtocol",),
        _sanic,
    ),
    Server(
        "hypercorn",
        ("0.18.0", "0.18.0"),
        "hypercorn.asyncio.tcp_server",
        ("TCPServer.run", "TCPServer._initiate_server_close"),
        _hypercorn,
        own={"keep_alive": HYPERCORNS},
    ),
    Server(
        "hypercorn",
        ("0.18.0", "0.18.0"),
        "hypercorn.trio.tcp_server",
        ("TCPServer.run", "TCPServer._initiate_server_close"),
        _hypercorn_trio,
        own={"keep_alive": HYPERCORNS},
        columns=("hypercorn-trio",),
    ),
    Server(
        "tornado", ("6.6.1", "6.6.1"), "tornado.http1connection", ("HTTP1Connection",), _tornado
    ),
    Server(
        "twisted",
        ("26.10.0", "26.10.0"),
        "twisted.internet.tcp",
        ("Server", "Port.startListening"),
        _twisted,
    ),
    Server(
        "websockets",
        ("14.0", "17.4"),
        "websockets.asyncio.server",
        ("serve", "Server"),
        _websockets,
        SOCKETS,
    ),
)
"""Every server, in the order of docs/run.md. A server that is changed in two modules stands here
twice. `hook/sitecustomize.py` holds the names of the modules once more.
"""
