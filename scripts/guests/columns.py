"""The guests: how each server is started, stock and guarded, and what it speaks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.conform.kinds import LIMIT, TICK

from ..programs.declared import LIBRARIES
from .lengths import LENGTHS

PHASES = tuple(name.upper() for name in LENGTHS)
LEAST_OUT = 60_000
UNSEEN = 131_072 / LEAST_OUT
"""Seconds for which a full buffer may hide a reader: `write` ends a client that takes
nothing no sooner, if it has taken so much.
"""
LIMITS = {
    **{f"REAPER_TIMEOUTS_{name.upper()}": f"{each:g}s" for name, each in LENGTHS.items()},
    "REAPER_TICK": f"{TICK * 1000:g}ms",
    "REAPER_LIMITS_MIN_IN_RATE": "0",
    "REAPER_LIMITS_MIN_OUT_RATE": f"{LEAST_OUT}",
    "REAPER_LIMITS_MIN_OUT_GRACE": "10s",
}
"""The settings of every guarded server. Least rates are another subject: this one only
says for how long a full buffer may hide a reader.
"""
ENDS = {f"REAPER_TIMEOUTS_{phase}": "10s" for phase in PHASES} | {
    "REAPER_TIMEOUTS_MAX_AGE": f"{LIMIT:g}s",
    "REAPER_LIMITS_MAX_AGE_JITTER": "0",
    "REAPER_TIMEOUTS_DRAIN_IDLE": "500ms",
    "REAPER_TIMEOUTS_ABANDONED": "300ms",
    "REAPER_LIMITS_MAX_REQUESTS": "12",
    "REAPER_TICK": f"{TICK * 1000:g}ms",
}
"""The settings under which a guarded server ends what no client has asked it to."""
AT_A_STOP = LIMITS | {"REAPER_TIMEOUTS_HANDSHAKE": "30s"}
"""The settings of those that are told to stop: no limit ends who is amid its handshake
then.
"""
OFF = {f"REAPER_TIMEOUTS_{phase}": "0s" for phase in PHASES} | {
    "REAPER_LIMITS_MIN_IN_RATE": "0",
    "REAPER_LIMITS_MIN_OUT_RATE": "0",
}
"""The reference server without its limits: what it is compared with."""

_ASGI, _WSGI = "scripts.guests.apps.asgi:app", "scripts.guests.apps.wsgi:app"
_CLEAR = "--http-protocols h1,h2 --http2-cleartext prior-knowledge"
_RUN = "reaper run --"
_PROGRAM = "scripts.guests.apps.programs"
_REFERENCE = (
    "scripts.guests.apps.reference http --workers 1 --port {port} --drain-idle 100ms"
    " --max-requests 0"
)

HTTP, WEB, H2 = ("http",), ("http", "websocket"), ("http2",)
H2_WEB = ("http2", "websocket2")


@dataclass(frozen=True)
class Column:
    """A guest: the words that `python -m` starts, stock and guarded; `{port}` is where
    it listens, `{folder}` where `cert.pem` and `key.pem` are.

    Attributes:
        speaks: The kinds of clients that it understands.
        unguarded: The settings of the stock one.
        own: The words by which both count requests, and end by themselves, in a world
            of its own; empty: they do not.
        quick: Whether `make test` has it.
    """

    name: str
    stock: str
    guarded: str
    speaks: tuple[str, ...] = HTTP
    unguarded: Mapping[str, str] | None = None
    own: str = ""
    quick: bool = True

    def command(self, port: int, folder: Path, *, guarded: bool) -> list[str]:
        """The words that start it; *folder* is where its certificate is, if it needs
        one.
        """
        line = self.guarded if guarded else self.stock
        words = [word.format(port=port, folder=folder) for word in shlex.split(line)]
        return [sys.executable, "-m", *words]

    def counting(self) -> Column:
        """This guest, with its `own` limit."""
        return replace(self, stock=f"{self.stock} {self.own}", guarded=f"{self.guarded} {self.own}")


def _run(name: str, command: str, *speaks: str) -> Column:
    """A guest that `reaper run` guards. It starts Python's modules by `python -m`."""
    return Column(
        name, command, f"{_RUN} {shlex.quote(sys.executable)} -m {command}", speaks or WEB
    )


def _uvicorn(name: str, stock: str, guarded: str, *speaks: str) -> Column:
    command = f"uvicorn {_ASGI} --port {{port}} --no-access-log --ws websockets --http"
    return Column(name, f"{command} {stock}", f"{command} reaper.uvicorn:{guarded}", speaks)


def _gunicorn(name: str, stock: str, guarded: str, *speaks: str) -> Column:
    application = _WSGI if "gthread" in stock else _ASGI
    clear = f"{_CLEAR} " if speaks == H2 else ""
    command = f"gunicorn {application} --no-control-socket {clear}-b 127.0.0.1:{{port}} -k"
    return Column(name, f"{command} {stock}", f"{command} reaper.gunicorn.{guarded}", speaks)


def _program(name: str, program: str, *speaks: str, run: bool = True) -> Column:
    command = f"{_PROGRAM} {program} {{port}}"
    if run:
        return _run(name, command, *speaks)
    return Column(name, command, f"{command} --guarded", speaks)


def _tls(column: Column, words: str, *, more: str = "", quick: bool = False) -> Column:
    """*column* over TLS; *words* are the flags of its certificate, *more* those that
    the guarded one has besides.
    """
    return replace(
        column,
        name=f"{column.name}, TLS",
        stock=f"{column.stock} {words}",
        guarded=f"{column.guarded} {words}{more}",
        speaks=("tls",),
        quick=quick,
    )


_FILES = "--certfile {folder}/cert.pem --keyfile {folder}/key.pem"
_SSL_FILES = "--ssl-certfile {folder}/cert.pem --ssl-keyfile {folder}/key.pem"
_ENDPOINT = "ssl:{port}:interface=127.0.0.1:privateKey={folder}/key.pem:certKey={folder}/cert.pem"
_FOLDER = "--tls {folder}"
_BOUNDED = " --loop reaper.uvicorn:loop"
"""How uvicorn is told to bound the handshakes of TLS by `timeouts.handshake`."""
_FEW = "--max-requests 10"
_FEW_EACH = "-c python:scripts.guests.apps.counting"
_HYPERCORN = f"hypercorn {_ASGI} -b 127.0.0.1:{{port}}"
COLUMNS = {
    column.name: column
    for column in (
        _uvicorn("uvicorn, httptools", "httptools", "HttpTools", *WEB),
        _uvicorn("uvicorn, h11", "h11", "H11", *WEB),
        _uvicorn("uvicorn, HTTP/2", "zttp --http2", "Http2", *H2),
        replace(_run("hypercorn", _HYPERCORN), own=_FEW_EACH),
        replace(_run("hypercorn, trio", f"{_HYPERCORN} -k trio"), own=_FEW_EACH),
        _run("hypercorn, HTTP/2", _HYPERCORN, *H2_WEB),
        _run("hypercorn, trio, HTTP/2", f"{_HYPERCORN} -k trio", *H2_WEB),
        replace(_gunicorn("gunicorn, asgi", "asgi", "ASGIWorker", *WEB), own=_FEW),
        _gunicorn("gunicorn, asgi, HTTP/2", "asgi", "ASGIWorker", *H2),
        replace(
            _gunicorn(
                "gunicorn, threads", "gthread --threads 100", "ThreadWorker --threads 100", *HTTP
            ),
            own=_FEW,
        ),
        _gunicorn(
            "gunicorn, threads, HTTP/2", "gthread --threads 100", "ThreadWorker --threads 100", *H2
        ),
        _program("aiohttp, `reaper run`", "aiohttp"),
        _program("aiohttp, `run_app`", "aiohttp", *WEB, run=False),
        *(_program(name, name) for name in LIBRARIES),
        _run("daphne", f"daphne -b 127.0.0.1 -p {{port}} {_ASGI}"),
        _program("websockets", "websockets", "websocket"),
        _program("websockets, `connection`", "websockets", "websocket", run=False),
        _program("anyio", "anyio", "lines"),
        _program("start_server", "start_server", "lines", run=False),
        _program("start_server, handed over", "handed", "lines", run=False),
        _program("serve_tcp", "serve_tcp", "lines", run=False),
        _program("serve_parked", "serve_parked", "lines", run=False),
        Column("the reference", _REFERENCE, _REFERENCE, HTTP, OFF),
        _tls(
            _uvicorn("uvicorn, httptools", "httptools", "HttpTools"),
            _SSL_FILES,
            more=_BOUNDED,
            quick=True,
        ),
        _tls(_uvicorn("uvicorn, h11", "h11", "H11"), _SSL_FILES, more=_BOUNDED),
        _tls(_run("hypercorn", _HYPERCORN), _FILES),
        _tls(_run("hypercorn, trio", f"{_HYPERCORN} -k trio"), _FILES),
        _tls(_gunicorn("gunicorn, asgi", "asgi", "ASGIWorker"), _FILES),
        _tls(
            _gunicorn("gunicorn, threads", "gthread --threads 100", "ThreadWorker --threads 100"),
            _FILES,
        ),
        _tls(_program("aiohttp, `reaper run`", "aiohttp"), _FOLDER, quick=True),
        _tls(_program("aiohttp, `run_app`", "aiohttp", run=False), _FOLDER),
        *(_tls(_program(name, name), _FOLDER) for name in LIBRARIES),
        _tls(_run("daphne", f"daphne -e {_ENDPOINT} {_ASGI}"), "", quick=True),
        _tls(
            Column("the reference", _REFERENCE, _REFERENCE, HTTP, OFF),
            "--tls-cert {folder}/cert.pem --tls-key {folder}/key.pem",
        ),
    )
}
"""The columns of the table, by name."""
