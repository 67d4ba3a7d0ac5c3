"""What a guard can do in a server, and by which settings.

The rule of this module: *a card names abilities, and the settings follow*. Each ability
has its settings, and for each what is to be known of it in every server that has the
ability; empty: it acts as its page says. A card adds what is different in its server.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..config.effects import Which

Ability = Mapping[str, str]

IF_SET = Which("only if you set it")
AT_ONCE = "for WebSockets and streams; the server closes idle connections at once"
ALSO = Which("the server's own limit holds as well")
AT_AN_AGE = "at max_age only"
LINGERS = Which(
    "for what the guard closes: who is refused, and who is told goodbye; what the server closes "
    "is closed in its own way"
)


def _all(*paths: str, but: str = "") -> dict[str, str]:
    return dict.fromkeys(paths, but)


LEASES = _all(
    *("reaper.tick", "reaper.wheel_size", "reaper.jitter", "reaper.reaps_per_second"),
    *("reaper.pressure", "reaper.tame_gc", "timeouts.vanished"),
)
"""It has a reaper: what each guard has."""

NEVER_REFUSES = {"reaper.pressure": "newcomers are not refused"}
"""Under pressure it closes what is idle, and answers all newcomers."""

PHASES = _all(
    *("timeouts.first_byte", "timeouts.headers", "timeouts.body", "timeouts.keep_alive"),
    *("timeouts.write", "timeouts.tunnel"),
)
"""It knows the phases of HTTP when they begin."""

LAST = _all("timeouts.max_age", "limits.max_age_jitter") | _all(
    "timeouts.drain", "timeouts.drain_idle", but=AT_AN_AGE
)
"""It has an answer be the last of its connection."""

TLS = _all("timeouts.handshake", "reaper.release_buffers")
"""The TLS is asyncio's."""

REFUSES = {
    "limits.max_connections": IF_SET,
    "timeouts.linger": LINGERS,
}
"""It answers newcomers that are too many."""

RESETS = {"limits.max_connections": Which(f"{IF_SET}; who is too many is reset without an answer")}
"""What it serves is no HTTP: it has no answer for newcomers that are too many."""

HINT = _all("timeouts.keep_alive_margin")
"""Its answers say how long the connection is kept."""

STREAMS = _all(
    *("timeouts.drain_streams", "timeouts.stream_ping", "timeouts.stream_age"),
    *("server.streams", "server.stream_retry", "server.stream_ping_lines"),
)
"""It tells an event stream from other answers, and writes into it."""

CANCELS = _all("timeouts.abandoned")
"""It cancels a request whose client is gone."""

RATES = _all(
    *("limits.min_in_rate", "limits.min_in_grace", "limits.min_out_rate", "limits.min_out_grace")
)
"""It counts the bytes of a body and of an answer."""

TUNNELS = _all("timeouts.tunnel_age")
"""It ends a WebSocket or a tunnel that is too old."""

ASKED = PHASES | RATES | TUNNELS
"""It asks the server for the phase of HTTP when a connection is due:
`driver.served.Served`.
"""

SHAKES = _all("timeouts.handshake")
"""The TLS is the server's own, and the guard sees when it is agreed on."""

WINDOW = {"timeouts.drain_window": AT_ONCE}
"""It spreads the goodbyes to streams and WebSockets at a stop."""


ON_TIME = {
    **(LEASES | PHASES | TLS | REFUSES | HINT | STREAMS | CANCELS | RATES | TUNNELS),
    **_all(*LAST, "timeouts.half_closed"),
    **_all("timeouts.drain_delay", "timeouts.drain_window"),
    "reaper.release_buffers": "on asyncio's own loop, not on uvloop",
}
"""Its protocol is ours: everything but what the reference server does alone."""


def able(*abilities: Ability, **but: str) -> dict[str, str]:
    """The settings of *abilities*; *but* says of some what is different here: by key,
    where that is a timeout's, or by path with `__` for the dot.
    """
    found: dict[str, str] = {}
    for each in abilities:
        found |= each
    for name, text in but.items():
        section, _, key = name.rpartition("__")
        found[f"{section or 'timeouts'}.{key}"] = text
    return found
