"""What there is to say of hypercorn, on asyncio and on trio."""

from __future__ import annotations

from ...config.effects import Which
from ..abilities import (
    ASKED,
    CANCELS,
    HINT,
    LAST,
    LEASES,
    REFUSES,
    SHAKES,
    STREAMS,
    TLS,
    WINDOW,
    able,
)
from ..factories import LOOPS, SPARED
from ..guest import Card, Change, Kind
from .changes import ASYNCIO, TRIO, on_asyncio, on_trio
from .names import CONFIG, ON_ASYNCIO, ON_TRIO

_BOTH = able(
    *(LEASES, LAST, REFUSES, HINT, STREAMS, CANCELS, WINDOW),
    keep_alive=Which(
        "hypercorn's own 5 s holds until you set this; of two that are set, the shorter"
    ),
    drain=Which("unless hypercorn's graceful_timeout is set"),
    drain_idle="",
)

CARD = Card(
    title="hypercorn",
    needs=(CONFIG,),
    kinds=(
        Kind(
            ASYNCIO,
            "hypercorn on asyncio",
            able(
                *(ASKED, TLS, _BOTH),
                handshake=Which("unless hypercorn's ssl_handshake_timeout is set"),
            ),
            needs=ON_ASYNCIO,
            serves="phases:Hypercorn",
            starts="hypercorn {asgi} -b 127.0.0.1:{port}",
        ),
        Kind(
            TRIO,
            "hypercorn on trio",
            able(ASKED, SHAKES, _BOTH),
            needs=ON_TRIO,
            serves="trio:OnTrio",
            starts="hypercorn {asgi} -k trio -b 127.0.0.1:{port}",
        ),
    ),
    changes={
        "hypercorn.asyncio.tcp_server": Change(on_asyncio, ASYNCIO),
        "hypercorn.trio.tcp_server": Change(on_trio, TRIO),
    },
    done="`TCPServer.run` of both flavours is wrapped; HTTP/2 "
    "[by stream](timeouts.md#the-cheapest-hold)",
    page="hypercorn",
    promised=LOOPS,
    spared=SPARED,
    own={"keep_alive": "keep_alive_timeout, 5s unless given"},
)
