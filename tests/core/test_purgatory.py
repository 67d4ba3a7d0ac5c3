"""Delayed operations end once, in the promised order, and leave nothing behind."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest

from reaper import ClockWentBackwards, InvalidArgument, InvariantViolated, ReaperError, TimingWheel
from reaper.core.purgatory import DelayedOperation, Purgatory
from reaper.core.wheel import TimerQueue
from reaper.errors import HookErrors
from reaper.testing import HeapTimerQueue


class Op(DelayedOperation):
    """Completes once `ready`; logs what is called."""

    def __init__(self, name: Hashable, deadline: int, log: list[tuple[str, Hashable]]) -> None:
        super().__init__(deadline=deadline)
        self.name, self.log, self.ready = name, log, False
        self.hooks: dict[str, Callable[[], object]] = {}

    def try_complete(self) -> bool:
        self.hooks.get("try", lambda: None)()
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.log.append(("complete", self.name))
        self.hooks.get("complete", lambda: None)()

    def on_expiration(self) -> None:
        self.log.append(("expire", self.name))
        self.hooks.get("expire", lambda: None)()


class Bench:
    """A purgatory on a wheel, with a log of what its operations did."""

    def __init__(self, queue: TimerQueue[DelayedOperation] | None = None) -> None:
        self.wheel: Any = TimingWheel[DelayedOperation]() if queue is None else queue
        self.purgatory = Purgatory(self.wheel)
        self.log: list[tuple[str, Hashable]] = []

    def watch(self, name: Hashable, deadline: int, *keys: Hashable) -> Op:
        op = Op(name, deadline, self.log)
        assert self.purgatory.try_complete_else_watch(op, keys) is False
        self.purgatory.check()
        return op

    def counts(self) -> tuple[int, int, int]:
        self.purgatory.check()
        return self.purgatory.watched, self.purgatory.delayed, len(self.wheel)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def failure(text: str) -> Callable[[], None]:
    def fail() -> None:
        raise LookupError(text)

    return fail


def test_an_operation_that_can_complete_at_once_never_waits(bench: Bench) -> None:
    op = Op("a", 10, bench.log)
    op.ready = True
    assert bench.purgatory.try_complete_else_watch(op, ["k"]) is True
    assert [op.force_complete() for _ in range(2)] == [False, False]
    op.hooks["try"] = failure("it has ended, and is not tried again")
    assert bench.purgatory.try_complete_else_watch(op, ["k"]) is True
    assert (bench.counts(), bench.log, op.completed) == ((0, 0, 0), [("complete", "a")], True)


def test_an_operation_that_completes_while_it_is_being_added_is_added_to_none(
    bench: Bench,
) -> None:
    op = Op("a", 5, bench.log)

    def keys() -> Iterator[str]:
        yield "k"
        op.force_complete()
        yield "j"

    assert bench.purgatory.try_complete_else_watch(op, keys()) is True
    assert (bench.counts(), bench.log) == ((0, 0, 0), [("complete", "a")])


def test_an_operation_waits_in_one_purgatory_once(bench: Bench) -> None:
    op = bench.watch("a", 5, "k")
    for purgatory in (bench.purgatory, Purgatory(TimingWheel[DelayedOperation]())):
        with pytest.raises(InvalidArgument, match="must not wait in a purgatory already"):
            purgatory.try_complete_else_watch(op, ["j"])
    nested = Op("b", 5, bench.log)

    def wait_already() -> None:
        nested.hooks.clear()
        bench.purgatory.try_complete_else_watch(nested, ["j"])

    nested.hooks["try"] = wait_already
    with pytest.raises(InvalidArgument, match="its own try_complete"):
        bench.purgatory.try_complete_else_watch(nested, ["k"])
    assert bench.counts() == (2, 2, 2)


@pytest.mark.parametrize("way", ["checked", "expired"])
def test_what_an_earlier_hook_ends_is_not_ended_again_and_what_it_adds_waits(
    bench: Bench, way: str
) -> None:
    first, second, third = (bench.watch(name, 5, "k") for name in "abd")
    first.hooks["complete"] = lambda: bench.watch("c", 9, "k") and second.force_complete()
    first.ready = third.ready = way == "checked"
    second.hooks["try"] = failure("tried after its end")
    if way == "checked":
        assert bench.purgatory.check_and_complete("k") == 2
    else:
        assert bench.purgatory.advance(5) == [first, third]
    assert [name for call, name in bench.log if call == "complete"] == ["a", "b", "d"]
    assert bench.counts() == (1, 1, 1)


def test_a_hook_may_advance_the_purgatory_and_knows_that_the_deadline_ended_it(
    bench: Bench,
) -> None:
    ops = [bench.watch(number, 5) for number in range(3)]
    inner: list[DelayedOperation] = []
    ops[0].hooks["expire"] = lambda: inner.extend(bench.purgatory.advance(5))
    ops[0].hooks["complete"] = lambda: inner.append(ops[0]) if ops[0].expired else None
    assert bench.purgatory.advance(5) == ops[:1]
    assert inner == ops


def test_hooks_that_raise_lose_no_other_expiry(bench: Bench) -> None:
    ops = [bench.watch(number, 5, "k") for number in range(4)]
    ops[0].hooks["complete"] = failure("first")
    ops[2].hooks["expire"] = failure("third")
    with pytest.raises(HookErrors) as caught:
        bench.purgatory.advance(5)
    assert [str(error) for error in caught.value.exceptions] == ["first", "third"]
    assert caught.value.expired == ops
    assert isinstance(caught.value, ReaperError)
    assert bench.log == [(call, number) for number in range(4) for call in ("complete", "expire")]
    assert bench.counts() == (0, 0, 0)


def test_hooks_that_raise_lose_no_other_check(bench: Bench) -> None:
    ops = [bench.watch(number, 5, "k") for number in range(4)]
    ops[0].hooks["try"] = failure("still waiting")
    ops[1].hooks["complete"] = failure("completed")
    for op in ops[1:]:
        op.ready = True
    with pytest.raises(HookErrors, match="2 hooks raised") as caught:
        bench.purgatory.check_and_complete("k")
    assert caught.value.expired == ops[1:]
    assert bench.purgatory.advance(5) == [ops[0]]


def test_an_operation_whose_first_try_raises_does_not_wait(bench: Bench) -> None:
    waits = bench.watch(0, 5, "k")
    first = Op("a", 5, bench.log)
    first.hooks["try"] = failure("no")
    with pytest.raises(LookupError, match="no"):
        bench.purgatory.try_complete_else_watch(first, ["k"])
    assert bench.counts() == (1, 1, 1)
    assert bench.purgatory.advance(5) == [waits]


def test_a_keyboard_interrupt_in_a_hook_leaves_the_rest_due(bench: Bench) -> None:
    ops = [bench.watch(number, 5, "k") for number in range(3)]

    def interrupt() -> None:
        raise KeyboardInterrupt

    ops[0].hooks["complete"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.purgatory.advance(6)
    assert bench.purgatory.next_expiry() == 6
    assert bench.purgatory.advance(6) == ops[1:]


def test_bad_arguments_are_refused_and_change_nothing(bench: Bench) -> None:
    with pytest.raises(InvalidArgument, match=r"deadline must be an int .* got 1.5"):
        DelayedOperation(deadline=1.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="purge_interval must be .* got 0"):  # noqa: RUF043
        Purgatory(bench.wheel, purge_interval=0)
    assert Purgatory(TimingWheel(), purge_interval=1).advance(0, limit=1) == []
    with pytest.raises(NotImplementedError, match="DelayedOperation must override try_complete"):
        bench.purgatory.try_complete_else_watch(DelayedOperation(deadline=5), ["k"])
    with pytest.raises(InvalidArgument, match="not one string, got 'key'"):
        bench.purgatory.try_complete_else_watch(Op("a", 5, bench.log), "key")
    bench.watch("a", 5, "k")
    bench.purgatory.advance(3)
    with pytest.raises(InvalidArgument, match="limit must be .* got 0"):  # noqa: RUF043
        bench.purgatory.advance(9, limit=0)
    with pytest.raises(ClockWentBackwards):
        bench.purgatory.advance(2)
    assert bench.counts() == (1, 1, 1)


@pytest.mark.parametrize("end", ["complete", "expire", "cancel"])
def test_nothing_refers_to_an_operation_that_has_ended(bench: Bench, end: str) -> None:
    bench.watch("keep", 1000, "k", "j")
    op = bench.watch("a", 500, "k", "j")
    gone = weakref.ref(op)
    if end == "complete":
        op.force_complete()
    elif end == "expire":
        bench.purgatory.advance(500)
    else:
        bench.watch("key of its own", 500, "own").force_complete()
        bench.purgatory.cancel_for_key("j")
    del op  # at once: by its last reference, without a run of the collector
    assert gone() is None
    assert set(bench.purgatory._lists) == (set() if end == "cancel" else {"k", "j"})


@pytest.mark.parametrize("seed", range(4))
def test_counts_and_ends_are_exact_under_any_mixture_of_acts_and_slices(seed: int) -> None:
    bench = Bench(HeapTimerQueue() if seed % 2 else None)  # any conforming timer queue will do
    choose = random.Random(seed)
    waiting: dict[Op, set[int]] = {}
    due: list[Op] = []
    tried: list[Hashable] = []
    ends: list[tuple[str, Hashable]] = []
    now = 0
    for number in range(1_500):
        act = choose.random()
        key = choose.randrange(12)
        if act < 0.5:
            keys = [choose.randrange(12) for _ in range(choose.randrange(4))]
            op = bench.watch(number, now + choose.randrange(-2, 300), *keys)
            op.hooks["try"] = lambda number=number: tried.append(number)  # type: ignore[misc]
            waiting[op] = set(keys)
            continue
        if act < 0.6 and waiting:
            op = choose.choice(list(waiting))
            assert op.force_complete()
            gone: list[Any] = [op]
            ends.append(("complete", op.name))
        elif act < 0.75:
            gone = [
                op for op, keys_of in waiting.items() if key in keys_of and choose.random() < 0.5
            ]
            for op in gone:
                op.ready = True
            tried.clear()
            assert bench.purgatory.check_and_complete(key) == len(gone)
            assert tried == [
                op.name for op, keys_of in waiting.items() if key in keys_of
            ]  # as they began to wait
            ends += [("complete", op.name) for op in gone]
        elif act < 0.8:
            gone = bench.purgatory.cancel_for_key(key)
            assert gone == [op for op, keys_of in waiting.items() if key in keys_of]
        else:
            now += choose.randrange(20)
            limit = choose.choice([None, 1, 3])
            fresh = sorted(
                (op for op in waiting if op.deadline <= now and op not in due),
                key=lambda op: op.deadline,
            )
            due = [
                op for op in due if op in waiting
            ] + fresh  # a slice's rest first; ties as they began to wait
            gone = bench.purgatory.advance(now, limit)
            assert gone == due[:limit]
            ends += [(call, op.name) for op in gone for call in ("complete", "expire")]
        for op in gone:
            del waiting[op]
            assert (op.expired, op.cancelled) == (act >= 0.8, 0.75 <= act < 0.8)
            assert op.completed is not op.cancelled
            assert not op.force_complete()
            assert (
                bench.purgatory.try_complete_else_watch(op, [key]) is True
            )  # it does not wait again
        upcoming = bench.purgatory.next_expiry()
        left = [op for op in due if op in waiting]
        assert (upcoming is None) is not bool(waiting)
        assert upcoming is None or now <= upcoming <= max(now, min(op.deadline for op in waiting))
        assert upcoming == now or not left
        assert bench.counts() == (
            sum(map(len, waiting.values())),
            len(waiting),
            len(waiting) - len(left),
        )
    assert bench.log == ends  # each once, in order
    assert len(ends) > 300


@pytest.mark.parametrize(
    "fault",
    [
        lambda purgatory, op: setattr(purgatory, "_watched", 9),
        lambda purgatory, op: setattr(purgatory, "_delayed", -1),
        lambda purgatory, op: setattr(op, "_completed", True),
        lambda purgatory, op: setattr(op, "_keys", ()),
        lambda purgatory, op: purgatory._lists["k"].clear(),
    ],
    ids=["watched", "delayed", "end", "watches", "key"],
)
def test_check_finds_a_fault_in(fault: Callable[[Purgatory, Op], None], bench: Bench) -> None:
    fault(bench.purgatory, bench.watch("a", 5, "k", "j"))
    with pytest.raises(InvariantViolated):
        bench.purgatory.check()
