"""What a server did and what a client saw, as rows: one schema, many writers, one list
append on the event loop.

Importing this package imports neither pyarrow nor any framework; making a `Journal`
that is not off imports pyarrow.

Stability: public.
"""

from __future__ import annotations

from .log import ConnectionLog, Journal
from .schema import SCHEMA_VERSION, JournalStatistics, peer_key

__all__ = ["Journal", "ConnectionLog", "JournalStatistics", "peer_key", "SCHEMA_VERSION"]
