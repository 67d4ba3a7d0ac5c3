"""What there is to say of anyio."""

from __future__ import annotations

from ...config.effects import Which
from ...foreign import SOCKETS
from ..abilities import LEASES, RESETS, able
from ..guest import Card, Change, Kind
from .changes import change
from .names import ALL

CARD = Card(
    title="anyio",
    needs=ALL,
    kinds=(
        Kind(
            "anyio",
            "anyio's TCP listeners, on asyncio",
            able(
                *(LEASES, RESETS),
                idle=Which("`tunnel` holds until you set this"),
                write="",
                limits__min_out_rate="only for how long a full buffer may hide a reader",
                tunnel=Which("only where `idle` is not set"),
            ),
            {"timeouts.first_byte": "idle"},
            serves="phases:Listened",
        ),
    ),
    changes={"anyio._core._sockets": Change(change)},
    done="`create_tcp_listener` is wrapped, and `accept` of each listener that it makes on "
    "asyncio; `SocketStream._receive_guard` says whether the handler waits",
    page="anyio",
    spared=(SOCKETS,),
    family="no HTTP",
    note="what `create_tcp_listener` makes, on asyncio",
    library=True,
)
