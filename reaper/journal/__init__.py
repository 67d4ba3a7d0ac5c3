"""What a server did and what a client saw, as rows: one schema, many writers, one list append on the event loop.

    schema.py   the columns, kinds, connection ids and file metadata: all that a reader needs
    log.py      `Journal` and the log of one connection: what an event loop calls
    writer.py   the thread behind it: batches, rotation, retries
    files.py    streams, Parquet files, recovery of what a crash left, retention
    leases.py   leases that log their own long silences: `gaps` mode at the price of one comparison per touch

Importing this package imports neither pyarrow nor any framework; making a `Journal` that is not off imports pyarrow.
"""

from __future__ import annotations

from .log import ConnectionLog, Journal
from .schema import SCHEMA_VERSION, JournalStatistics, peer_key

__all__ = ["Journal", "ConnectionLog", "JournalStatistics", "peer_key", "SCHEMA_VERSION"]
