"""Who else reads the settings: what guards from outside, and the reference server."""

from __future__ import annotations

from ..config.effects import Column, Which
from ..config.settings import OPTIONS
from .abilities import HINT, IF_SET, LEASES, PHASES, RATES, STREAMS, TUNNELS, able

OUTSIDE = Column(
    "outside",
    "any server, from outside (`reaper attach`, and `reaper run` where it attaches)",
    {
        "reaper.tick": "",
        "timeouts.idle": Which("an hour, or `tunnel`, holds until you set this"),
        "timeouts.first_byte": IF_SET,
        "timeouts.write": "",
        "timeouts.tunnel": Which("only where `idle` is not set"),
        "timeouts.vanished": "",
        "timeouts.max_age": "",
        "limits.min_in_rate": IF_SET,
        "limits.min_in_grace": "",
        **{path: "" for path in OPTIONS if path.startswith("attach.")},
    },
    {
        "reaper.jitter": "attach.jitter",
        "reaper.reaps_per_second": "attach.reaps_per_second",
        "reaper.log_level": "the server's own",
        "timeouts.keep_alive": "idle",
        "timeouts.stream_ping": "nothing is written into another process's connections",
    },
)

_BOTH = dict.fromkeys(
    [
        *("reaper.log_format", "reaper.log_level"),
        *("timeouts.drain", "timeouts.drain_delay", "timeouts.drain_window", "timeouts.drain_idle"),
        *("server.host", "server.port", "server.workers", "server.watchdog", "server.status"),
        *("server.tls_cert", "server.tls_key"),
    ],
    "",
)

TAMES = {"reaper.tame_gc": "on, unless you set it to false"}
HTTP = Column(
    "http",
    "the reference server over HTTP, `python -m server_example http`",
    able(
        *(LEASES, PHASES, HINT, RATES, TUNNELS, STREAMS, _BOTH, TAMES),
        *(dict.fromkeys(["timeouts.handshake", "timeouts.request", "timeouts.half_closed"], ""),),
        *(dict.fromkeys(["timeouts.linger", "timeouts.max_age", "limits.max_age_jitter"], ""),),
        *(dict.fromkeys(["limits.max_requests", "limits.max_connections"], ""),),
        *(dict.fromkeys(["limits.max_header_bytes", "limits.max_body_bytes"], ""),),
    ),
    {"timeouts.abandoned": "a reset ends its request at once"},
)
ECHO = Column(
    "echo",
    "the reference server's echo, `python -m server_example echo`",
    able(LEASES, _BOTH, TAMES, {"timeouts.idle": ""}),
    {"timeouts.handshake": "idle"},
)

PAGES = {"outside": (OUTSIDE,), "reference": (HTTP, ECHO)}
"""By page of docs/settings/, those that it speaks of."""
