"""IdleReaper against an obvious model: a dict of last epochs, a list of closing
instants, and a scan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reaper import DuplicateUid, Expiry, IdleReaper, Lease

UIDS = st.integers(0, 7)
TIMEOUTS = st.sampled_from([0.3, 1.0, 2.5, 4.0, 9.0, 65.0, 1000.0, None])
STEPS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0, 2.0, 5.0, 64.0, 5000.0])
TICK = 1.0


@dataclass
class Model:
    lease: Lease
    timeout: float | None
    reason: str
    epoch: int  # its number
    suspended: bool = False
    postponed: bool = False


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = IdleReaper(tick=TICK, wheel_size=4)
        self.now = 1000.0
        self.closed: list[float] = []  # of epoch 0, 1, ...; the open one is number len(closed)
        self.opened = 0.0
        self.model: dict[int, Model] = {}
        self.dead: list[Lease] = []
        self.averted = 0
        self.lateness = [0.0]

    # ---- the model ----
    def close(self) -> None:
        self.closed.append(self.now)
        self.opened = self.now
        for entry in self.model.values():
            entry.postponed = False

    def close_if_nothing_armed(self) -> None:
        if all(entry.suspended for entry in self.model.values()):
            self.close()

    def end_epoch(self) -> None:
        assert self.core.close_epoch(self.now)
        self.close()

    def ended(self, uid: int) -> float:
        """When the epoch of the last activity ended."""
        entry = self.model[uid]
        return math.inf if entry.epoch == len(self.closed) else self.closed[entry.epoch]

    def due(self, uid: int) -> float:
        entry = self.model[uid]
        return (
            math.inf
            if entry.suspended or entry.timeout is None
            else self.ended(uid) + entry.timeout
        )

    def expect(self, expired: list[Expiry], limit: int | None, now: float) -> None:
        due = sorted(
            self.due(uid)
            for uid, entry in self.model.items()
            if not entry.postponed and self.due(uid) <= now
        )
        if limit is not None:
            due = due[:limit]
        assert (
            [self.due(expiry.uid) for expiry in expired]
            == due
            == [expiry.due for expiry in expired]
        )
        for expiry in expired:
            self.ends(expiry, now)

    def ends(self, expiry: Expiry, now: float) -> None:
        entry = self.model.pop(expiry.uid)
        assert expiry == (
            expiry.uid,
            entry.lease,
            entry.reason,
            expiry.due,
            now,
            now - expiry.due,
            entry.timeout,
        )
        self.dead.append(entry.lease)
        self.lateness.append(expiry.lateness)

    # ---- the rules ----
    @rule(uid=UIDS, timeout=TIMEOUTS, reason=st.sampled_from(["idle", "headers"]))
    def register(self, uid: int, timeout: float, reason: str) -> None:
        if uid in self.model:
            with pytest.raises(DuplicateUid, match=f"uid {uid} is registered already"):
                self.core.register(uid, timeout=timeout, now=self.now)
            return
        self.close_if_nothing_armed()
        lease = self.core.register(uid, timeout=timeout, now=self.now, reason=reason)
        self.model[uid] = Model(lease, timeout, reason, len(self.closed))

    @rule(uid=UIDS, timeout=TIMEOUTS, other=UIDS)
    def take_over_the_activity_of_another(self, uid: int, timeout: float, other: int) -> None:
        if uid not in self.model and other in self.model and not self.model[other].suspended:
            self.close_if_nothing_armed()
            lease = self.core.register(
                uid, timeout=timeout, now=self.now, since=self.model[other].lease
            )
            self.model[uid] = Model(lease, timeout, "idle", self.model[other].epoch)

    @rule(uid=UIDS, by_lease=st.booleans())
    def touch(self, uid: int, by_lease: bool) -> None:
        if by_lease and uid in self.model:
            self.model[uid].lease.touch()
        else:
            assert self.core.touch(uid) == (uid in self.model)
        if uid in self.model and not self.model[uid].suspended:
            self.model[uid].epoch = len(self.closed)

    @rule(uid=UIDS)
    def suspend(self, uid: int) -> None:
        if uid in self.model:
            assert self.model[uid].lease.suspend() == (not self.model[uid].suspended)
            self.model[uid].postponed = False
            self.model[uid].suspended = True

    @rule(uid=UIDS)
    def resume(self, uid: int) -> None:
        if uid in self.model:
            was = self.model[uid].suspended
            if was:
                self.close_if_nothing_armed()
                self.model[uid].suspended = False
                self.model[uid].epoch = len(self.closed)
            assert self.model[uid].lease.resume(self.now) == was

    @rule(uid=UIDS, timeout=TIMEOUTS, reason=st.sampled_from([None, "body"]))
    def retime(self, uid: int, timeout: float, reason: str | None) -> None:
        if uid in self.model:
            assert self.model[uid].lease.retime(timeout, self.now, reason)
            self.model[uid].postponed = False
            self.model[uid].timeout = timeout
            self.model[uid].reason = reason or self.model[uid].reason

    @rule(uid=UIDS)
    def release(self, uid: int) -> None:
        if uid in self.model:
            assert self.model[uid].lease.release()
            self.dead.append(self.model.pop(uid).lease)
        else:
            assert not self.core.discard(uid)

    @precondition(lambda self: self.dead)
    @rule(i=st.integers(0, 100))
    def poke_the_dead(self, i: int) -> None:
        lease = self.dead[i % len(self.dead)]
        lease.touch()
        assert (lease.alive, lease.timeout, lease.reason, lease.suspended) == (
            False,
            None,
            None,
            False,
        )
        assert not lease.suspend()
        assert not lease.resume(self.now)
        assert not lease.retime(1.0, self.now)
        assert not lease.release()

    @rule(step=STEPS)
    def close_epoch(self, step: float) -> None:
        self.now += step
        self.end_epoch()

    @rule(limit=st.sampled_from([None, 1, 2, 3]))
    def expire(self, limit: int | None) -> None:
        self.expect(self.core.expire(self.now, limit=limit), limit, self.now)

    @rule(step=STEPS, limit=st.sampled_from([None, 1, 2]))
    def advance(self, step: float, limit: int | None) -> None:
        self.now += step
        before = self.core.statistics().epochs
        expired = self.core.advance(self.now, limit=limit)
        closed = self.core.statistics().epochs > before
        assert closed == (self.now - self.opened >= TICK / 2)
        if closed:
            self.close()
        self.expect(expired, limit, self.now)

    @rule(
        step=STEPS,
        answers=st.dictionaries(UIDS, st.booleans()),
        collection=st.booleans(),
        touched=st.sets(UIDS),
        limit=st.sampled_from([None, 2]),
    )
    def expire_with_a_final_check(
        self,
        step: float,
        answers: dict[int, bool],
        collection: bool,
        touched: set[int],
        limit: int | None,
    ) -> None:
        self.now += step
        self.end_epoch()
        answered = {}
        due = {uid: self.due(uid) for uid in self.model}

        def spare(leases: Sequence[Lease]) -> Sequence[Lease] | dict[Lease, bool]:
            for lease in leases:
                assert lease.alive
                if lease.uid in touched:
                    self.touch(lease.uid, True)
                elif lease.uid in answers:
                    answered[lease] = answers[lease.uid] or collection
            return list(answered) if collection else answered

        expired = self.core.expire(self.now, limit=limit, spare=spare)
        self.averted += len(answered)
        for expiry in expired:
            assert expiry.lease not in answered
            assert expiry.uid not in touched
            assert expiry.due == due[expiry.uid] <= self.now
            self.ends(expiry, self.now)
        for lease, active in answered.items():
            if active:
                self.model[lease.uid].epoch = len(self.closed)
            else:
                self.model[lease.uid].postponed = True

    # ---- what always holds ----
    @invariant()
    def agrees(self) -> None:
        self.core.check()
        assert all(
            slot.chunks for slot in self.core._never.row
        )  # the last to leave leaves nothing behind
        assert len(self.core) == len(self.model)
        statistics = self.core.statistics()
        assert statistics.suspended == sum(entry.suspended for entry in self.model.values())
        assert statistics.epochs == len(self.closed)
        assert (statistics.registered, statistics.averted) == (len(self.model), self.averted)
        assert (statistics.expired, statistics.max_lateness) == (
            len(self.lateness) - 1,
            max(self.lateness),
        )
        assert statistics.expired + statistics.released == len(self.dead)

    @invariant()
    def wakes_exactly(self) -> None:
        armed = [uid for uid, entry in self.model.items() if not entry.suspended]
        wake = self.core.next_wakeup()
        if not armed:
            assert wake is None
        else:
            assert wake is not None
            # Never later than anything due or the end of the epoch. It may come earlier
            # than any real due instant: for a slot whose leases have all been touched,
            # to move them on.
            assert wake <= min(
                self.opened + TICK,
                *(self.due(uid) for uid in armed if not self.model[uid].postponed),
                math.inf,
            )

    @invariant()
    def explains(self) -> None:
        for uid, entry in self.model.items():
            explanation = self.core.explain(uid)
            assert (explanation.timeout, explanation.reason) == (entry.timeout, entry.reason)
            assert explanation.suspended == entry.suspended
            lease = entry.lease
            assert (lease.timeout, lease.reason) == (entry.timeout, entry.reason)
            assert (lease.active_from, lease.active_until) == (
                explanation.active_from,
                explanation.active_until,
            )
            if entry.suspended or entry.timeout is None:
                assert explanation.due is None
            elif self.ended(uid) < math.inf:
                assert (explanation.active_until, explanation.due) == (
                    self.ended(uid),
                    self.due(uid),
                )
            else:
                assert (explanation.active_until, explanation.active_from) == (None, self.opened)
                assert explanation.due == self.opened + TICK + entry.timeout

    @invariant()
    def knows_the_oldest(self) -> None:
        armed = {uid: self.ended(uid) for uid, entry in self.model.items() if not entry.suspended}
        oldest = self.core.oldest(3)
        assert [armed[uid] for uid in oldest] == sorted(armed.values())[:3]


TestCoreAgainstAScan = CoreMachine.TestCase
TestCoreAgainstAScan.settings = settings(
    max_examples=settings().max_examples * 6 // 5, stateful_step_count=60, deadline=None
)
