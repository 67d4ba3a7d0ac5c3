"""`[attach]`: what `python -m reaper attach` does not tolerate in the connections of another server.

One rule: *off until asked for*. The server is not ours, and a limit that suits one does harm to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from .options import Duration, Number, Section, Switch, Text, option


@dataclass(frozen=True, slots=True)
class Attach(Section):
    """`[attach]`: the limits of a watched server. Changes need a restart of the watcher, never of the server."""

    idle: float = option(
        0.0,
        Duration(),
        "Client has been silent since the server's last answer.",
        precedent="Redis timeout; PostgreSQL idle_session_timeout: off by default",
        live=False,
    )
    first_byte: float = option(
        0.0,
        Duration(),
        "Client has connected and not sent one byte.",
        precedent="PostgreSQL authentication_timeout 60 s",
        live=False,
    )
    max_age: float = option(
        0.0,
        Duration(),
        "Connection has been open for this long; an answer in the making is waited for.",
        precedent="gRPC MAX_CONNECTION_AGE",
        live=False,
    )
    stalled_write: float = option(
        0.0,
        Duration(),
        "Data is queued for the client, which acknowledges none of it.",
        precedent="nginx send_timeout 60 s; TCP_USER_TIMEOUT",
        live=False,
    )
    min_in_rate: float = option(
        0.0,
        Number(),
        "Least bytes per second of what the client sends before the server answers; 0 is no limit.",
        precedent="Apache MinRate=500; Kestrel 240 B/s",
        live=False,
    )
    min_in_grace: float = option(
        5.0,
        Duration(off=False),
        "How long a client may be slower than that.",
        precedent="Kestrel 5 s",
        live=False,
    )
    vanished: float = option(
        0.0,
        Duration(),
        "Client's machine answers nothing for this long, neither data nor keep-alives.",
        precedent="SO_KEEPALIVE: 2 h and more",
        live=False,
    )
    even_unanswered: bool = option(
        False,
        Switch(),
        "Only what the client sends counts as activity, even while the server owes it an answer.",
        precedent="Redis and memcached count so",
        live=False,
    )
    tick: float = option(
        1.0,
        Duration(least=0.05),
        "Precision: connections are closed at most one tick after their limit.",
        precedent="ZooKeeper tickTime 2 s; Kestrel's heartbeat 1 s",
        live=False,
    )
    jitter: float = option(
        0.0,
        Number(most=1.0),
        "Lengthens each connection's limits by up to this share, in sixteen steps.",
        precedent="gRPC +-10 %",
        live=False,
    )
    reaps_per_second: float = option(
        0.0,
        Number(),
        "Most closes per second; 0 is no bound.",
        precedent="HAProxy spreads closes when it stops",
        live=False,
    )
    how: str = option(
        "shutdown",
        Text(("shutdown", "destroy")),
        "shutdown: the server reads an end of file; destroy: the kernel resets the connection (CAP_NET_ADMIN).",
        precedent="`ss -K` and tcp_closer destroy",
        live=False,
    )
