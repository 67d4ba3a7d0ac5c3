"""What there is to say of websockets."""

from __future__ import annotations

from ...config.effects import Which
from ...foreign import RESTING, SOCKETS
from ..abilities import IF_SET, LEASES, RATES, REFUSES, able
from ..guest import Card, Change, Kind
from .changes import change
from .names import ALL

CARD = Card(
    title="websockets",
    needs=ALL,
    kinds=(
        Kind(
            "websockets",
            "websockets",
            able(
                *(LEASES, REFUSES, RATES, {"reaper.release_buffers": ""}),
                tunnel="",
                limits__min_in_rate=Which(
                    "for a message; websockets' own open_timeout bounds the opening"
                ),
                limits__min_out_rate="for a long message",
                limits__max_connections=Which(
                    f"{IF_SET}; a WebSocket that is too many is opened, and closed with 1013"
                ),
            ),
            {"timeouts.drain_window": "it closes all at once, with 1001"},
        ),
    ),
    changes={"websockets.asyncio.server": Change(change)},
    done="`serve(create_connection=)` is [the guarded one](howto/websockets.md), unless given",
    page="websockets",
    spared=(RESTING, SOCKETS),
    family="no HTTP",
)
