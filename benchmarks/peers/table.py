"""All peers by group, in the order in which tables have them."""

from __future__ import annotations

from .loops import AsyncioTimer, TrioMoveOn, TrioScope, UvloopTimer
from .ours import (
    AttributeStore,
    DictStore,
    EmptyAgain,
    EmptyCall,
    LeaseTouch,
    RingTouch,
    UidTouch,
)  # fmt: skip
from .peer import Peer
from .structures import DictScan, HeapPerTouch, HeapRearmed, Lru, NumpyScan, Sorted

__all__ = [
    "ALL", "CONTROLS", "FLOORS", "OURS", "OUR_NAMES", "THEIRS", "AsyncioTimer", "AttributeStore",
    "DictScan", "DictStore", "EmptyAgain", "EmptyCall", "HeapPerTouch", "HeapRearmed", "LeaseTouch", "Lru", "NumpyScan",
    "Peer", "RingTouch", "Sorted", "TrioMoveOn", "TrioScope", "UidTouch", "UvloopTimer",
]  # fmt: skip

FLOORS: list[type[Peer]] = [EmptyCall, EmptyAgain, AttributeStore, DictStore]
OURS: list[type[Peer]] = [LeaseTouch, UidTouch, RingTouch]
THEIRS: list[type[Peer]] = [
    HeapPerTouch, HeapRearmed, Sorted, Lru, DictScan, NumpyScan, AsyncioTimer, UvloopTimer, TrioScope, TrioMoveOn,
]  # fmt: skip
ALL: list[type[Peer]] = [*FLOORS, *OURS, *THEIRS]
OUR_NAMES = frozenset(peer.name for peer in OURS)
CONTROLS = frozenset({EmptyAgain.name})
