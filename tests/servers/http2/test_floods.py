"""The budget of frames that move nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reaper.servers.http2.floods import BURST, PER_SECOND, SAVED, Budget, Owed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_may_be_spent_at_once_and_no_more() -> None:
    budget = Budget(Clock())
    assert budget.spend(BURST)
    assert not budget.spend(1)


def test_what_was_spent_comes_back_with_time() -> None:
    clock = Clock()
    budget = Budget(clock)
    budget.spend(BURST)
    clock.now += 1.0
    assert budget.spend(int(PER_SECOND))
    assert not budget.spend(1)


def test_a_client_may_cancel_as_many_requests_as_it_lets_be_answered() -> None:
    budget = Budget(Clock())
    for _ in range(10 * BURST):
        assert budget.spend(1)
        budget.left += 1


def test_a_client_may_send_a_ping_for_each_frame_of_data() -> None:
    budget = Budget(Clock())
    for _ in range(10 * BURST):
        budget.moved += 1
        assert budget.spend(1)
    assert budget.spend(BURST)


def test_a_client_that_was_held_up_may_answer_all_that_has_come() -> None:
    budget = Budget(Clock())
    budget.moved += SAVED
    assert budget.spend(SAVED + BURST)
    assert not budget.spend(1)


def test_a_long_download_is_not_saved_for_a_flood() -> None:
    budget = Budget(Clock())
    budget.moved += 10 * SAVED
    budget.spend(1)
    assert not budget.spend(SAVED + BURST + 1)


def test_answers_are_not_saved_for_a_flood() -> None:
    budget = Budget(Clock())
    for _ in range(10 * BURST):
        budget.left += 1
    assert not budget.spend(BURST + 1)


def pieces(draw: st.DataObject, total: int) -> list[int]:
    """*total*, in pieces by chance."""
    cuts = sorted(each for each in draw.draw(st.sets(st.integers(1, 70_000))) if each < total)
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True) if b > a]


@given(st.lists(st.integers(1, 70_000), min_size=1, max_size=8), st.data())
def test_each_byte_may_be_given_back_twice_and_whenever_a_client_likes(
    sent: list[int], draw: st.DataObject
) -> None:
    owed, kept = Owed(), 0
    for count in sent:
        owed.sent(count)
        kept += count
        back = draw.draw(st.integers(0, kept))  # it lags
        kept -= back
        for _ in ("stream", "connection"):
            assert owed.beyond(pieces(draw, back)) == 0
    for _ in ("stream", "connection"):
        assert owed.beyond(pieces(draw, kept)) == 0
    assert owed.bytes == 0
    assert owed.beyond([1]) == 1


def test_what_is_not_owed_uses_up_nothing_that_is() -> None:
    owed = Owed()
    owed.sent(4096)
    assert owed.beyond([0, 1 << 30, 8193]) == 3
    assert owed.beyond([4096, 4096, 1]) == 1
