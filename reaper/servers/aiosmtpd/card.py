"""What there is to say of aiosmtpd."""

from __future__ import annotations

from ...config.effects import Which
from ..abilities import LEASES, RESETS, TLS, able
from ..factories import LOOPS, SPARED
from ..guest import Card, Change, Kind
from .changes import change
from .names import READER, SMTP

CARD = Card(
    title="aiosmtpd",
    needs=(SMTP, READER),
    kinds=(
        Kind(
            "aiosmtpd",
            "aiosmtpd over TCP",
            able(
                *(LEASES, TLS, RESETS),
                handshake="where TLS begins with the connection, and not by STARTTLS",
                write="",
                limits__min_out_rate="only for how long a full buffer may hide a reader",
                idle=Which("`tunnel` holds until you set this; aiosmtpd's own 5 min holds as well"),
                tunnel=Which("only where `idle` is not set; aiosmtpd's own 5 min holds as well"),
            ),
            {"timeouts.first_byte": "idle"},
            serves="phases:Session",
            starts="aiosmtpd -n -l 127.0.0.1:{port}",
        ),
    ),
    changes={"aiosmtpd.smtp": Change(change)},
    done="the loop's `create_server` and `create_unix_server` are wrapped, for the factories of its controllers and of "
    "its command; `SMTP._reader` says whether the session waits for its client",
    page="aiosmtpd",
    promised=LOOPS,
    spared=SPARED,
    family="no HTTP",
)
