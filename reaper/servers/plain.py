"""Guards for servers on asyncio that speak no HTTP: either side may speak any time."""

from __future__ import annotations

from ..asyncio.guards import OnTransport
from ..driver.reaper import Reaper
from ..driver.served import Terms
from ..driver.watched import check_idle
from ..policy import Phase
from .guest import silence


class Plain(OnTransport):
    """A connection that is IDLE while its server waits for the client, and IN_FLIGHT
    while that works. The limit counts from the last byte of either side.
    """

    __slots__ = ()

    @classmethod
    def made_terms(cls, reaper: Reaper) -> Terms:
        timeouts = reaper.config.timeouts
        limits = {
            Phase.IDLE: check_idle(getattr(timeouts, silence(reaper.config))),
            Phase.WRITE: check_idle(timeouts.write),
        }
        return Terms(reaper, limits, http=False)
