"""When the news of a close came to this machine, whenever it was read.

One rule: only the kernel's own stamp counts. What it does not say stays the reader's guess, against the server.
"""

from __future__ import annotations

import os
import socket
import struct

_LAST_ACK_RECEIVED = 56
"""Offset of tcp_info.tcpi_last_ack_recv in linux/tcp.h: milliseconds since the last segment, a FIN included, came."""
GRAIN = 0.01
"""Seconds: the stamp counts the kernel's ticks, of 10 ms at the most."""


def waited(fd: int) -> float:
    """Seconds for which the end of the stream *fd* had been there, at least, before now; 0.0 if that is not known.

    Of a connection that the peer closed with a FIN: nothing comes after it, so the last that came is it.
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_RECEIVED + 4)
    except OSError:
        return 0.0
    if len(info) < _LAST_ACK_RECEIVED + 4:
        return 0.0
    milliseconds: int = struct.unpack_from("I", info, _LAST_ACK_RECEIVED)[0]
    return max(milliseconds / 1000 - GRAIN, 0.0)
