"""What there is to say of Sanic."""

from __future__ import annotations

from ...config.effects import Which
from ..abilities import ALSO, ASKED, LAST, LEASES, REFUSES, TLS, able
from ..factories import LOOPS, SPARED
from ..guest import Card, Change, Kind
from .changes import change
from .names import HTTP, WEBSOCKET

CARD = Card(
    title="Sanic",
    needs=(HTTP, WEBSOCKET),
    kinds=(
        Kind(
            "sanic",
            "Sanic",
            able(
                *(LEASES, ASKED, LAST, TLS, REFUSES),
                keep_alive=ALSO,
                drain=Which("only if you set it, and Sanic's GRACEFUL_SHUTDOWN_TIMEOUT is not set"),
                drain_idle="",
            ),
            serves="phases:Sanic",
        ),
    ),
    changes={"sanic.server.protocols.http_protocol": Change(change)},
    done="the loop's `create_server` and `create_unix_server` are wrapped, for its `HttpProtocol`, and that one's "
    "`close_if_idle`",
    page="sanic",
    promised=LOOPS,
    spared=SPARED,
    family="asked",
)
