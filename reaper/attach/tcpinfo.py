"""Reads what the kernel says of one TCP connection, as a `Snapshot`.

This module is pure: bytes in, numbers out.

One rule: *the kernel's grain is counted against us*. The kernel stamps in jiffies, so
"48 ms ago" means more than 44 ms ago. `Snapshot.silent` and `Snapshot.since` take off
the grain, and so nothing that is built on them can be early.

Which side opened a connection is not stored anywhere, but follows from its counters:
the opening side's SYN was acknowledged, and counts as a byte that was never sent. The
kernel fills `tcp_info` at one instant, but reads the length of the queue at another,
and a byte that moved in between looks like that SYN, or hides it. So only a quiet look
tells: nothing is on its way, or nothing has moved for `QUIET`. Any other look says
None, "ask again". And before a close it is asked twice: when it finds the connection,
and in the final check.

The kernel counts bytes as sent before it knows whether they have left the machine. What
a full queue or a link that is down has turned away is sent once more and counted once
more, as if it were new: from then on more bytes were sent than can be acknowledged, and
no look tells any more (`Snapshot.miscounted`). Then what was found before has to do.

Source: include/uapi/linux/tcp.h and net/ipv4/tcp.c (`tcp_get_info`) of Linux 4.19 to
6.18. A kernel only ever appends fields; what an old one lacks (before 4.19 the bytes
sent) is refused, never guessed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..errors import ReaperError

ESTABLISHED, SYN_RECV, CLOSE_WAIT, LISTEN = 1, 3, 8, 10
"""The states of a TCP socket in which both directions are open; in which a handshake is
not complete; in which the peer has closed its half and the server has not; and in which
it listens.
"""

JIFFIES_AGAINST_US = 2
"""Jiffies by which a difference of two stamps may be wrong. There is one because both
stamps are rounded, and one more because a busy processor may count a jiffy late.
"""

_READ = struct.Struct("=2xBB4xI12xI16xI4xII60xQQ8xI4xII40xQQ")
"""The fields of `struct tcp_info` that `parse` reads, in its order. Linux 4.19 has all
of them.
"""

QUIET = 50
"""Milliseconds without a byte sent or acknowledged after which what is on its way is
stuck.
"""

_WHO_OPENED = {0: False, 1: True}
"""Whether this side opened the connection, by the bytes acknowledged that were never
sent.
"""


class NoCounters(ReaperError):
    """The kernel's `tcp_info` is too short: it is older than Linux 4.19. Nothing was
    changed.
    """


class Snapshot(NamedTuple):
    """One look at one connection.

    Instants are seconds on the monotonic clock of the process that looked.
    """

    state: int
    """Either `ESTABLISHED` or `CLOSE_WAIT`; other states are not looked at."""
    received_ago: float
    """Seconds since data last came from the peer; since the opening, if none has
    come.
    """
    sent_ago: float
    """Seconds since data was last handed to the network; since the opening, if none
    was.

    A retransmission counts, too.
    """
    received: int
    """Bytes received, without the byte that the kernel counts for the peer's end of
    file.
    """
    acked: int
    """Bytes that the peer's kernel has acknowledged."""
    unread: int
    """Bytes received that the server has not read."""
    queued: int
    """Bytes that the server has written and the peer's kernel has not acknowledged.

    Bytes that have not been sent yet are included.
    """
    before: float
    """Read before the kernel was asked: an instant to measure elapsed time up to."""
    after: float
    """Read after it had answered: an instant to reckon its "ago" from."""
    answered: bool | None = None
    """Whether the server spoke last, if the last data in and out fall into one jiffy.

    None: nothing tells; only a socket in hand does.
    """
    ack_ago: float = 0.0
    """Seconds since the peer's kernel last acknowledged anything, a keep-alive's probe
    included.
    """
    sent: int = -1
    """Bytes sent, where retransmitted ones are counted again; -1: not known."""
    outgoing: bool | None = False
    """Whether this side opened the connection; None if it is too busy to tell by this
    look.
    """
    in_vain: float = 0.0
    """Seconds since the data was sent that this kernel has been retransmitting; 0: it
    is not retransmitting.
    """
    probes: int = 0
    """Probes (keep-alives, or of a full window) that were sent and not answered."""
    segments_in: int = 0
    """Segments with data that came so far."""
    segments_out: int = 0
    """Segments with data that went so far."""
    miscounted: bool = False
    """Whether this look would tell who opened the connection, but for bytes that were
    counted as sent and have never left this machine.
    """

    def silent(self, grain: float) -> float:
        """Seconds for which the peer has certainly sent nothing; may be negative."""
        return self.received_ago - grain

    def since(self, ago: float, grain: float) -> float:
        """The latest instant at which something can have happened that was *ago*
        seconds ago.
        """
        return self.after - max(ago - grain, 0.0)


def parse(
    data: bytes | memoryview, state: int, unread: int, queued: int, before: float, after: float
) -> Snapshot:
    """The snapshot in *data*, a `struct tcp_info` of any kernel since Linux 4.19.

    Args:
        data: As `getsockopt(TCP_INFO)` or the attribute INET_DIAG_INFO gives it.
        state, unread, queued, before, after: See `Snapshot`; not all of them are in
            `tcp_info`.
    Raises:
        NoCounters: *data* is too short.
    Cost: about 2 us.
    """
    if len(data) < _READ.size:
        raise NoCounters(
            f"tcp_info has {len(data)} bytes, expected at least {_READ.size}: this needs Linux 4.19"
        )
    (
        retransmits, probes, rto, unacked, sent_ago, received_ago, ack_ago, acked, received, unsent,
        segments_in, segments_out, sent, resent,
    ) = _READ.unpack_from(data)  # fmt: skip
    if state == CLOSE_WAIT and received:
        received -= 1
    in_vain = 0.0
    if unacked and retransmits and sent_ago < ack_ago:
        # The timeout has doubled with each retransmission; before the latest of them,
        # they took this long together.
        in_vain = min(sent_ago / 1e3 + rto / 1e6 * (1 - 0.5**retransmits), ack_ago / 1e3)
    # If nothing is on its way, all that is queued is unsent, and its length is not
    # needed.
    outgoing, miscounted = None, False
    if not unacked or min(sent_ago, ack_ago) >= QUIET:
        never_sent = acked - (sent - resent - (queued - unsent if unacked else 0))
        outgoing, miscounted = _WHO_OPENED.get(never_sent), never_sent < 0
    return Snapshot(
        state, received_ago / 1e3, sent_ago / 1e3, received, acked, unread, queued, before, after,
        None, ack_ago / 1e3, sent, outgoing, in_vain, probes,
        segments_in, segments_out, miscounted,
    )  # fmt: skip
