"""What there is to say of tornado."""

from __future__ import annotations

from ..abilities import ALSO, ASKED, LAST, LEASES, NEVER_REFUSES, able
from ..guest import Card, Change, Kind
from .changes import change
from .names import ALL

CARD = Card(
    title="tornado",
    needs=ALL,
    kinds=(
        Kind(
            "tornado",
            "tornado",
            able(LEASES, NEVER_REFUSES, ASKED, LAST, keep_alive=ALSO),
            {"timeouts.handshake": "first_byte"},
            serves="phases:Tornado",
        ),
    ),
    changes={"tornado.http1connection": Change(change)},
    done="`HTTP1Connection` is wrapped and asked whose turn it is: `_request_start_line`, "
    "`_read_finished`, `_write_finished`",
    page="tornado",
    family="asked",
)
