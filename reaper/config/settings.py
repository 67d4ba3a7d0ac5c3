"""`ReaperConfig`: one frozen, typed configuration, and where each of its values came
from.

One rule: *all or nothing*. Defaults give way to a TOML file, the file to the
environment (`REAPER_TIMEOUTS_IDLE=30s`), the environment to the command line; every
fault found on the way is reported at once, and while there is one there is no
configuration. The settings are declared here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ConfigError
from .balancers import BALANCERS, ENDLESS
from .options import Duration, Integer, Number, Option, Place, Section, Switch, Text, option

DEFAULT = "default"
"""The origin of a value that was not set anywhere."""

BEHIND = "server.behind"
"""How the origin of a value begins that follows from that setting."""

MOST_WORKERS = 1024
"""More workers on one machine are a mistake, which is better found before they are
started.
"""


@dataclass(frozen=True, slots=True)
class Reaper(Section):
    """`[reaper]`: the clockwork. Changes need a restart."""

    live: ClassVar[bool] = False

    tick: float = option(
        1.0,
        "Precision: a close is at most one tick after its timeout; halving it doubles the wake-ups.",
        precedent="ZooKeeper tickTime 2 s; Netty 100 ms; Kestrel's heartbeat 1 s",
        kind=Duration(off=False, least=0.001),
    )
    wheel_size: int = option(
        64,
        "Slots per wheel level: a little CPU for long timeouts, never accuracy. Leave at 64.",
        precedent="Kafka 20; Netty 512; Linux kernel 64",
        kind=Integer(2, 65536),
    )
    jitter: float = option(
        0.0,
        "Lengthens each timeout at random by up to this share, in whole ticks.",
        precedent="gRPC MAX_CONNECTION_AGE +-10 %",
        kind=Number(most=1.0),
    )
    reaps_per_second: float = option(
        0.0,
        "Most closes per second and worker, against reconnect storms; 0 is no bound.",
        precedent="HAProxy spreads closes when it stops",
        kind=Number(),
    )
    pressure: bool = option(
        False,
        "Shrink timeouts as descriptors or memory run short, then let the longest idle go (needs psutil).",
        precedent="Envoy overload manager",
        kind=Switch(),
    )
    release_buffers: bool = option(
        True,
        "An idle TLS connection on asyncio's own loop keeps no read buffer; asyncio keeps 256 KiB for each.",
        precedent="OpenSSL SSL_MODE_RELEASE_BUFFERS",
        kind=Switch(),
    )
    log_format: str = option(
        "text",
        "Text, or one JSON object per line.",
        precedent="Envoy json_format",
        kind=Text(("text", "json")),
    )
    log_level: str = option(
        "warning",
        "Least level that the servers log; at info each close is a line.",
        precedent="gunicorn loglevel; Envoy --log-level",
        kind=Text(("debug", "info", "warning", "error")),
    )
    tame_gc: bool = option(
        False,
        "Python's collector visits only what is new; a full collection holds a loop that serves thousands.",
        precedent="gc.freeze; Instagram's servers run without the collector",
        kind=Switch(),
    )


@dataclass(frozen=True, slots=True)
class Timeouts(Section):
    """`[timeouts]`: how long a connection may be silent in each phase. Seconds; zero
    switches a timeout off.
    """

    idle: float = option(
        30.0,
        "Plain TCP (the echo server): no byte received.",
        precedent="HAProxy timeout client; memcached idle_timeout",
    )
    first_byte: float = option(
        10.0,
        "Connected, and no byte of a request received.",
        precedent="HAProxy timeout http-request 10 s; uvicorn has none",
    )
    handshake: float = option(
        10.0,
        "TLS handshake, from accept to done; bytes do not extend it.",
        precedent="Kestrel, Netty SslHandler 10 s",
    )
    headers: float = option(
        10.0,
        "Request line and headers, from the first byte to the blank line; bytes do not extend it (408).",
        precedent="Kestrel 30 s; Apache RequestReadTimeout 20-40; nginx 60 s",
    )
    body: float = option(
        30.0,
        "Request body: no byte received (408).",
        precedent="nginx client_body_timeout 60 s; Apache 20",
    )
    keep_alive: float = option(
        # longer than every proxy in `BALANCERS` that closes, shorter than the one that
        # forgets
        95.0,
        "Between two requests of one connection.",
        precedent="nginx 75 s; Kestrel 130 s; Node.js 5 or 65 s; Apache, uvicorn 5 s",
    )
    keep_alive_margin: float = option(
        1.0,
        "`Keep-Alive: timeout=` advertises this much less than keep_alive: the client stops first. 0s: no such header.",
        precedent="Node.js keepAliveTimeoutBuffer 1 s",
    )
    write: float = option(
        60.0,
        "The client takes no byte of a waiting response; each that it takes starts the wait anew (reset).",
        precedent="nginx send_timeout 60 s",
    )
    request: float = option(
        300.0,
        "A request in flight has not ended since its last header, or the last wait for its client (503).",
        precedent="Node.js requestTimeout 300 s; Envoy route timeout 15 s",
    )
    tunnel: float = option(
        600.0,
        "After an upgrade (WebSocket, CONNECT): no byte in either direction.",
        precedent="API Gateway 10 min; HAProxy 1 h",
    )
    tunnel_age: float = option(
        86400.0,
        "Age at which a tunnel is closed, whatever goes through it.",
        precedent="API Gateway 2 h",
    )
    half_closed: float = option(
        30.0,
        "The client has shut its sending side: it takes no byte from ours, or its answer is not ready yet.",
        precedent="HAProxy timeout client-fin 30 s",
    )
    linger: float = option(
        5.0,
        "After the last response: keeps reading, so that a reset cannot overtake it; bytes do not extend it.",
        precedent="nginx lingering_timeout 5 s; Apache 30 s",
    )
    vanished: float = option(
        60.0,
        "The peer's kernel answers nothing, with or without a request in flight: no FIN, no reset, it is gone.",
        precedent="Linux gives up after 15 min of unanswered data, and never without any",
        kind=Duration(least=3.0),  # the kernel counts keep-alives in whole seconds
        live=False,
    )
    max_age: float = option(
        0.0,
        "Age at which a connection is closed, after the response in flight.",
        precedent="nginx keepalive_time 1 h; gRPC MAX_CONNECTION_AGE",
    )
    drain: float = option(
        30.0,
        "On shutdown: requests in flight get this long, then their connections are cut.",
        precedent="gunicorn graceful_timeout 30 s; ASP.NET 30 s",
        kind=Duration(off=False),
        live=False,
    )
    drain_delay: float = option(
        0.0,
        "On shutdown: newcomers are served for this long before the drain begins, until no one sends any.",
        precedent="Kubernetes preStop sleep; Envoy drain time",
        live=False,
    )
    drain_window: float = option(
        0.0,
        "On shutdown: idle connections, WebSockets and streams end spread over this time.",
        precedent="HAProxy close-spread-time; Envoy 600 s",
        live=False,
    )
    drain_streams: float = option(
        2.0,
        "On shutdown: a stream is told in its turn, and ended this much later; 0s treats it as any response.",
        precedent="uvicorn 0.43 told at once, 0.45 does not; hypercorn 3 s for WebSockets",
        live=False,
    )
    stream_ping: float = option(
        0.0,
        "An event stream that has written nothing for so long gets a comment between two events. "
        "Where `server.behind` names a proxy: a third of its read timeout.",
        precedent="sse-starlette, FastAPI 15 s; the HTML standard advises about 15 s",
        live=False,
    )
    stream_age: float = option(
        0.0,
        "Age at which a stream is told and ended, as on shutdown.",
        precedent="gRPC MAX_CONNECTION_AGE; Envoy max_stream_duration",
        live=False,
    )
    abandoned: float = option(
        0.0,
        "A request whose client is gone is cancelled this much later; 0s lets it run to its end.",
        precedent="Go cancels its context at once; gunicorn asgi after 3 s; aiohttp if asked, at once",
        live=False,
    )
    drain_idle: float = option(
        1.0,
        "On shutdown and at max_age: an idle connection is kept this much longer; a request may be on its way.",
        precedent="nginx keepalive_min_timeout",
        live=False,
    )


@dataclass(frozen=True, slots=True)
class Limits(Section):
    """`[limits]`: rates, sizes and counts. Zero is no limit unless the option says
    otherwise.
    """

    min_in_rate: float = option(
        240.0,
        "Least bytes per second of a request body; only time spent waiting for it counts (408).",
        precedent="Kestrel 240 B/s; Apache mod_reqtimeout MinRate=500",
        kind=Number(),
    )
    min_in_grace: float = option(
        5.0, "How far a body may be behind that rate.", precedent="Kestrel 5 s"
    )
    min_out_rate: float = option(
        240.0,
        "Least bytes per second that a client takes of a waiting response (reset).",
        precedent="Kestrel 240 B/s",
        kind=Number(),
    )
    min_out_grace: float = option(
        5.0, "How far a client may be behind that rate.", precedent="Kestrel 5 s"
    )
    max_requests: int = option(
        1000,
        "Requests per connection; the last response says `Connection: close`.",
        precedent="nginx 1000; Apache MaxKeepAliveRequests 100",
        kind=Integer(0),
    )
    max_age_jitter: float = option(
        0.1,
        "Shortens each max_age, tunnel_age and stream_age at random by up to this share, against reconnect storms.",
        precedent="gRPC +-10 %",
        kind=Number(most=1.0),
    )
    max_header_bytes: int = option(
        16384,
        "Request line and headers (431).",
        precedent="Node.js 16 KiB; Kestrel 32 KiB; nginx 4 x 8 KiB",
        kind=Integer(256),
    )
    max_body_bytes: int = option(
        1048576,
        "Request body (413).",
        precedent="nginx client_max_body_size 1 MiB; Kestrel 28.6 MiB",
        kind=Integer(0),
    )
    max_connections: int = option(
        10000,
        "Open connections per worker; one more is answered 503. A guarded server has this limit if you set it.",
        precedent="nginx worker_connections 512; uvicorn --limit-concurrency",
        kind=Integer(1),
    )


@dataclass(frozen=True, slots=True)
class Server(Section):
    """`[server]`: where it listens. Changes need a restart."""

    live: ClassVar[bool] = False

    host: str = option("127.0.0.1", "Address to listen on.", kind=Text())
    port: int = option(8080, "Port to listen on; 0 lets the kernel choose.", kind=Integer(0, 65535))
    workers: int | str = option(
        "auto", "Worker processes that share the port.", kind=Integer(1, MOST_WORKERS, word="auto")
    )
    watchdog: float = option(
        30.0,
        "A worker whose loop has not turned for this long is killed and replaced.",
        precedent="gunicorn timeout 30 s; systemd WatchdogSec",
        kind=Duration(least=1.0),
    )
    status: str = option(
        "",
        "HOST:PORT that serves /status (for `python -m reaper top`) and /metrics of all workers, for you alone.",
        precedent="Envoy admin address; HAProxy stats socket",
        kind=Place(),
    )
    tls_cert: str = option(
        "", "Certificate chain in PEM; with tls_key it turns TLS on.", kind=Text(empty=True)
    )
    tls_key: str = option("", "Private key in PEM.", kind=Text(empty=True))
    streams: str = option(
        "text/event-stream application/x-ndjson multipart/x-mixed-replace",
        "Content types whose responses are streams, which `timeouts.drain_streams` ends on shutdown.",
        precedent="sse-starlette ends its own",
        kind=Text(empty=True),
    )
    stream_retry: float = option(
        0.0,
        "An event stream that is told to end says `retry:` first: its client is back after that, or up to twice as late.",
        precedent="the HTML standard's retry field; browsers wait a few seconds",
    )
    stream_ping_lines: bool = option(
        False,
        "Whether `timeouts.stream_ping` writes an empty line into application/x-ndjson, too.",
        precedent="jq and most readers of lines skip it",
        kind=Switch(),
    )
    behind: str = option(
        "unknown",
        "What stands in front: `check` compares keep_alive with its idle time, and `stream_ping` follows its read timeout.",
        kind=Text(("unknown", "direct", *BALANCERS, *ENDLESS)),
    )


@dataclass(frozen=True, slots=True)
class Attach(Section):
    """`[attach]`: the limits of a watched server. Changes need a restart of the
    watcher, never of the server.

    Everything is off until it is asked for: the server is not ours, and a limit that
    suits one does harm to the next.
    """

    live: ClassVar[bool] = False

    idle: float = option(
        0.0,
        "Client has been silent since the server's last answer.",
        precedent="Redis timeout; PostgreSQL idle_session_timeout",
    )
    first_byte: float = option(
        0.0,
        "Client has connected and not sent one byte.",
        precedent="PostgreSQL authentication_timeout 60 s",
    )
    max_age: float = option(
        0.0,
        "Connection has been open for this long; an answer in the making is waited for.",
        precedent="gRPC MAX_CONNECTION_AGE",
    )
    stalled_write: float = option(
        0.0,
        "Data is queued for the client, which acknowledges none.",
        precedent="nginx send_timeout 60 s; TCP_USER_TIMEOUT",
    )
    min_in_rate: float = option(
        0.0,
        "Least bytes per second of what the client sends before the server answers; 0 is no limit.",
        precedent="Apache MinRate=500; Kestrel 240 B/s",
        kind=Number(),
    )
    min_in_grace: float = option(
        5.0,
        "How long a client may be slower than that.",
        precedent="Kestrel 5 s",
        kind=Duration(off=False),
    )
    vanished: float = option(
        0.0,
        "Client's machine answers nothing, neither data nor keep-alives.",
        precedent="SO_KEEPALIVE: 2 h and more",
    )
    even_unanswered: bool = option(
        False,
        "Only what the client sends counts as activity, even while the server owes it an answer.",
        precedent="Redis and memcached count so",
        kind=Switch(),
    )
    tick: float = option(
        1.0,
        "Precision: connections are closed at most one tick after their limit.",
        precedent="ZooKeeper tickTime 2 s; Kestrel's heartbeat 1 s",
        kind=Duration(least=0.05),
    )
    jitter: float = option(
        0.0,
        "Lengthens each connection's limits by up to this share, in 16 steps.",
        precedent="gRPC +-10 %",
        kind=Number(most=1.0),
    )
    reaps_per_second: float = option(
        0.0,
        "Most closes per second; 0 is no bound.",
        precedent="HAProxy spreads closes when it stops",
        kind=Number(),
    )
    how: str = option(
        "shutdown",
        "shutdown: the server reads an end of file; destroy: the kernel resets the connection (CAP_NET_ADMIN).",
        precedent="`ss -K` and tcp_closer destroy",
        kind=Text(("shutdown", "destroy")),
    )


@dataclass(frozen=True, slots=True)
class ReaperConfig:
    """Everything that can be configured, immutable and complete.

    Equality is by value; where a value came from does not count.

    Attributes:
        reaper, timeouts, limits, server, attach: The sections, one attribute per key;
            durations are seconds.
        origins: `section.key` -> where its value came from, for the keys that are not
            at their default.
    """

    reaper: Reaper = field(default_factory=Reaper)
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    server: Server = field(default_factory=Server)
    attach: Attach = field(default_factory=Attach)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> ReaperConfig:
        """Defaults < the file < the environment < *overrides*.

        Args:
            path: A TOML file. None: no file is read, and none is searched for.
            environ: Variables by name; None takes those of the process. Only names that
                begin with `REAPER_` matter.
            overrides: `section.key` -> value, as text ("30s") or typed (30.0 seconds);
                None as a value is "not given".

        Returns:
            A configuration with every value checked and its origin noted.

        Raises:
            ConfigError: at least one fault; the message lists all of them, one per
                line, each with its path, the value and where it came from, and what
                would be accepted.
        """
        return _Loader().load(path, os.environ if environ is None else environ, overrides or {})

    def get(self, path: str) -> object:
        """The typed value at `section.key`. Raises KeyError for a path that is no
        setting.
        """
        found = OPTIONS[path]
        return getattr(getattr(self, found.section), found.key)

    def origin(self, path: str) -> str:
        """Where the value at `section.key` came from. Raises KeyError for a path that
        is no setting.
        """
        return self.origins.get(OPTIONS[path].path, DEFAULT)

    def replaced(self, values: Mapping[str, object], origins: Mapping[str, str]) -> ReaperConfig:
        """This configuration with *values*, by `section.key`, and with *origins* in
        place of its own.
        """
        sections: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            sections.setdefault(OPTIONS[path].section, {})[OPTIONS[path].key] = value
        made = {
            name: dataclasses.replace(getattr(self, name), **keys)
            for name, keys in sections.items()
        }
        return dataclasses.replace(self, **made, origins=origins)


def changes(old: ReaperConfig, new: ReaperConfig) -> dict[str, str]:
    """Say in words how each setting changed that differs: `section.key` -> "old ->
    new", in the order of the documentation.
    """
    return {
        path: f"{found.kind.show(old.get(path))} -> {found.kind.show(new.get(path))}"
        + ("" if found.live else " (needs a restart)")
        for path, found in OPTIONS.items()
        if old.get(path) != new.get(path)
    }


def applied(old: ReaperConfig, new: ReaperConfig) -> ReaperConfig:
    """The configuration in force after a reload: *old* with the live settings of *new*.
    The others wait for a restart.

    Origins follow the values: a setting that waits for a restart keeps the origin of
    its old value.
    """
    source = {path: new if found.live else old for path, found in OPTIONS.items()}
    origins = {
        path: config.origins[path] for path, config in source.items() if path in config.origins
    }
    return old.replaced({path: config.get(path) for path, config in source.items()}, origins)


def _declared() -> Iterator[Option]:
    for made in (Reaper, Timeouts, Limits, Server, Attach):
        for item in dataclasses.fields(made):
            live = made.live and item.metadata["live"]
            yield Option(
                f"{made.__name__.lower()}.{item.name}",
                item.default,
                **{**item.metadata, "live": live},
            )


OPTIONS: Mapping[str, Option] = {found.path: found for found in _declared()}
"""Every setting by its path, in the order in which it is documented."""
SECTIONS = tuple(dict.fromkeys(found.section for found in OPTIONS.values()))


class _Loader:
    """Collects values and faults from one source after the other; used once."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.origins: dict[str, str] = {}
        self.faults: list[str] = []

    def load(
        self,
        path: str | os.PathLike[str] | None,
        environ: Mapping[str, str],
        overrides: Mapping[str, object],
    ) -> ReaperConfig:
        if path is not None:
            self.file(path)
        self.environment(environ)
        for key, value in overrides.items():
            if value is not None and self.known(key, "command line"):
                self.take(OPTIONS[key], value, "command line", read=isinstance(value, str))
        self.together()
        self.follow()
        if self.faults:
            raise ConfigError("\n".join(self.faults))
        return ReaperConfig().replaced(self.values, self.origins)

    def file(self, path: str | os.PathLike[str]) -> None:
        name = os.fspath(path)
        try:
            document = tomllib.loads(Path(name).read_bytes().decode("utf-8"))
        except OSError as error:
            self.faults.append(f"{name}: cannot be read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            self.faults.append(f"{name}: not UTF-8 at byte {error.start}: expected a TOML file")
        except tomllib.TOMLDecodeError as error:
            self.faults.append(f"{name}: not TOML: {error}")
        else:
            for section, table in document.items():
                if not isinstance(table, dict):
                    hint = suggest(section, tuple(OPTIONS) if section not in SECTIONS else SECTIONS)
                    self.faults.append(
                        f"{section}: {table!r} (from {name}): not in a section{hint}"
                    )
                elif section not in SECTIONS:
                    self.faults.append(
                        f"{section}: unknown section (from {name}){suggest(section, SECTIONS)}"
                    )
                else:
                    for key, raw in table.items():
                        if self.known(f"{section}.{key}", name):
                            found = OPTIONS[f"{section}.{key}"]
                            self.take(found, raw, name, read=found.kind.quoted)

    def environment(self, environ: Mapping[str, str]) -> None:
        names = {found.environment: found for found in OPTIONS.values()}
        for name, found in names.items():
            if name in environ:
                self.take(found, environ[name], f"environment {name}", read=True)
        for name in unknown_variables(environ):
            # A misspelt variable that does nothing is worse than an error. Other
            # REAPER_ names may be another's: Kubernetes makes REAPER_PORT and
            # REAPER_SERVICE_HOST for a service called reaper.
            if name.startswith(_OURS):
                self.faults.append(
                    f"{name}: unknown environment variable{suggest(name, tuple(names))}"
                )

    def known(self, path: str, origin: str) -> bool:
        if path in OPTIONS:
            return True
        self.faults.append(
            f"{path}: unknown setting (from {origin}){suggest(path, tuple(OPTIONS))}"
        )
        return False

    def take(self, found: Option, raw: Any, origin: str, *, read: bool) -> None:
        """Check and keep one value. It is typed already, or a text to be *read*: from a
        variable, from a flag, or a duration.
        """
        try:
            value: Any = found.kind.read(raw) if read else raw
            good = found.kind.check(value)
            if good and isinstance(found.default, float):
                value = float(value)
        except (ValueError, OverflowError):
            good = False
        if not good:
            self.faults.append(
                f"{found.path}: {raw!r} (from {origin}): expected {found.kind.wanted}"
            )
            return
        self.values[found.path] = value
        self.origins[found.path] = origin

    def together(self) -> None:
        """Find the faults that two values make together."""
        cert, key = (self.values.get(path, "") for path in ("server.tls_cert", "server.tls_key"))
        if bool(cert) != bool(key):
            missing, given = (
                ("server.tls_key", "server.tls_cert")
                if cert
                else ("server.tls_cert", "server.tls_key")
            )
            self.faults.append(
                f"{missing}: missing: expected together with {given} ({cert or key!r})"
            )

    def follow(self) -> None:
        """Where a proxy is named, have streams pinged before it cuts them, unless that
        was set.
        """
        balancer = BALANCERS.get(str(self.values.get("server.behind")))
        if balancer is None or balancer.reads is None or "timeouts.stream_ping" in self.values:
            return
        self.values["timeouts.stream_ping"] = balancer.ping
        source = self.origins["server.behind"]
        self.origins["timeouts.stream_ping"] = (
            f"{BEHIND} ({source}): a third of {balancer.title}'s {balancer.reads:g}s"
        )


_OURS = tuple(f"REAPER_{section.upper()}_" for section in SECTIONS)
_ELSEWHERE = ("REAPER_CONFIG", "REAPER_RUN", "REAPER_RUN_REPORT", "REAPER_RUN_MARKS")
"""Variables of ours that are no settings: the file that servers load, and what `reaper
run` tells the hook.
"""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """The names in *environ* that begin with `REAPER_`, in whatever case, and mean
    nothing to reaper, sorted.
    """
    known = {*_ELSEWHERE, *(found.environment for found in OPTIONS.values())}
    return sorted(
        name for name in environ if name.upper().startswith("REAPER_") and name not in known
    )


def vain_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """What to say of each variable in *environ* that begins with `REAPER_` and sets
    nothing, by its name.
    """
    names = tuple(found.environment for found in OPTIONS.values())
    return {
        name: f"no setting of reaper; it has no effect{suggest(name.upper(), names)}"
        for name in unknown_variables(environ)
    }


def suggest(name: str, names: tuple[str, ...]) -> str:
    """The hint after an unknown *name*: it names the same key in another section, or
    the most similar of *names*, or all of them.
    """
    key = name.rpartition(".")[2].removeprefix("REAPER_")
    same = [known for known in names if known.endswith((f".{key}", f"_{key}"))]
    near = same or difflib.get_close_matches(name, names, n=1)
    return f": did you mean {near[0]}?" if near else ": expected one of " + ", ".join(names)
