"""`IdleRing`, which can be read in a minute, says whom `IdleReaper` has to name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reaper import IdleReaper, IdleRing

UIDS = st.integers(0, 9)
DOING = st.sampled_from(["add", "touch", "discard"])
TICKS = st.lists(st.lists(st.tuples(DOING, UIDS), max_size=8), min_size=1, max_size=60)


@given(timeout_ticks=st.integers(1, 12), wheel_size=st.integers(2, 6), ticks=TICKS)
def test_tick_by_tick_with_one_timeout_the_reaper_names_whom_the_ring_names(
    timeout_ticks: int, wheel_size: int, ticks: list[list[tuple[str, int]]]
) -> None:
    # Few slots a level, so that most slots begin far and come near.
    ring, core = IdleRing(timeout_ticks), IdleReaper(tick=1.0, wheel_size=wheel_size)
    idle: list[list[tuple[str, int]]] = [[]] * (timeout_ticks + 2)  # after which nobody is left
    for tick, acts in enumerate(ticks + idle):
        for act, uid in acts:
            if act == "add" and uid not in ring:
                ring.add(uid)
                core.register(uid, float(timeout_ticks), now=float(tick))
            elif act == "touch":
                assert ring.touch(uid) == core.touch(uid)
            elif act == "discard":
                assert ring.discard(uid) == core.discard(uid)
        expired = core.advance(float(tick + 1))
        assert {each.uid for each in expired} == set(ring.advance(tick + 1))
        assert len(expired) == len({each.uid for each in expired})
        assert len(core) == len(ring)
        core.check()
        ring.check()
    assert not len(ring)
