"""What all connections of one HTTP server share: the configuration in force, counters,
and whether the server is leaving.

A connection, the parking lot and the routes are given this, and not the server: they
need to know what holds for everybody, and cannot open, drain or reload anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache

import trio

import reaper.trio
from reaper.config import ReaperConfig

from ..status import Desk
from .streams import Streams


@dataclass(slots=True)
class Counters:
    """Plain numbers of one process, exported by `/metrics`."""

    opened: int = 0
    closed: int = 0
    refused: int = 0
    requests: int = 0
    failures: int = 0
    """Routes that raised."""
    lost: int = 0
    """Connections that the peer broke off or let break."""
    reloads: int = 0
    accept_errors: int = 0
    responses: Counter[int] = field(default_factory=Counter)


class Shared:
    """What holds for every connection of one process.

    Attributes:
        config: The configuration in force now.
        watcher: The reaper that closes what is silent.
        counters: What has happened so far.
        leaving: Whether newcomers are still served, but told to go elsewhere next.
        draining: Whether every response is the last of its connection.
        streams: The event streams that are open.
        desk: Answers for all workers; until it is replaced this process is the only
            one.
    """

    desk: Desk

    def __init__(self, config: ReaperConfig, watcher: reaper.trio.TrioReaper) -> None:
        self.config = config
        self.watcher = watcher
        self.counters = Counters()
        self.leaving = self.draining = False
        self.streams = Streams(config, watcher.driver)

    def date(self) -> str:
        """The Date header."""
        return _date(int(trio.current_time()))


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """The date, made once per *second* of the loop's clock: it costs as much as a small
    request.
    """
    return formatdate(usegmt=True)
