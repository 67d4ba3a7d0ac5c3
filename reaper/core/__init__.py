"""Who is due, and when: no clock, no I/O, no framework. Imports nothing of the library
but `errors`.

Read in this order; less than an hour:

    ring        the whole idea in one class: one timeout, whole ticks
    reaper      IdleReaper: any uids, any timeouts. Begins with the theory: epochs,
                slots, wakes, the final check
    lease       the handle on one connection, its one-store touch, and the records
                handed out
    agenda      where slots wait until they are due: near or far
    sweep       what becomes of a slot that is due
    slots       an ordered bag with O(1) add and remove
    wheel       the hierarchical timing wheel, for slots that are far; the contract of
                timer queues
    introspect  looking in: why a lease is still here, the longest silent, whether the
                books agree
    purgatory   operations that wait for a condition or a deadline, whichever comes
                first
    ticks       the one place that rounds, and the checks of every number that comes in
"""

from __future__ import annotations

from .lease import Expiry, Explanation, Lease, Statistics
from .purgatory import DelayedOperation, Purgatory
from .reaper import IdleReaper
from .ring import IdleRing
from .wheel import Level, Timer, TimingWheel

__all__ = [
    "IdleReaper",
    "Lease",
    "Expiry",
    "Explanation",
    "Statistics",
    "IdleRing",
    "TimingWheel",
    "Timer",
    "Level",
    "DelayedOperation",
    "Purgatory",
]
