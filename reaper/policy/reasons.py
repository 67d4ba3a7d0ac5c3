"""Why reaper closes a connection: one row per reason, and no reason is written anywhere
else.

One rule: *a reason is one short word, the same everywhere*: in the log, in the journal,
in the metrics, in `connection.reason` and on the page docs/howto/why-closed.md, whose
table is written from these rows. A new reason is a new row here; who gives it imports
the constant.

Programs may give reasons of their own (`connection.deadline(2, "login")`); these are
reaper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Reason:
    """What one reason means.

    Attributes:
        name: The word itself.
        given_by: The rooms of `reaper/` that give it.
        settings: What decides about it, as `section.key`; empty: the program or nothing
            does.
        answer: The status that an HTTP server answers before it closes the connection;
            None if it answers nothing: there is no request to answer, or no client to
            read it.
        client: What the client did; the page writes it after "The client".
        mend: What to change if the close was wrong.
    """

    name: str
    given_by: tuple[str, ...]
    settings: tuple[str, ...]
    answer: int | None
    client: str
    mend: str


_rows: dict[str, Reason] = {}

REASONS: Mapping[str, Reason] = MappingProxyType(_rows)
"""Every reason by its name, in the order of the page."""


def _row(
    name: str,
    *settings: str,
    given_by: tuple[str, ...] = ("policy",),
    answer: int | None = None,
    client: str,
    mend: str,
) -> str:
    """Add a row to `REASONS`, and return its *name*, which is what is given."""
    _rows[name] = Reason(name, given_by, settings, answer, client, mend)
    return name


IDLE = _row(
    "idle",
    "timeouts.idle",
    "attach.idle",
    given_by=("policy", "driver", "attach"),
    client="was silent for the whole timeout",
    mend="a longer timeout, or [a ping](../guide.md#ping-before-closing)",
)
KEEP_ALIVE = _row(
    "keep_alive",
    "timeouts.keep_alive",
    client="sent no further request for the whole timeout",
    mend="a longer timeout; [behind a proxy](proxies.md) longer than the proxy's",
)
FIRST_BYTE = _row(
    "first_byte",
    "timeouts.first_byte",
    "attach.first_byte",
    given_by=("policy", "attach"),
    client="connected, and sent nothing",
    mend="a longer timeout",
)
HANDSHAKE = _row(
    "handshake",
    "timeouts.handshake",
    client="did not finish its TLS handshake in time",
    mend="a longer timeout",
)
HEADERS = _row(
    "headers",
    "timeouts.headers",
    answer=408,
    client="did not finish its headers in time",
    mend="a longer timeout",
)
BODY = _row(
    "body",
    "timeouts.body",
    answer=408,
    client="stopped in the middle of a body",
    mend="a longer timeout",
)
MIN_IN_RATE = _row(
    "min_in_rate",
    "limits.min_in_rate",
    "limits.min_in_grace",
    "attach.min_in_rate",
    given_by=("policy", "attach"),
    answer=408,
    client="sent a body too slowly",
    mend="a lower rate",
)
WRITE = _row(
    "write",
    "timeouts.write",
    "attach.stalled_write",
    given_by=("policy", "attach"),
    client="took no byte of the response for the whole timeout",
    mend="a longer timeout",
)
MIN_OUT_RATE = _row(
    "min_out_rate",
    "limits.min_out_rate",
    "limits.min_out_grace",
    client="took the response too slowly",
    mend="a lower rate",
)
HALF_CLOSED = _row(
    "half_closed",
    "timeouts.half_closed",
    client="will send no more, and took nothing, or waited too long for its answer",
    mend="a longer timeout",
)
TUNNEL = _row(
    "tunnel",
    "timeouts.tunnel",
    client="has a WebSocket in which nothing moved",
    mend="a longer timeout, or pings: [WebSockets](websockets.md)",
)
TUNNEL_AGE = _row(
    "tunnel_age",
    "timeouts.tunnel_age",
    client="has an old WebSocket",
    mend="a longer age: [WebSockets](websockets.md)",
)
STREAM_AGE = _row(
    "stream_age",
    "timeouts.stream_age",
    given_by=("servers",),
    client="has read one stream for that long; its connection stays open",
    mend="a longer age: [streams](streams.md)",
)
REQUEST = _row(
    "request",
    "timeouts.request",
    answer=503,
    client="waited for a request that took too long",
    mend="a longer timeout",
)
FLOOD = _row(
    "flood",
    given_by=("servers",),
    client="sent more resets, pings, settings or priorities of HTTP/2 than any client needs",
    mend="nothing",
)
LINGER = _row(
    "linger",
    "timeouts.linger",
    client="did not close after the last response",
    mend="nothing",
)
MAX_AGE = _row(
    "max_age",
    "timeouts.max_age",
    "attach.max_age",
    given_by=("driver", "servers", "attach"),
    client="had an old connection; it was closed between two requests",
    mend="nothing",
)
MAX_REQUESTS = _row(
    "max_requests",
    "limits.max_requests",
    client="had been answered its share of requests, and kept the connection open",
    mend="nothing",
)
VANISHED = _row(
    "vanished",
    "timeouts.vanished",
    "attach.vanished",
    given_by=("driver", "attach"),
    client="is gone: its kernel answered nothing",
    mend="a longer timeout, if its link is away for that long: [streams](streams.md)",
)
UNANSWERED = _row(
    "unanswered",
    given_by=("driver",),
    client="did not reply to a ping within `grace`",
    mend="a longer `grace`",
)
PRESSURE = _row(
    "pressure",
    given_by=("driver",),
    client="was silent for long when memory, descriptors or connections ran short",
    mend="[pressure](../scale.md#pressure)",
)
MOST = _row(
    "most",
    given_by=("keeper",),
    client="was the longest idle of those that a keeper kept, and there was one too many",
    mend="a larger `most`: [keeper](../keeper.md)",
)
ENDED = _row(
    "ended",
    given_by=("keeper",),
    client="was kept by a keeper, and the program had its `end` do so",
    mend="nothing",
)
DRAIN = _row(
    "drain",
    "timeouts.drain_window",
    "timeouts.drain_idle",
    given_by=("driver", "trio", "servers"),
    client="was idle when the server stopped",
    mend="nothing; [drain on deploy](drain.md)",
)
DRAIN_DEADLINE = _row(
    "drain_deadline",
    "timeouts.drain",
    given_by=("driver", "trio", "servers"),
    client="was in use when the server stopped, and still after `timeouts.drain`",
    mend="a longer `drain`",
)

ANSWERS: Mapping[str, int | None] = {name: row.answer for name, row in REASONS.items()}
"""What an HTTP server answers before it closes a connection, by reason. Look up reasons
that are not reaper's with `get`: they have no answer.
"""


def markdown() -> str:
    """The table of the page docs/howto/why-closed.md: one line per reason."""
    lines = [
        "| reason | the client | setting | HTTP answer | what to change, if it was wrong |",
        "|---|---|---|---|---|",
    ]
    for row in REASONS.values():
        settings = ", ".join(f"`{path}`" for path in row.settings) or "none"
        answer = "none" if row.answer is None else str(row.answer)
        lines.append(f"| `{row.name}` | {row.client} | {settings} | {answer} | {row.mend} |")
    return "\n".join(lines) + "\n"
