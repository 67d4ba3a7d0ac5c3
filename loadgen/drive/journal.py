"""Writes the client's view as a journal: what it sent, and when it saw the server
close.

One rule: this is a record, not a judgement. It uses the library's schema and writer,
nothing else of the library, and only on demand. The plan and the verdict of a run never
read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..plan.behaviours import Behaviour
from ..plan.plan import Law
from ..units import BadArgument, Target

LEAST_GAP_SHARE = 0.25
"""Silences longer than this share of the timeout are written (and all beyond a second);
shorter ones are summed.
"""


class ClientJournal:
    """The journal of one process: given seconds of the monotonic clock, it writes
    nanoseconds.

    Raises BadArgument: the library or pyarrow is not installed, or *directory* cannot
    be written.
    """

    def __init__(self, directory: Path, target: Target, law: Law) -> None:
        try:
            from reaper.journal import Journal, peer_key

            self.journal = Journal(
                directory, tick=law.tick, gap_threshold=min(LEAST_GAP_SHARE * law.timeout, 1.0)
            )
        except ImportError as error:
            raise BadArgument(f"--journal {directory}: {error}; or leave the option out") from None
        except OSError as error:
            wanted = "give a directory that can be written"
            raise BadArgument(f"--journal {directory}: {error.strerror}: {wanted}") from None
        self.peer_key = peer_key
        self.target = (target.host, target.port)
        self.listener = f"{target.host}:{target.port}"

    def opened(self, behaviour: Behaviour, now: float, own_address: tuple[Any, ...]) -> Any:
        """Return the log of a connection that is up. One that is not judged has no
        timeout.
        """
        timeout = behaviour.timeout if behaviour.judged and not behaviour.deadline else 0.0
        peer = self.peer_key(own_address, self.target)
        return self.journal.open(
            to_ns(now), round(timeout * 1e3), self.listener, peer, behaviour.name
        )

    def finish(self, now: float) -> int:
        """Write everything, after the last connection. Returns how many rows were
        lost.
        """
        self.journal.drain(to_ns(now), "end of run")
        return self.journal.close().dropped


def to_ns(instant: float) -> int:
    """Whole nanoseconds, rounded down."""
    return int(instant * 1e9)
