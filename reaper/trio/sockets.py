"""What the kernel is asked about sockets.

The rule of this module: *a question about many descriptors is one call*. It asks and answers; it never waits.
"""

from __future__ import annotations

import fcntl
import select
import sys
import termios
from collections.abc import Iterable


def unread(descriptors: Iterable[int]) -> list[int]:
    """Those of *descriptors*, sockets, for which the kernel holds bytes nobody has read yet.

    One poll(2) for all, 0.1-0.3 us each. An end of file is readable too but no sign of life, hence the count of bytes.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, events in poll.poll(0) if events & select.POLLIN and waiting(descriptor)]


def waiting(descriptor: int) -> int:
    """How many bytes of the socket *descriptor* nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
