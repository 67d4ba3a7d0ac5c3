"""What a connection waits for, read from aiosmtpd.

The rule of this module: *a session that waits in its reader waits for the client*.
While it does anything else, as calling the program's handler, the connection is in use.
"""

from __future__ import annotations

from typing import ClassVar

from ...policy import Phase
from ..plain import Plain


class Session(Plain):
    """A connection of aiosmtpd's `SMTP`."""

    __slots__ = ()

    HEARD: ClassVar[tuple[Phase, ...]] = (Phase.IDLE,)

    def phase(self) -> Phase:
        """IDLE while the session waits in its reader, otherwise IN_FLIGHT."""
        # After STARTTLS the session is the protocol within asyncio's of TLS.
        session = getattr(self.protocol, "_app_protocol", self.protocol)
        return Phase.IN_FLIGHT if session._reader._waiter is None else Phase.IDLE
