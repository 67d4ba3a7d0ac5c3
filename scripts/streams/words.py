"""What the streams of these trials say: to their readers, and in the log of their
server.
"""

from __future__ import annotations

FIRST = b"data: first\n\n"
LAST = b"data: last\n\n"
PING = b":\n\n"
BEGINS, ENDS = "the handler begins:", "the handler ends:"
