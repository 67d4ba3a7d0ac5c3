"""What there is to say of aiohttp."""

from __future__ import annotations

from ...config.effects import Which
from ..abilities import (
    ASKED,
    CANCELS,
    HINT,
    LAST,
    LEASES,
    REFUSES,
    STREAMS,
    TLS,
    WINDOW,
    able,
)
from ..factories import LOOPS, SPARED
from ..guest import Card, Change, Kind
from .changes import change
from .names import ALL

CARD = Card(
    title="aiohttp",
    needs=ALL,
    kinds=(
        Kind(
            "aiohttp",
            "aiohttp",
            able(
                *(LEASES, ASKED, LAST, TLS, REFUSES, HINT, STREAMS, CANCELS, WINDOW),
                drain=Which("unless aiohttp's shutdown_timeout is set"),
                drain_idle="",
            ),
            serves="server:Aiohttp",
        ),
    ),
    changes={"aiohttp.web_runner": Change(change)},  # it imports the others
    done="the loop's `create_server` and `create_unix_server` are wrapped, for its protocol factory",
    page="aiohttp",
    promised=LOOPS,
    spared=SPARED,
)
