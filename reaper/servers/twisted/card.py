"""What there is to say of Twisted, and of daphne, which serves by it."""

from __future__ import annotations

from ..abilities import ALSO, ASKED, LAST, LEASES, NEVER_REFUSES, SHAKES, able
from ..guest import Card, Change, Kind
from .changes import change
from .names import HTTP, REACTOR, TCP, TLS

CARD = Card(
    title="Twisted (daphne)",
    needs=(TCP, REACTOR, HTTP, TLS),
    kinds=(
        Kind(
            "twisted",
            "Twisted (daphne)",
            able(LEASES, NEVER_REFUSES, ASKED, LAST, SHAKES, keep_alive=ALSO),
            serves="phases:Twisted",
            starts="daphne {asgi} -p {port}",
        ),
    ),
    changes={"twisted.internet.tcp": Change(change)},
    done="`internet.tcp.Server` is wrapped where the reactor is asyncio's, else it is guarded "
    "from outside; `HTTPChannel.requests`, `_handlingRequest`, `_transferDecoder`",
    page="daphne",
    family="asked",
)
