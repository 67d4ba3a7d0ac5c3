"""What there is to say of tornado."""

from __future__ import annotations

from ..abilities import ALSO, ASKED, LAST, LEASES, NEVER_REFUSES, able
from ..guest import Card, Change, Kind
from .changes import change, stopping
from .names import ALL

IF_CLOSED = "at max_age, and at a stop where the program awaits `close_all_connections`"

CARD = Card(
    title="tornado",
    needs=ALL,
    kinds=(
        Kind(
            "tornado",
            "tornado",
            able(LEASES, NEVER_REFUSES, ASKED, LAST, keep_alive=ALSO, drain_idle=IF_CLOSED),
            {"timeouts.handshake": "first_byte"},
            serves="phases:Tornado",
        ),
    ),
    changes={"tornado.http1connection": Change(change), "tornado.httpserver": Change(stopping)},
    done="`HTTP1Connection` is wrapped and asked whose turn it is: `_request_start_line`, "
    "`_read_finished`, `_write_finished`; `TCPServer.stop`, `HTTPServer.close_all_connections`",
    page="tornado",
    family="asked",
)
