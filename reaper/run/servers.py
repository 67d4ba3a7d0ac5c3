"""The servers that `reaper run` guards from inside, what it changes in each, and with which
versions that was tested.

One rule: *nothing is changed that can be told*. uvicorn is told by its own `http=`, gunicorn by its
worker class, websockets by `create_connection=`; where a server lets nobody in, the one method that
meets every connection is wrapped. A server without the names used here is left alone, which is
said; `--strict` refuses it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from ..errors import one_line
from . import report

HTTP = ("first_byte", "headers", "body", "keep_alive", "write", "tunnel", "vanished")
"""The timeouts of an HTTP server that is told, or asked."""
SOCKETS = ("tunnel", "vanished")
"""Those of a server of WebSockets."""


@dataclass(frozen=True)
class Server:
    """A server that can be guarded from inside.

    Attributes:
        name: As pip knows it.
        tested: The lowest and the highest version that the tests ran.
        module: When this is imported, `change` is called with it.
        uses: What is changed, or used although it is private, as paths below the package; checked
            before anything is.
        change: Makes the change.
        limits: The timeouts that then hold.
    """

    name: str
    tested: tuple[str, str]
    module: str
    uses: tuple[str, ...]
    change: Callable[[ModuleType, Server], None]
    limits: tuple[str, ...] = HTTP

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
            print(f"reaper run: {self} does not fit: {why}", file=sys.stderr)
            raise SystemExit(2)
        report.left_alone(str(self), why)

    @property
    def version(self) -> str:
        """Of the one that is installed; empty if there is none."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return ""

    @property
    def range(self) -> str:
        """The versions tested, in words."""
        return " to ".join(dict.fromkeys(self.tested))

    def in_force(self) -> Mapping[str, float]:
        """The timeouts that hold here, in seconds."""
        timeouts = report.load().timeouts
        return {name: getattr(timeouts, name) for name in self.limits}

    def listens(self, sockets: Iterable[Any], **known: float) -> None:
        """It serves *sockets*, guarded; *known*: timeouts that are the server's own, in seconds."""
        report.guarded(str(self), sockets, {**self.in_force(), **known})

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


def _has(module: ModuleType, path: str) -> bool:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None


def _within(found: str, tested: tuple[str, str]) -> bool:
    return _parts(tested[0]) <= _parts(found) <= _parts(tested[1])


def _parts(text: str) -> tuple[int, ...]:
    numbers = (part for part in text.replace("-", ".").split("."))
    return tuple(int(part) for part in numbers if part.isdigit())


def around(kind: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Have the decorated function called in the place of *name* of *kind*: with that, and what that
    is called with.
    """

    def decorate(instead: Callable[..., Any]) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            return instead(method, *arguments, **options)

        setattr(kind, name, wrapped)

    return decorate


def after(kind: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Have the decorated function called when *name* of *kind* has returned: with the result and
    the arguments.
    """

    def decorate(then: Callable[..., Any]) -> None:
        @around(kind, name)
        def both(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            then(result, *arguments, **options)
            return result

    return decorate


# ---- uvicorn: told by Config.http, as its command line is by --http
# ------------------------------------------------

UVICORN_HTTP = {"auto": "Auto", "httptools": "HttpTools", "h11": "H11"}


def _uvicorn_config(module: ModuleType, server: Server) -> None:
    @after(module.Config, "__init__")
    def told(_: None, config: Any, *__: Any, **___: Any) -> None:
        name = UVICORN_HTTP.get(config.http) if isinstance(config.http, str) else None
        if name is None:
            if "reaper" not in repr(config.http):
                report.left_alone(
                    str(server),
                    f"its protocol is {config.http!r}, not one of {', '.join(UVICORN_HTTP)}",
                )
            return
        lost = import_module("..servers.uvicorn.names", __package__).missing()
        if lost:
            report.left_alone(
                str(server), f"it has no {', '.join(lost)}; tested with {server.range}"
            )
            return
        config.http = f"reaper.uvicorn:{name}"
        if config.loop == "auto":  # bounds TLS handshakes; a loop that was asked for stays
            config.loop = "reaper.uvicorn:loop"


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
# ----------------------------------------------

GUNICORN = {
    "gunicorn.workers.gasgi.ASGIWorker": "ASGIWorker",
    "gunicorn.workers.gthread.ThreadWorker": "ThreadWorker",
}


def _gunicorn_config(module: ModuleType, server: Server) -> None:
    read = module.Config.worker_class.fget

    def worker_class(self: Any) -> Any:
        found = read(self)
        name = GUNICORN.get(f"{found.__module__}.{found.__qualname__}")
        if name is None:
            return found
        try:
            return getattr(import_module("..gunicorn", __package__), name)
        except Exception as error:  # gunicorn goes on with its own
            report.left_alone(f"{server}'s {name}", one_line(error))
            return found

    module.Config.worker_class = property(worker_class, doc=module.Config.worker_class.__doc__)


def _gunicorn_worker(module: ModuleType, server: Server) -> None:
    @around(module.Worker, "init_process")
    def init_process(method: Callable[..., Any], self: Any) -> None:
        if type(self).__module__.startswith("reaper.") and type(self).__name__ in GUNICORN.values():
            server.listens(each.sock for each in self.sockets)
        method(self)  # it returns when the worker has ended


# ---- websockets: told by create_connection=
# ------------------------------------------------------------------------


def _websockets(module: ModuleType, server: Server) -> None:
    # Until 16 a class, whose objects are awaited; then a function.
    kind, name = (module.serve, "__init__") if isinstance(module.serve, type) else (module, "serve")

    @around(kind, name)
    def serve(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if options.get("create_connection") is None:
            options["create_connection"] = import_module("..websockets", __package__).connection()
        return method(*arguments, **options)

    # Where the server has its sockets: 17 awaits it, 14 to 16 wrap asyncio's.
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


# ---- aiohttp, Sanic: their factory meets the loop
# ------------------------------------------------------------------

Wrap = Callable[[Any], Any]
_FACTORIES: list[tuple[Callable[[Any], bool], Wrap, Server]] = []
"""Which protocol factories are guarded on their way into a loop, and how."""


def _on_loops(means: Callable[[Any], bool], wrap: Wrap, server: Server) -> None:
    """Guard the factories that *means* recognises, on every loop."""
    if not _FACTORIES:
        kinds: list[Any] = [import_module("asyncio.base_events").BaseEventLoop]
        with suppress(ImportError):
            kinds.append(import_module("uvloop").Loop)
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
        reaper = import_module(".phases", __package__).reaper()
        return import_module("..servers.aiohttp", __package__).guard(factory, reaper=reaper)

    _on_loops(lambda factory: isinstance(factory, module.Server), guard, server)


def _sanic(module: ModuleType, server: Server) -> None:
    def means(factory: Any) -> bool:
        made = getattr(factory, "func", factory)
        return isinstance(made, type) and issubclass(made, module.HttpProtocol)

    def guard(factory: Any) -> Any:
        phases = import_module(".phases", __package__)
        return import_module("..servers.polled", __package__).guard(
            factory, phases.sanic, reaper=phases.reaper()
        )

    _on_loops(means, guard, server)


# ---- hypercorn, tornado, Twisted: the method that meets every connection
# -------------------------------------------


def _hypercorn(module: ModuleType, server: Server) -> None:
    @around(module.TCPServer, "run")
    async def run(method: Callable[..., Any], self: Any) -> None:
        import_module(".phases", __package__).watch_hypercorn(self)
        await method(self)

    _hypercorn_reports(server)


def _hypercorn_trio(module: ModuleType, server: Server) -> None:
    around(module.TCPServer, "run")(import_module(".phases_trio", __package__).guarded_run)
    _hypercorn_reports(server)


def _hypercorn_reports(server: Server) -> None:
    config = import_module("hypercorn.config").Config
    if hasattr(config.create_sockets, "__wrapped__"):
        return

    @after(config, "create_sockets")
    def told(sockets: Any, *_: Any) -> None:
        server.listens([*sockets.secure_sockets, *sockets.insecure_sockets])


def _tornado(module: ModuleType, server: Server) -> None:
    phases = import_module(".phases", __package__)
    tcpserver = import_module("tornado.tcpserver")

    @after(module.HTTP1Connection, "__init__")
    def noted(_: None, conn: Any, stream: Any, is_client: bool, *__: Any, **___: Any) -> None:
        if not is_client:
            phases.note_tornado(conn, stream)

    @after(tcpserver.TCPServer, "add_sockets")
    def told(_: None, __: Any, sockets: Iterable[Any]) -> None:
        server.listens(sockets)


def _twisted(module: ModuleType, server: Server) -> None:
    phases = import_module(".phases", __package__)

    @after(module.Server, "__init__")
    def met(_: None, transport: Any, *__: Any, **___: Any) -> None:
        phases.watch_twisted(transport)

    @after(module.Port, "startListening")
    def told(_: None, port: Any) -> None:
        server.listens([port.socket])


SERVERS: tuple[Server, ...] = (
    Server(
        "uvicorn", ("0.36.0", "0.54.0"), "uvicorn.config", ("Config.__init__",), _uvicorn_config
    ),
    Server("uvicorn", ("0.36.0", "0.54.0"), "uvicorn.server", ("Server.startup",), _uvicorn_server),
    Server(
        "gunicorn",
        ("27.0.1", "27.0.1"),
        "gunicorn.config",
        ("Config.worker_class.fget",),
        _gunicorn_config,
    ),
    Server(
        "gunicorn",
        ("27.0.1", "27.0.1"),
        "gunicorn.workers.base",
        ("Worker.init_process",),
        _gunicorn_worker,
    ),
    Server("aiohttp", ("3.12", "3.14.5"), "aiohttp.web_server", ("Server",), _aiohttp),
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
        ("TCPServer.run",),
        _hypercorn,
    ),
    Server(
        "hypercorn",
        ("0.18.0", "0.18.0"),
        "hypercorn.trio.tcp_server",
        ("TCPServer.run",),
        _hypercorn_trio,
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
"""In the order of the documentation. A server of two modules stands here twice."""
