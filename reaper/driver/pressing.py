"""Acting on pressure: which connections go when descriptors or memory run short. *No
connection with a request in flight is let go*: only one that waits for bytes and has
none unread. Its lease says so by its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NoReturn

from ..policy.pressure import Pressure, Resources, Verdict, read_here
from ..policy.reasons import FIRST_BYTE, IDLE, KEEP_ALIVE, PRESSURE
from .driver import unread_of
from .reaper import Reaper
from .watched import Reapable

IDLE_REASONS = frozenset({IDLE, FIRST_BYTE, KEEP_ALIVE})
"""Reasons of leases that wait for something to begin."""

OFTEN = 4
"""Readings per tick while there is pressure: what is left may be gone within a tick."""

LOOKS = 1024
"""Connections looked at, longest silent first, per reading; as many may be let go."""


async def relieve(
    watcher: Reaper,
    pressure: Pressure,
    *,
    read: Callable[[int], Resources] = read_here,
    every: float | None = None,
    reasons: Collection[str] = IDLE_REASONS,
) -> NoReturn:
    """Read, judge and act until cancelled. Start it once, as a task next to the
    servers.

    Args:
        watcher: Whose connections may have to go. As before any reap, a peer that has
            spoken is heard first.
        pressure: Judges.
        read: Called with the number of connections; `read_here` reads this process, by
            psutil.
        every: Seconds between two readings; None: a tick, and a quarter of one under
            pressure.
        reasons: Of leases that may be let go.
    Raises:
        ImportError: *read* is not given, and there is no psutil.
    """
    try:
        while True:
            verdict = press(watcher, pressure, read, reasons)
            await watcher.sleep(
                until_next(verdict, watcher.driver.core.tick) if every is None else every
            )
    finally:
        watcher.accepting, watcher.room, watcher.reading = True, watcher.most, None


def press(
    watcher: Reaper,
    pressure: Pressure,
    read: Callable[[int], Resources] = read_here,
    reasons: Collection[str] = IDLE_REASONS,
) -> Verdict:
    """Read and judge once, and act on it. Newcomers are limited at once; connections
    that have to go are closed once the loop has read. From then on *watcher* reads anew
    when more connections have come than this reading holds for.
    """
    count = watcher.count()
    verdict = pressure.judge(read(count))
    watcher.accepting = verdict.accept
    watcher.room = min(watcher.most, count + verdict.room)
    watcher.reading = partial(press, watcher, pressure, read, reasons)

    def relieved() -> None:
        pressure.evicted += let_go(watcher, verdict, pressure.min_age, reasons)

    if verdict.scale < 1 or verdict.evict:
        watcher.driver.after(0.0, relieved)
    return verdict


def until_next(verdict: Verdict, tick: float) -> float:
    """Seconds from the reading that *verdict* judges to the next one."""
    return tick if verdict.scale == 1 else tick / OFTEN


def let_go(
    watcher: Reaper, verdict: Verdict, min_age: float, reasons: Collection[str] = IDLE_REASONS
) -> int:
    """Reap the connections that have to go by *verdict*. Returns how many.

    These go: connections that have been silent for `scale` of their timeout; then the
    longest silent, until `evict` have gone. None goes that has been silent for less
    than *min_age* seconds.
    """
    now = watcher.driver.now()
    doomed: list[Reapable] = []
    core = watcher.driver.core
    others = max(
        0, len(core) - watcher.count()
    )  # leases that are no connections, and never touched perhaps
    for uid in core.oldest(LOOKS + others):
        explained = core.explain(uid)
        silent = 0.0 if explained.active_until is None else now - explained.active_until
        if silent < min_age:
            break  # and so are all after it
        connection = watcher.driver.owner_of(uid)
        if explained.reason not in reasons or connection is None:
            continue
        silent, limit = connection.silence(explained, now)
        enough = limit is not None and silent >= limit * verdict.scale
        surplus = silent >= min_age and len(doomed) < verdict.evict
        if (enough or surplus) and not connection.busy:
            doomed.append(connection)
    spoken = unread_of(doomed)
    gone = 0
    for connection in doomed:
        if connection.descriptor not in spoken:
            connection.reap(PRESSURE)
            gone += 1
    return gone
