"""The journal's schema: the one thing that writers and readers share.

One row per event. A row explains itself: it carries the silence that preceded it and
the timeout that was in force, so that a reader needs neither a sort nor the row before.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, shown

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
"""Version that is written, and the newest that is read."""

OPEN, ACTIVITY, REAP, AVERTED, CLOSE_PEER, CLOSE_APP, DRAIN, CONFIG = range(8)
KINDS = ("open", "activity", "reap", "averted", "close_peer", "close_app", "drain", "config")
"""Kind names by code. `close_peer`: the other side ended it; `close_app`: this side's
program; `reap`: the reaper. `drain` and `config` belong to the writer, not to a
connection: all its connections have ended; settings and stalls. `config` rows of one
connection are the exception, see `RETIME` and `STILL_OPEN`.
"""

STALL = "stall"
"""Reason of a `config` row that reports how long (`idle_ns`) the event loop was stalled
up to `t`.
"""

RETIME = "retime"
"""Reason of a `config` row of one connection: from `t` on, `timeout_ms` is in force. No
other `config` row but `STILL_OPEN` has a timeout. Without it a connection that leaves
no further row would be judged by the timeout before. Where the change came during a
silence, `idle_ns` is its length so far, and `due_ns` is when it was due until then.
"""

STILL_OPEN = "open"
"""Reason of a `config` row of one connection that is open when a file is finished:
silent for `idle_ns` up to `t` under `timeout_ms`, due at `due_ns`; `n` and
`idle_sum_ns` as an end row has them. No other `config` row has `idle_sum_ns`.
"""

DROPPED = "dropped"
"""Reason of a `config` row that reports how many rows (`n`) its writer has lost since
it began.
"""

ALIVE = "alive"
"""Reason of a `config` row that a writer without other rows leaves every few minutes:
silence is then no server.
"""

UNNAMED = "(unnamed)"
"""What answers call the connections whose opening names no listener."""

ENDS = ("reap", "close_peer", "close_app")
OWN = ("drain", "config")

WRITER_BITS = 20
SEQUENCE_BITS = 43
PREFIX = "reaper."
"""Every key of ours in a file's metadata begins with it."""

Row = tuple[Any, ...]
"""(t, conn, kind code, idle_ns, nbytes, timeout_ms, due_ns, listener, reason, n,
idle_sum_ns, peer)
"""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A snapshot of one journal. Counts are since it was made."""

    rows: int
    """Rows flushed to the file system: a killed process does not lose them. Those that
    tell of open connections once more are not counted.
    """
    pending: int
    """Rows that wait for the writer."""
    dropped: int
    """Rows lost: the queue was full, or they could not be written, or their directory
    went.
    """
    files: int
    """Parquet files put in place, recovered ones included."""
    recovered: int
    """How many of those files were made from what a crash left."""
    deleted: int
    """Files deleted to stay within the size."""
    errors: int
    """Failures of the writer; it goes on after each."""
    last_error: str | None
    """The latest of them, in words."""
    alive: bool
    """Whether the writer's thread runs."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, Arrow type by name, whether every row has a value."""

    name: str
    type: str
    required: bool = False


COLUMNS = (
    Column("t", "int64", required=True),  # ns on the writer's monotonic clock
    Column("conn", "int64", required=True),  # writer id in the high bits; see connection_id
    Column("kind", "dictionary", required=True),
    Column(
        "idle_ns", "int64"
    ),  # silence that ended with this row: t - previous activity; on an end row censored
    Column("nbytes", "int32"),
    Column(
        "timeout_ms", "int32"
    ),  # in force during that silence; 0: none; null on a reap: a deadline, judge by due_ns
    Column("due_ns", "int64"),  # reap: the instant from which it was allowed
    Column("listener", "dictionary"),
    Column("reason", "dictionary"),
    Column("n", "int64"),  # end row: activities counted, at least the activity rows written
    Column("idle_sum_ns", "int64"),  # end row: sum of idle_ns over the activity rows written
    Column(
        "peer", "int64"
    ),  # open row: peer_key(), the same number on both sides of one connection
    Column(
        "wall_offset_ns", "int64"
    ),  # t + this = Unix time in ns, measured at least once per minute
)


def arrow_schema(metadata: dict[str, str] | None = None) -> pa.Schema:
    """The schema that is written, as Arrow. Adds the prefix to *metadata* keys. Imports
    pyarrow.
    """
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "int32": pa.int32(),
        "dictionary": pa.dictionary(pa.int16(), pa.string()),
    }
    return pa.schema(
        [
            pa.field(column.name, types[column.type], nullable=not column.required)
            for column in COLUMNS
        ],
        metadata={PREFIX + key: value for key, value in (metadata or {}).items()},
    )


def connection_id(writer: int, sequence: int) -> int:
    """The id of a writer's connection: *writer* in the high 20 bits, *sequence* in the
    low 43, the sign bit free.

    A run's first stands for the writer itself.

    Raises:
        InvalidArgument: a part does not fit.
    """
    if not 0 <= writer < 1 << WRITER_BITS:
        raise InvalidArgument(
            f"writer must be an integer in 0..{(1 << WRITER_BITS) - 1}, got {shown(writer)}"
        )
    if not 0 <= sequence < 1 << SEQUENCE_BITS:
        raise InvalidArgument(
            f"sequence must be an integer in 0..2**{SEQUENCE_BITS} - 1, got {shown(sequence)}"
        )
    return writer << SEQUENCE_BITS | sequence


def peer_key(client: tuple[Any, ...], server: tuple[Any, ...]) -> int:
    """One number for one TCP connection, the same whichever side computes it: how two
    journals are joined.

    A hash of both addresses and ports, so no address is stored. The kernel may give the
    pair to a later connection; the two are told apart by when they were open. Behind an
    address translator the sides see different pairs: no join.

    Args:
        client: (host, port, ...) of the side that connected: its getsockname(), the
            server's getpeername().
        server: (host, port, ...) of the side that accepted: its getsockname() on the
            accepted socket.
    Returns:
        0 <= key < 2**63. Among 100,000 connections two keys coincide with a probability
        of 1 in 10**9.
    Raises:
        InvalidArgument: a host is not a numeric IP address.
    Cost: about 3 us; once per connection.
    """
    digest = hashlib.blake2b(_packed(client) + _packed(server), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _packed(address: tuple[Any, ...]) -> bytes:
    try:
        host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        raise InvalidArgument(
            f"address must begin with a numeric IP address, got {shown(address)}"
        ) from None
    # A dual-stack server sees ::ffff:127.0.0.1 where the client has 127.0.0.1.
    mapped = getattr(host, "ipv4_mapped", None)
    return (mapped or host).packed + int(address[1]).to_bytes(2, "big")
