"""Where a setting acts: one row per setting, and for each server whether it has an
effect there.

The rule of this module: *what a server does not do is written here, and nowhere else*.
`reaper run` and its `--explain`, `reaper check --for`, the line in the log and, by
`pages`, docs/settings/ are made of it. tests/run/test_effects.py has every server read
its settings, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .settings import BEHIND, DEFAULT, OPTIONS, ReaperConfig

REFERENCE = {
    "http": "the reference server over HTTP, `python -m server_example http`",
    "echo": "the reference server's echo, `python -m server_example echo`",
}
GUARDED = {
    "uvicorn": "uvicorn, h11 and httptools",
    "gunicorn-uvicorn": "gunicorn with uvicorn's worker",
    "gunicorn-asgi": "gunicorn's asgi worker",
    "gunicorn-gthread": "gunicorn's threads",
    "hypercorn": "hypercorn on asyncio",
    "hypercorn-trio": "hypercorn on trio",
    "aiohttp": "aiohttp",
    "sanic": "Sanic",
    "tornado": "tornado",
    "twisted": "Twisted (daphne)",
    "websockets": "websockets",
    "anyio": "anyio's TCP listeners, on asyncio",
}
SERVERS: Mapping[str, str] = {
    **GUARDED,
    "outside": "any server, from outside (`reaper attach`, and `reaper run` where it attaches)",
    **REFERENCE,
}
"""The servers that a row speaks of, and what they are, for people."""


class Effect(NamedTuple):
    """What one setting does in the servers.

    Attributes:
        acts: The servers in which it acts.
        but: For some of them, what is to be known of it. For some of the others, what
            holds instead.
    """

    acts: frozenset[str]
    but: Mapping[str, str]


def _name(server: str) -> str:
    """The keyword of `_row` for *server*."""
    return server.replace("-", "_")


def _row(servers: str, /, **but: str) -> Effect:
    """A row: the names of *servers*, separated by blanks; *but* by names in which `_`
    stands for `-`.
    """
    acts = frozenset(servers.split())
    notes = {name.replace("_", "-"): text for name, text in but.items()}
    for name in (*acts, *notes):
        if name not in SERVERS:
            raise ValueError(f"{name}: no such server")
    return Effect(acts, notes)


REFERENCES = "http echo"
UVICORN = "uvicorn gunicorn-uvicorn"
ASGI = f"{UVICORN} gunicorn-asgi hypercorn hypercorn-trio aiohttp"
STREAMING = f"http {ASGI}"
ASKED = "gunicorn-asgi gunicorn-gthread hypercorn aiohttp sanic tornado twisted"
INSIDE_HTTP = f"{UVICORN} {ASKED} hypercorn-trio"
INSIDE = f"{INSIDE_HTTP} websockets anyio"
HTTP = f"http {INSIDE_HTTP}"

REFUSING = "gunicorn-asgi gunicorn-gthread hypercorn hypercorn-trio aiohttp sanic"

ON_ASYNCIO = "on asyncio's own loop, not on uvloop"
REFUSED = "only for newcomers that are refused"
IF_SET = "only if you set it"
FIRST_BYTES = "from the first bytes on: the server sends the headers with them"
AT_ONCE = "for WebSockets and streams; the server closes idle connections at once"
ALSO = "the server's own limit holds as well"
GRACE = "at most 2 s less than `--graceful-timeout`"
SEEN_LATE = "a drip is noticed when the limit before it is over"
BY_STREAM = "gunicorn-asgi gunicorn-gthread hypercorn"
STREAMS = dict.fromkeys(map(_name, BY_STREAM.split()), "only for streams of HTTP/2")

EFFECTS: Mapping[str, Effect] = {
    "reaper.tick": _row(f"{INSIDE} outside {REFERENCES}"),
    "reaper.wheel_size": _row(f"{INSIDE} {REFERENCES}"),
    "reaper.jitter": _row(f"{INSIDE} {REFERENCES}", outside="attach.jitter"),
    "reaper.reaps_per_second": _row(f"{INSIDE} {REFERENCES}", outside="attach.reaps_per_second"),
    "reaper.pressure": _row(
        f"{UVICORN} {ASKED} hypercorn-trio websockets anyio {REFERENCES}",
        anyio="newcomers are not refused",
        tornado="newcomers are not refused",
        twisted="newcomers are not refused",
        websockets="newcomers are not refused",
    ),
    "reaper.release_buffers": _row(
        f"{UVICORN} gunicorn-asgi hypercorn aiohttp sanic websockets",
        uvicorn=ON_ASYNCIO,
        gunicorn_uvicorn=ON_ASYNCIO,
    ),
    "reaper.log_format": _row(REFERENCES),
    "reaper.log_level": _row(REFERENCES, outside="the server's own"),
    "timeouts.idle": _row(
        "echo anyio outside",
        anyio="`tunnel` holds until you set this",
        outside="an hour, or `tunnel`, holds until you set this",
    ),
    "timeouts.first_byte": _row(f"{HTTP} outside", anyio="idle", outside=IF_SET),
    "timeouts.handshake": _row(
        f"http {UVICORN} gunicorn-asgi hypercorn aiohttp sanic",
        echo="idle",
        hypercorn="unless hypercorn's ssl_handshake_timeout is set",
        gunicorn_gthread="first_byte",
        hypercorn_trio="first_byte",
        tornado="first_byte",
        twisted="first_byte",
    ),
    "timeouts.headers": _row(HTTP, **dict.fromkeys(map(_name, ASKED.split()), SEEN_LATE)),
    "timeouts.body": _row(HTTP),
    "timeouts.keep_alive": _row(
        HTTP,
        uvicorn="uvicorn's --timeout-keep-alive holds until you set this",
        gunicorn_uvicorn="gunicorn's --keep-alive holds until you set this",
        gunicorn_asgi="gunicorn's --keep-alive holds until you set this",
        gunicorn_gthread="gunicorn's --keep-alive holds until you set this",
        hypercorn="hypercorn's own 5 s holds until you set this; of two that are set, the shorter",
        hypercorn_trio="hypercorn's own 5 s holds until you set this; of two that are set, the shorter",
        sanic=ALSO,
        tornado=ALSO,
        twisted=ALSO,
        outside="idle",
    ),
    "timeouts.keep_alive_margin": _row(
        f"http {ASGI} gunicorn-gthread", aiohttp="by `reaper.aiohttp.run_app`"
    ),
    "timeouts.write": _row(f"{HTTP} anyio outside"),
    "timeouts.request": _row("http"),
    "timeouts.tunnel": _row(
        f"http {UVICORN} gunicorn-asgi gunicorn-gthread hypercorn hypercorn-trio aiohttp sanic "
        "tornado twisted websockets anyio outside",
        anyio="only where `idle` is not set",
        gunicorn_gthread=STREAMS["gunicorn_gthread"],
        outside="only where `idle` is not set",
    ),
    "timeouts.tunnel_age": _row(f"http {UVICORN} {BY_STREAM} hypercorn-trio", **STREAMS),
    "timeouts.half_closed": _row(f"http {UVICORN}"),
    "timeouts.linger": _row(
        f"http {UVICORN} {REFUSING}", **dict.fromkeys(map(_name, REFUSING.split()), REFUSED)
    ),
    "timeouts.vanished": _row(f"{INSIDE} outside {REFERENCES}"),
    "timeouts.max_age": _row(f"http {INSIDE_HTTP} outside"),
    "timeouts.drain": _row(
        f"{REFERENCES} {ASGI} gunicorn-gthread sanic tornado twisted",
        gunicorn_asgi=GRACE,
        gunicorn_uvicorn="at most `--graceful-timeout`",
        hypercorn="unless hypercorn's graceful_timeout is set",
        hypercorn_trio="unless hypercorn's graceful_timeout is set",
        aiohttp="unless aiohttp's shutdown_timeout is set",
        gunicorn_gthread="at max_age; at a stop its own --graceful-timeout",
        sanic="at max_age only",
        tornado="at max_age only",
        twisted="at max_age only",
    ),
    "timeouts.drain_delay": _row(f"{REFERENCES} {UVICORN} gunicorn-asgi gunicorn-gthread"),
    "timeouts.drain_window": _row(
        f"{REFERENCES} {ASGI}",
        hypercorn=AT_ONCE,
        hypercorn_trio=AT_ONCE,
        aiohttp=AT_ONCE,
        websockets="it closes all at once, with 1001",
    ),
    "timeouts.drain_streams": _row(STREAMING),
    "timeouts.stream_ping": _row(
        STREAMING,
        gunicorn_asgi=FIRST_BYTES,
        outside="nothing is written into another process's connections",
    ),
    "timeouts.stream_age": _row(STREAMING),
    "timeouts.abandoned": _row(
        ASGI,
        gunicorn_asgi="over HTTP/2 its own `asgi_disconnect_grace_period`",
        gunicorn_gthread="a request in a thread cannot be cancelled",
        http="a reset ends its request at once",
    ),
    "timeouts.drain_idle": _row(
        f"{REFERENCES} {UVICORN} {ASKED} hypercorn-trio",
        **dict.fromkeys(
            map(_name, ASKED.split()[1:]),
            "at max_age only",
        )
        | dict.fromkeys(
            ("gunicorn_gthread", "hypercorn", "hypercorn_trio"),
            "at max_age, and over HTTP/2 at a stop",
        ),
    ),
    "limits.min_in_rate": _row(
        f"http {UVICORN} {BY_STREAM} websockets outside",
        **STREAMS,
        outside=IF_SET,
        websockets="for a message",
    ),
    "limits.min_in_grace": _row(f"http {UVICORN} {BY_STREAM} websockets outside", **STREAMS),
    "limits.min_out_rate": _row(
        f"http {UVICORN} {BY_STREAM} websockets", **STREAMS, websockets="for a long message"
    ),
    "limits.min_out_grace": _row(f"http {UVICORN} {BY_STREAM} websockets", **STREAMS),
    "limits.max_requests": _row("http", uvicorn="its own --limit-max-requests, for a process"),
    "limits.max_age_jitter": _row(f"http {UVICORN} {ASKED} hypercorn-trio"),
    "limits.max_header_bytes": _row("http"),
    "limits.max_body_bytes": _row("http"),
    "limits.max_connections": _row(
        f"http {UVICORN} {REFUSING}",
        **dict.fromkeys(map(_name, f"{UVICORN} {REFUSING}".split()), IF_SET)
        | {"gunicorn_gthread": "only if you set it, and below --worker-connections"},
    ),
    "server.host": _row(REFERENCES),
    "server.port": _row(REFERENCES),
    "server.workers": _row(REFERENCES),
    "server.watchdog": _row(REFERENCES),
    "server.status": _row(REFERENCES),
    "server.tls_cert": _row(REFERENCES),
    "server.tls_key": _row(REFERENCES),
    "server.streams": _row(STREAMING),
    "server.stream_retry": _row(STREAMING),
    "server.stream_ping_lines": _row(STREAMING),
    "server.behind": _row(""),
    **{path: _row("outside") for path in OPTIONS if path.startswith("attach.")},
}
"""By setting. `server.behind` is for `reaper check`; what follows from it acts by its
own name.
"""


def without_effect(config: ReaperConfig, servers: Iterable[str]) -> dict[str, str]:
    """Return the settings that *config* sets, by any means, and that do nothing in one
    of *servers*, each with what holds instead, or nothing. They come in the order of
    the settings.

    `[attach]` and `server.behind` are for other readers, and are never named.
    """
    found: dict[str, str] = {}
    for path, effect in EFFECTS.items():
        origin = config.origin(path)
        if origin == DEFAULT or origin.startswith(BEHIND):
            continue
        if path.startswith("attach.") or path == BEHIND:
            continue
        for server in servers:
            if server not in effect.acts:
                found.setdefault(path, effect.but.get(server, ""))
    return found


def said(found: Mapping[str, str]) -> str:
    """Write *found*, what `without_effect` returned, for people in one line; empty if
    it is empty.
    """
    parts = (f"{path} (instead: {but})" if but else path for path, but in found.items())
    return "set, but without effect here: " + ", ".join(parts) if found else ""
