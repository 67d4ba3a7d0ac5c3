"""Pressure: how full the process is, and what follows from it. Pure but for `read`;
`driver.pressing` acts on it.

Full is answered before it hurts, a step at a time, and taken back the same way. Below
the low watermark nothing happens. Between the two, silence is borne for a shrinking
share of its timeout (Envoy's scaled timers). Above the high one, the longest silent go,
down to the watermark. At the limit none is accepted until it is left again by a margin.
For memory it is enough that a tenth of the connections has gone: a process keeps most
of what they leave, and gives it to the next ones.

A reading holds for so many newcomers, not only for so long: what is left is divided by
what a connection was seen to cost, and half of that may come before the next reading.
So a crowd is read the more often the faster it comes and the less is left.
"""

from __future__ import annotations

import errno
import math
import resource
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.ticks import check_timeout
from ..errors import InvalidArgument, needs
from ..metrics import Family
from . import cgroup

SPARED = 0.05
"""Share of a control group's memory that is not used: at the whole of it the kernel
kills, so what comes between two readings needs room.
"""


REPLACED = 0.1
"""Share of the connections that makes room in memory by going, whatever is read after
that.
"""


LEAST_COST = 16384
"""Bytes that a connection is taken to cost at least: the next one may be given what
others left, and the one after that not.
"""

CROWD = 64
"""Newcomers after which it is seen anew what a connection costs: fewer say little. No
more come before it has been seen for the first time.
"""

FADES = 0.95
"""What a connection was seen to cost counts less by this factor with each later
crowd.
"""

LEAST_ROOM = 32
"""Newcomers that a reading holds for at least, so that none is paid for by one
connection. What they cost beyond the limit has to fit into `SPARED`.
"""


@dataclass(frozen=True, slots=True)
class Resources:
    """How much of each resource is in use, or how much there is. As a limit, 0 means
    unlimited.

    Raises:
        InvalidArgument: one of them is negative.
    """

    descriptors: int = 0
    memory: int = 0
    """Bytes. In use: those of the whole control group if it has a limit, otherwise the
    resident ones of this process.
    """
    connections: int = 0

    def __post_init__(self) -> None:
        for name in ("descriptors", "memory", "connections"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} must be >= 0, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a reading."""

    load: float
    """The fullest of all resources: in use / limit."""
    of: str
    """The name of that resource; empty if nothing is limited."""
    scale: float
    """Share of its timeout for which silence is borne: 1 without pressure."""
    evict: int
    """How many connections are to go, longest silent first."""
    accept: bool
    """Whether new connections are accepted."""
    room: float
    """How many more connections may come before the next reading; infinite if nothing
    is limited.
    """


class Pressure:
    """Judges readings, remembering only what hysteresis needs.

    Args:
        limits: What is full.
        low, high: Watermarks, shares of a limit, 0 < low < high < 1.
        floor: The scale at and above *high*, 0..1.
        margin: How far below a limit that was hit, and below a watermark that was
            passed, it must fall before that is taken back; a share of the limit, >= 0.
        min_age: Seconds of silence before which no connection is closed for
            pressure, > 0.
    Attributes:
        limits: May be replaced at any time.
        verdict: The last one; None before the first.
        evicted: How many were closed for it; counted by the adapter that closes them.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(
        self,
        limits: Resources,
        *,
        low: float = 0.8,
        high: float = 0.95,
        floor: float = 0.1,
        margin: float = 0.05,
        min_age: float = 1.0,
    ) -> None:
        if not 0 < low < high < 1:
            raise InvalidArgument(
                f"low and high must be 0 < low < high < 1, got {low!r} and {high!r}"
            )
        if not 0 <= floor <= 1:
            raise InvalidArgument(f"floor must be within 0..1, got {floor!r}")
        if not 0 <= margin < low:
            raise InvalidArgument(f"margin must be >= 0 and less than low, got {margin!r}")
        self.limits: Resources = limits
        self._low, self._high, self._floor, self._margin = low, high, floor, margin
        self.min_age: float = check_timeout("min_age", min_age)
        self.verdict: Verdict | None = None
        self.evicted: int = 0
        self._full = 0  # connections when the limit was last reached
        self._cost = 0.0  # bytes that a connection was seen to cost; 0: not seen yet
        self._seen: Resources | None = None  # since when the present crowd comes

    def judge(self, reading: Resources) -> Verdict:
        """Judge *reading*, and remember the verdict for the next one."""
        limits = self.limits
        loads = {
            name: getattr(reading, name) / getattr(limits, name)
            for name in ("descriptors", "memory", "connections")
            if getattr(limits, name)
        }
        of = max(loads, key=loads.__getitem__, default="")
        load = loads.get(of, 0.0)
        scale, accept = self._scale(load), load < 1
        before = self.verdict
        if before is not None:
            # A measure is taken back only once there is room to spare, or it would be
            # needed again at once.
            if scale > before.scale:
                scale = max(before.scale, self._scale(load + self._margin))
            if not before.accept:
                if reading.connections <= self._full * (1 - REPLACED):
                    loads.pop("memory", None)
                accept = max(loads.values(), default=0.0) < 1 - self._margin
        if not accept and (before is None or before.accept):
            self._full = reading.connections
        surplus, room = self._surplus(reading, load), self._room(reading)
        self.verdict = Verdict(load, of, scale, surplus, accept, room)
        return self.verdict

    def _room(self, reading: Resources) -> float:
        """How many may come before the next reading: half of what there is room for, as
        others take of it too. What those take is in what a connection was seen to cost.
        """
        seen = self._seen
        if seen is None or reading.connections < seen.connections:
            self._seen = reading
        elif (more := reading.connections - seen.connections) >= CROWD:
            cost = (reading.memory - seen.memory) / more
            self._cost = max(cost, FADES * self._cost, LEAST_COST)
            self._seen = reading
        limits, room = self.limits, math.inf
        if limits.descriptors:
            room = limits.descriptors - reading.descriptors
        if limits.connections:
            room = min(room, limits.connections - reading.connections)
        if limits.memory:
            left = limits.memory - reading.memory
            room = min(room, left / self._cost if self._cost else 2 * CROWD)
        return max(room / 2, LEAST_ROOM)

    def _scale(self, load: float) -> float:
        share = (load - self._low) / (self._high - self._low)
        return 1 - (1 - self._floor) * min(max(share, 0.0), 1.0)

    def _surplus(self, reading: Resources, load: float) -> int:
        """How many connections too many: each is taken to cost its share of what is in
        use.
        """
        if load <= self._high:
            return 0
        return max(1, round(reading.connections * (1 - self._high / load)))

    def families(self) -> Iterator[Family]:
        """The metrics of the last verdict, for `reaper.metrics`."""
        verdict = self.verdict or Verdict(0.0, "", 1.0, 0, True, math.inf)
        yield Family(
            "reaper_pressure", "gauge", "The fullest resource, in use / limit.", verdict.load
        )
        yield Family(
            "reaper_pressure_scale",
            "gauge",
            "Share of its timeout that silence is borne.",
            verdict.scale,
        )
        yield Family(
            "reaper_pressure_accepting",
            "gauge",
            "1: new connections are accepted.",
            int(verdict.accept),
        )
        yield Family(
            "reaper_pressure_evicted", "counter", "Connections that had to go.", self.evicted
        )


def limits_here(connections: int = 0) -> Resources:
    """The limits of this process: its soft limit of descriptors, the memory of the
    machine or, if that is less, what its control groups allow, less `SPARED`, and
    *connections*.

    Raises:
        ImportError: there is no psutil.
    """
    with needs("pressure", "idle-reaper[pressure]"):
        import psutil
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory, group = psutil.virtual_memory().total, cgroup.memory()
    if group is not None and group.limit < memory:
        memory = round(group.limit * (1 - SPARED))
    return Resources(0 if soft == resource.RLIM_INFINITY else soft, memory, connections)


def read_here(connections: int) -> Resources:
    """Read what this process uses now, or its control group. Cost: listing the
    descriptors, about 5 ms with 20,000 of them.

    Raises:
        ImportError: there is no psutil.
    """
    with needs("pressure", "idle-reaper[pressure]"):
        import psutil
    try:
        process = psutil.Process()
        group = cgroup.memory()
        if group is None or group.limit >= psutil.virtual_memory().total:
            memory = process.memory_info().rss
        else:
            memory = group.limit - group.left
        return Resources(process.num_fds(), memory, connections)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        # psutil needs a descriptor too. That none is left is the reading: all are in
        # use.
        return Resources(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 0, connections)
