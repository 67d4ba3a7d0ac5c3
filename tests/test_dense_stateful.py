"""DenseReaper against the model that judges IdleReaper, and against IdleReaper itself."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import precondition, rule
from test_core_stateful import STEPS, TICK, TIMEOUTS, UIDS, CoreMachine

from reaper import DenseReaper, IdleReaper


class FewNumbers(DenseReaper):
    """Numbers become scarce after 3 epochs, as in the real one after 224, and run out after 7."""

    _numbers = 7
    _age_from = 3


class DenseMachine(CoreMachine):
    def make(self):
        return FewNumbers(tick=TICK, capacity=0)

    def may_stay_open(self):
        return self.core.statistics().slots == FewNumbers._numbers - 1 or self.core.statistics().overlong > 0

    def end_epoch(self):
        overlong = self.core.statistics().overlong
        if self.core.close_epoch(self.now):
            self.close()
        else:
            assert self.core.statistics().slots == FewNumbers._numbers - 1
            assert self.core.statistics().overlong == overlong + 1

    @rule(uids=st.lists(st.integers(-3, 12)))
    def touch_many(self, uids):
        self.core.touch_many(uids)
        self.note_touched(uids)

    @rule(uid=UIDS)
    def touch_inline(self, uid):
        """Also of one that is not registered, or not any more."""
        if uid < self.core.capacity:
            self.core.epochs[uid] = self.core.open_number
            self.note_touched([uid])

    def note_touched(self, uids):
        for uid in uids:
            if uid in self.model and not self.model[uid].suspended:
                self.model[uid].touch(len(self.closed))

    @precondition(lambda self: self.leases)
    @rule(i=st.integers(0, 7))
    def handles_are_equal_as_long_as_they_mean_the_same(self, i):
        uid = sorted(self.leases)[i % len(self.leases)]
        lease = self.leases[uid]
        (other,) = self.core._handles([uid])
        assert (lease, hash(lease)) == (other, hash(other))
        assert not [dead for dead in self.dead if dead == lease]

    @rule(step=STEPS, limit=st.sampled_from([None, 2]))
    def a_final_check_that_fails_reaps_nothing(self, step, limit):
        self.now += step
        self.end_epoch()

        def spare(leases):
            raise InterruptedError

        expired = None
        try:
            expired = self.core.expire(self.now, limit=limit, spare=spare)
        except InterruptedError:
            return
        assert expired == []

    @rule(
        step=STEPS,
        touched=st.sets(UIDS),
        released=st.sets(UIDS),
        retimed=st.dictionaries(UIDS, TIMEOUTS),
        suspended=st.sets(UIDS),
        fails=st.booleans(),
    )
    def what_happens_during_a_final_check_counts(self, step, touched, released, retimed, suspended, fails):
        self.now += step
        self.end_epoch()
        due = {uid for uid in self.model if self.due(uid) <= self.now}
        changed = set()

        def spare(leases):
            assert {lease.uid for lease in leases} == due
            for lease in leases:
                if lease.uid in touched:
                    self.touch(lease.uid, True)
                elif lease.uid in released:
                    self.release(lease.uid)
                elif lease.uid in retimed and retimed[lease.uid] != lease.timeout:
                    self.retime(lease.uid, retimed[lease.uid], None)
                elif lease.uid in suspended:
                    self.suspend(lease.uid)
                else:
                    continue
                changed.add(lease.uid)
            if fails:
                raise InterruptedError
            return []

        try:
            expired = self.core.expire(self.now, spare=spare)
        except InterruptedError:
            return
        assert {expiry.uid for expiry in expired} == (set() if fails else due - changed)
        for expiry in expired:
            del self.model[expiry.uid]
            self.dead.append(self.leases.pop(expiry.uid))


TestDenseAgainstAScan = DenseMachine.TestCase
TestDenseAgainstAScan.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), steps=st.integers(20, 400), age_from=st.sampled_from([1, 2, 5, 224]))
def test_the_same_calls_reap_the_same_connections_at_the_same_instants_as_in_idle_reaper(seed, steps, age_from):
    """Only the order within one due instant is another one: by uid, not by arrival."""
    rng = random.Random(seed)
    idle = IdleReaper(tick=1.0, wheel_size=4, epochs_per_tick=2)
    dense = DenseReaper(tick=1.0, epochs_per_tick=2, capacity=0)
    dense._age_from = age_from
    leases = {}
    now = 50.0
    for _ in range(steps):
        uid = rng.randrange(40)
        if uid not in leases and rng.random() < 0.7:
            timeout, reason = rng.choice([0.4, 1.0, 3.0, 7.5, 60.0, 200.0]), rng.choice(["idle", "headers"])
            leases[uid] = tuple(core.register(uid, timeout, now, reason=reason) for core in (idle, dense))
        choice = rng.random()
        if choice < 0.3:
            assert idle.touch(uid) == dense.touch(uid)
        elif uid in leases and choice < 0.5:
            timeout = rng.choice([0.4, 5.0, 100.0])
            name, *arguments = rng.choice(
                [("touch",), ("suspend",), ("resume", now), ("retime", timeout, now), ("release",)]
            )
            of_idle, of_dense = (getattr(lease, name)(*arguments) for lease in leases[uid])
            assert of_idle == of_dense
            if not leases[uid][0].alive:
                del leases[uid]
        now += rng.choice([0.0, 0.1, 0.5, 0.5, 1.0, 9.0]) * rng.random()
        if rng.random() < 0.7:
            ours, theirs = dense.advance(now), idle.advance(now)
            key = [(e.due, e.uid, e.reason, e.now, e.lateness) for e in ours]
            assert sorted(key) == sorted((e.due, e.uid, e.reason, e.now, e.lateness) for e in theirs)
            assert [entry[0] for entry in key] == sorted(entry[0] for entry in key)
            for expiry in ours:
                assert expiry.lease == leases.pop(expiry.uid)[1]
        else:
            assert idle.close_epoch(now) == dense.close_epoch(now)
        dense.check()
        assert len(idle) == len(dense) == len(leases)
        for uid, (theirs, ours) in leases.items():
            a, b = idle.explain(uid), dense.explain(uid)
            assert (a.due, a.timeout, a.reason, a.suspended) == (b.due, b.timeout, b.reason, b.suspended)
            if not a.suspended:
                assert (a.active_from, a.active_until) == (b.active_from, b.active_until)
            assert (theirs.alive, theirs.timeout, theirs.suspended) == (ours.alive, ours.timeout, ours.suspended)
        a, b = idle.next_wakeup(), dense.next_wakeup()
        assert (a is None) == (b is None)
        if b is not None:
            armed = [idle.explain(uid) for uid in leases if not leases[uid][0].suspended]
            assert b <= min([dense.epoch_ends, *(e.due for e in armed if e.active_until is not None)])
