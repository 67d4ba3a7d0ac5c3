"""Who is due, and when: no clock, no I/O, no framework. Imports nothing of the library but `errors`.

Read in this order; less than an hour:

    ring        the whole idea in one class: one timeout, whole ticks
    law         the law of time, before any slot: epochs, wakes, what a reap is
    lease       the handle on one connection, its one-store touch, and the records that are handed out
    reaper      IdleReaper: the law for any timeouts, with slots that wait in a heap or in the wheel
    sweep       what becomes of a slot that is due
    slots       an ordered bag with O(1) add and remove
    timer       one scheduled thing, and the contract of any queue of them
    wheel       the hierarchical timing wheel, for what is due later than the ring's span
    inside      looking in: why a lease is still here, the longest silent, and whether all the books agree
    purgatory   operations that wait for a condition or a deadline, whichever comes first
    ticks       the one place that rounds, and the checks of every number that comes in
"""
