"""The lint finds what a configuration may say and yet should not.

One rule: *a finding says what would be right*. An `error` is a configuration that
cannot keep its promise, a `warning` one that keeps it at a price, a `note` a
consequence worth knowing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from .balancers import BALANCERS, ENDLESS
from .durations import format_duration
from .options import Duration
from .settings import BEHIND, DEFAULT, OPTIONS, ReaperConfig

Severity = Literal["error", "warning", "note"]

AGE_KEYS = ("request", "max_age", "tunnel_age", "stream_age", "vanished")
"""Limits that no byte extends. They are late by up to a tick, as timeouts are."""
ATTACH_KEYS = ("idle", "first_byte", "max_age", "stalled_write")

IDLE_KEYS = (
    "idle",
    "first_byte",
    "handshake",
    "headers",
    "body",
    "keep_alive",
    "write",
    "tunnel",
    "half_closed",
)
"""The timeouts that measure silence; the others measure age, grace or shutdown."""

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
GOOD_SHARE = 0.1  # a tenth of the shortest timeout: closes are at most 10 % later than promised
EPOCHS_PER_TICK = 2  # of the trio adapter: half a tick stays in hand for a loop that wakes late
COARSE_SHARE = 0.25  # one tick late is then up to a quarter of the shortest timeout
SHORT_OUTAGE = 10.0  # seconds that a handover, a lift, or a rebooting switch may cut a link
KUBERNETES_GRACE = 30.0  # terminationGracePeriodSeconds, unless it is set
LONGEST = 10 * 365 * 86400.0
"""Seconds; a longer timeout is a slip of the pen."""
LEASE_BYTES = 111  # of a lease and its place in the map, by docs/performance.md
KERNEL_BYTES = (
    5000  # of an accepted socket at rest: half of the 8 to 10 KB that a pair was seen to take
)
CLOSES_A_PASS = 128  # REAPS_PER_SLICE of driver/pace.py, which this room may not import
CLOSE_SECONDS = 65e-6  # its SECONDS_PER_REAP
COLLECTED_SECONDS = 2.5e-6  # of a task with its scope, in a full collection: counted
MANY_TASKS = 4000  # take it 10 ms
SPARE_DESCRIPTORS = 64  # of a server's own: listening sockets, logs, its loop
BUSY_TICK = 0.01  # seconds; 200 wake-ups a second is where an idle process starts to show in `top`


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark: how grave, about which setting, and what would be right."""

    severity: Severity
    path: str
    text: str


def tick_for(shortest: float) -> float:
    """The coarsest tick of a round number within a tenth of *shortest*, a timeout in
    seconds; 10 ms at least.
    """
    return max((tick for tick in TICKS if tick <= GOOD_SHARE * shortest), default=TICKS[0])


def lint(config: ReaperConfig) -> list[Finding]:
    """Every finding about *config*: errors first, then warnings, then notes; within
    these by subject. May be empty.
    """
    found = [
        *_tick(config),
        *_wheel(config),
        *_lengths(config),
        *_balancers(config),
        *_streams(config),
        *_holes(config),
        *_order(config),
    ]
    return sorted(found, key=lambda finding: ("error", "warning", "note").index(finding.severity))


def _tick(config: ReaperConfig) -> Iterator[Finding]:
    tick = config.reaper.tick
    if tick < BUSY_TICK:
        wakes = f"{EPOCHS_PER_TICK / tick:.0f} times per second"
        text = (
            f"{_show(tick)} wakes each worker up to {wakes}; {_show(BUSY_TICK)} is precise enough"
        )
        yield Finding("warning", "reaper.tick", text)
    yield from _tick_against("reaper.tick", tick, *shortest_timeout(config))
    yield from _tick_against(
        "attach.tick", config.attach.tick, *_shortest("attach", config.attach, ATTACH_KEYS)
    )


def _wheel(config: ReaperConfig) -> Iterator[Finding]:
    size, usual = config.reaper.wheel_size, OPTIONS["reaper.wheel_size"].default
    if size != usual:
        text = f"{size} instead of {usual} changes no close, only where long timeouts wait"
        yield Finding("note", "reaper.wheel_size", f"{text}; leave it at {usual}")


def _lengths(config: ReaperConfig) -> Iterator[Finding]:
    for path, found in OPTIONS.items():
        value = config.get(path)
        if isinstance(found.kind, Duration) and isinstance(value, float) and value > LONGEST:
            off = "; 0s switches it off" if found.kind.off else ""
            yield Finding("error", path, f"longer than {_show(LONGEST)}, ten years{off}")


def room(config: ReaperConfig, descriptors: int) -> list[Finding]:
    """What `limits.max_connections` takes of a machine, where it is set: two notes, one
    on the collector if there are many, and a warning if a process may not have that
    many.

    Args:
        descriptors: How many a process may have open, RLIMIT_NOFILE.
    """
    path = "limits.max_connections"
    most = config.limits.max_connections
    if config.origin(path) == DEFAULT or not most:
        return []
    ours, theirs = most * LEASE_BYTES / 1e6, most * KERNEL_BYTES / 1e6
    wakes = EPOCHS_PER_TICK / config.reaper.tick
    all_due = format_duration(max(round(most * CLOSE_SECONDS, 1), 0.1))
    found = [
        Finding(
            "note",
            path,
            f"{most:,} connections take about {ours:,.0f} MB of a worker for their timeouts, "
            f"{theirs:,.0f} MB of the kernel for their sockets, a descriptor each, and at most "
            f"{wakes:.3g} wakes a second; what your server keeps of each comes on top",
        ),
        Finding(
            "note",
            path,
            f"if {most:,} connections fall due at once, closing them takes about {all_due}; the "
            f"longest pass of the loop closes {CLOSES_A_PASS} of them, in less than 10 ms (50 ms in "
            "a loop that is busy)",
        ),
    ]
    if most >= MANY_TASKS and not config.reaper.tame_gc:
        held = format_duration(round(most * COLLECTED_SECONDS, 2))
        text = (
            f"where each of {most:,} connections is a task, Python's collector holds the loop "
            f"for about {held} whenever it visits all there is; true has it visit only what is "
            "new. It acts on the whole process, and the reference server does so unless this is "
            "set"
        )
        found.append(Finding("note", "reaper.tame_gc", text))
    if most + SPARE_DESCRIPTORS > descriptors:
        text = (
            f"{most:,} connections need as many descriptors, and a process started from here may "
            f"have {descriptors:,}: ulimit -n {most + SPARE_DESCRIPTORS}, or LimitNOFILE= of its unit"
        )
        found.insert(0, Finding("warning", path, text))
    return found


def shortest_timeout(config: ReaperConfig) -> tuple[str, float]:
    """The path and the seconds of the timeout that `reaper.tick` is judged by; `("",
    0.0)` if none is set.
    """
    return _shortest("timeouts", config.timeouts, (*IDLE_KEYS, *AGE_KEYS))


def _shortest(name: str, section: object, keys: Iterable[str]) -> tuple[str, float]:
    limits = ((f"{name}.{key}", getattr(section, key)) for key in keys)
    return min(
        (limit for limit in limits if limit[1] > 0), key=lambda limit: limit[1], default=("", 0.0)
    )


def _tick_against(name: str, tick: float, path: str, shortest: float) -> Iterator[Finding]:
    """Compare *tick* with the timeout at *path*, of *shortest* seconds."""
    if not path:
        return
    said = f"{_show(tick)} against {path} = {_show(shortest)}, the shortest timeout: a close is up to one tick late"
    if tick >= shortest:
        longest = _show(shortest + tick)
        times = f"{(shortest + tick) / shortest:.3g} times the promised time"
        text = f"{said}, after up to {longest}, {times}; use at most {_show(shortest / 4)}"
        yield Finding("error", name, text)
    elif tick > shortest * COARSE_SHARE:
        share = f"{100 * tick / shortest:.0f} %"
        yield Finding(
            "warning", name, f"{said}, {share} of it; {_show(shortest / 4)} would be 25 %"
        )


def _balancers(config: ReaperConfig) -> Iterator[Finding]:
    ours, behind = config.timeouts.keep_alive, config.server.behind
    if behind in ENDLESS and ours > 0:
        title, setting = ENDLESS[behind]
        text = f"{_show(ours)}: {title} keeps an idle connection for ever without {setting}, "
        # A whole number there. What was measured without a loss: 2 below 4 s.
        if ours > 1:
            text += f"in seconds; it must be less: use {max(int(ours) - 2, 1)}"
            yield Finding("note", "timeouts.keep_alive", text)
        else:
            text += "in whole seconds; none is less: set 4s or more, and ttl=2"
            yield Finding("warning", "timeouts.keep_alive", text)
    balancer = BALANCERS.get(behind)
    if balancer is None or ours == 0:
        return
    theirs = f"{balancer.title}'s idle time of {_show(balancer.idle)} ({balancer.source})"
    if balancer.tells and ours <= balancer.idle:
        order = "below" if ours < balancer.idle else "equal to"
        text = f"{order} {theirs}: what it sends into our close is lost; use more than that"
    elif not balancer.tells and ours >= balancer.idle:
        text = f"not below {theirs}: it forgets connections that we still hold; use less"
    else:
        return
    yield Finding("error", "timeouts.keep_alive", f"{_show(ours)} is {text}")


def _streams(config: ReaperConfig) -> Iterator[Finding]:
    timeouts, behind = config.timeouts, BALANCERS.get(config.server.behind)
    ping, path = timeouts.stream_ping, "timeouts.stream_ping"
    if behind is not None and behind.reads is not None:
        theirs = f"{behind.title} cuts a response that is silent for {_show(behind.reads)} ({behind.cuts})"
        if not ping:
            yield Finding("note", path, f"off, and {theirs}; use {_show(behind.ping)}")
        elif ping >= behind.reads:
            text = f"{_show(ping)} is too late: {theirs}; use {_show(behind.ping)}"
            yield Finding("error", path, text)
        elif config.origin(path).startswith(BEHIND):
            yield Finding("note", path, f"{_show(ping)}: {theirs}; a third of that is in force")
    if 0 < timeouts.stream_age <= ping:
        text = f"{_show(timeouts.stream_age)} is within stream_ping = {_show(ping)}: none is ever pinged"
        yield Finding("warning", "timeouts.stream_age", text)
    if config.server.stream_retry and not (timeouts.drain_streams or timeouts.stream_age):
        text = "nothing says it: drain_streams and stream_age are both off"
        yield Finding("warning", "server.stream_retry", text)
    window = timeouts.drain_window + timeouts.drain_streams
    if 0 < timeouts.drain_window <= timeouts.drain < window and timeouts.drain_streams:
        text = (
            f"{_show(timeouts.drain_window)} and drain_streams = {_show(timeouts.drain_streams)} are more "
            f"than drain = {_show(timeouts.drain)}: the last streams are cut before their turn is over"
        )
        yield Finding("warning", "timeouts.drain_window", text)


def _holes(config: ReaperConfig) -> Iterator[Finding]:
    doors = {
        "timeouts.first_byte": "a connection that never sends anything is never closed",
        "timeouts.headers": "headers sent byte by byte (slowloris) hold a connection for ever",
        "timeouts.keep_alive": "a client that needs nothing more is never closed",
        "timeouts.write": "a client that reads nothing holds its response for ever",
        "timeouts.request": "a request that is never answered holds its connection for ever",
        "timeouts.vanished": "a client gone without a word while its answer is under way holds its connection",
        "timeouts.tunnel_age": "one byte now and then keeps a tunnel for ever",
        "limits.min_in_rate": "a body sent byte by byte holds a connection",
        "limits.min_out_rate": "a client may read a response byte by byte",
    }
    for path, text in doors.items():
        if config.get(path) == 0:
            yield Finding("warning", path, f"switched off: {text}")


def _order(config: ReaperConfig) -> Iterator[Finding]:
    timeouts = config.timeouts
    drain, keep_alive, tunnel = (
        _show(each) for each in (timeouts.drain, timeouts.keep_alive, timeouts.tunnel)
    )

    def about(key: str, text: str, severity: Severity = "warning") -> Finding:
        return Finding(severity, f"timeouts.{key}", f"{_show(getattr(timeouts, key))}{text}")

    if 0 < timeouts.keep_alive <= timeouts.keep_alive_margin:
        yield about(
            "keep_alive_margin", f" leaves nothing of keep_alive = {keep_alive} to advertise"
        )
    if timeouts.drain_idle >= timeouts.drain:
        text = (
            f" is not below drain = {drain}: idle connections get no last chance to send a request"
        )
        yield about("drain_idle", text)
    if timeouts.drain_window > timeouts.drain:
        then = "the idle ones that are left then are all closed at once; use at most that"
        yield about("drain_window", f" is longer than drain = {drain}: {then}")
    if 0 < timeouts.vanished < SHORT_OUTAGE:
        text = "a client whose link is down for that long is closed, and would have come back"
        yield about("vanished", f": {text}; use at least {_show(SHORT_OUTAGE)}")
    stop = timeouts.drain_delay + timeouts.drain
    if timeouts.drain_delay and stop > KUBERNETES_GRACE:
        hint = f"Kubernetes kills after {_show(KUBERNETES_GRACE)} unless terminationGracePeriodSeconds is more"
        yield about(
            "drain_delay", f" and drain = {drain}: a stop takes up to {_show(stop)}; {hint}"
        )
    if 0 < timeouts.tunnel_age <= timeouts.tunnel:
        yield about(
            "tunnel_age",
            f" is within tunnel = {tunnel}: idle tunnels reach their age first",
            "note",
        )
    if 0 < timeouts.max_age <= timeouts.keep_alive:
        text = f" is within keep_alive = {keep_alive}: idle connections reach their age first"
        yield about("max_age", text, "note")


def _show(seconds: float) -> str:
    return format_duration(round(seconds, 6))
