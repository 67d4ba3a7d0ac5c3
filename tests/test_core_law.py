"""The law of time by brute force: wakes with jitter, stalls, polls; a plain list of real instants is the judge."""

from __future__ import annotations

import random

import pytest

from reaper import IdleReaper

PEERS = 60


WOKEN = [(epochs_per_tick, jitter, None) for epochs_per_tick in (1, 2, 3) for jitter in (0.0, 0.003, 0.9, 5.0)]
POLLED = [(1, 0.0, gap) for gap in (0.06, 0.26, 0.49, 0.71, 1.0)]


@pytest.mark.parametrize(("epochs_per_tick", "jitter", "gap"), WOKEN + POLLED)
def test_never_early_and_at_most_one_tick_plus_the_loops_own_delay_late(epochs_per_tick, jitter, gap):
    """Lateness counts from the real instant of the last byte, not from the epoch. Woken when the core asks for it, or
    polled once in *gap*, whatever it asks for."""
    chance = random.Random(7)
    core = IdleReaper(1.0, 4, epochs_per_tick=epochs_per_tick)
    now = -100.0  # any clock will do
    most = 300.0 if gap is None else 30.0
    timeout = {uid: chance.choice([0.4, 3.0, 5.5, 30.0, most]) for uid in range(PEERS)}
    leases = {uid: core.register(uid, timeout[uid], now) for uid in timeout}
    last = dict.fromkeys(timeout, now)
    quiet_from = now + most
    worst = 0.0
    delays = []
    while leases:
        wake = core.next_wakeup() if gap is None else now + gap
        delays.append(chance.random() * jitter)
        # Bytes arrive and are read at any instant up to the wake, in order.
        for instant in sorted(now + chance.random() * max(wake - now, 0.0) for _ in range(4)):
            uid = chance.randrange(PEERS)
            if now < quiet_from and uid in leases:
                leases[uid].touch()
                last[uid] = instant
        now = max(now, wake) + delays[-1]
        for expiry in core.advance(now):
            del leases[expiry.uid]  # a KeyError: not exactly once
            late = now - (last[expiry.uid] + timeout[expiry.uid])
            assert late >= 0.0, "early"
            assert expiry.lateness >= 0.0
            worst = max(worst, late)
        core.check()
    # The epoch may have ended late by one delay and the reap come late by another; nothing else adds to the tick.
    assert worst <= 1.0 / epochs_per_tick + (2 * max(delays) if gap is None else gap) + 1e-9
