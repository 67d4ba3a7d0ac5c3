"""The journals that a server which keeps the law would have written, and those of its
clients.

One rule: *nothing is made up but time and what `Planted` names*. The clients are those
of a simulation, the server is the library's core, and the rows go through the library's
own `Journal`. Memory is bounded by the connections that are open, not by the rows. Each
writer is a process of the server; the clients that it served have a journal of their
own. The same arguments give the same rows.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from reaper.journal import ConnectionLog, Journal

from .judge.records import How
from .plan.behaviours import key_of
from .plan.plan import Plan
from .simulate import CoreSystem, Crowd, Faults, SimulatedClient, at_once, play
from .units import BadArgument, parse_duration

S = 10**9
MS = 10**6
LATENCY_NS = MS
"""Nanoseconds that a packet takes from one side to the other."""
BEGIN_UNIX_NS = 1_767_571_200 * S
"""Monday, 2026-01-05 00:00 UTC: where every simulated journal begins."""
UP_NS = 10**5 * S
"""Nanoseconds for which the machine had been up by then."""
FLUSHED_ROWS = 50_000
SAMPLE = 10_000
"""Connections of the small simulation that tells how many rows a connection makes."""
NAMES = (
    "early",
    "late",
    "missed",
    "lost",
    "duplicate",
    "activity_after_end",
    "missing_touch",
    "backward",
)
"""The faults that can be planted.

Each is named like the verdict that an audit has to come to; of a `backward` clock it is
`unknown`.
"""
WRITTEN = ("events", "client_events", "rows", "connections", "files", "reaped")
"""What a writer counts; `rows` are those that the server's side would have in full
mode.
"""
APP_SHARE = 5
"""One in so many connections that a client would leave is closed by the server's
program first.
"""


@dataclass(frozen=True)
class Planted:
    """What is wrong on purpose.

    Attributes:
        faults: How many connections have each fault, by its name.
        ahead: Seconds by which the server's monotonic clock is ahead of the clients',
            which are on another machine then.
    """

    faults: dict[str, int] = field(default_factory=dict)
    ahead: float = 0.0

    def __post_init__(self) -> None:
        for name, count in self.faults.items():
            if name not in NAMES or type(count) is not int or count < 0:
                raise BadArgument(
                    f"faults.{name} = {count!r}: write a count of one of {', '.join(NAMES)}"
                )


def load_planted(path: Path) -> Planted:
    """Read the faults in the TOML file *path*: a table `[faults]`, and `ahead = "2s"`
    above it.

    Raises BadArgument: the file cannot be read, or holds anything else.
    """
    try:
        table = tomllib.loads(path.read_text())
        if unknown := set(table) - {"faults", "ahead"}:
            raise BadArgument(f"unknown key {min(unknown)!r}: it may have ahead and [faults]")
        faults = table.get("faults", {})
        if not isinstance(faults, dict):
            raise BadArgument("faults must be a table: write [faults]")
        return Planted(faults, parse_duration(str(table.get("ahead", "0"))))
    except OSError as error:
        wanted = "give a TOML file with a table [faults]"
        raise BadArgument(f"--faults {path}: {error.strerror}: {wanted}") from None
    except ValueError as error:
        raise BadArgument(f"--faults {path}: {error}") from None


class Clock:
    """The clock of one side, in nanoseconds since its machine's start.

    It is *ahead* of the simulation's by so many nanoseconds.
    """

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead
        self.now = 0.0

    def down(self, instant: float) -> int:
        """Nanoseconds of what was seen at *instant*, in seconds of the simulation.

        They are rounded down, so that no silence appears shorter than it was.
        """
        return UP_NS + self.ahead + math.floor(instant * S)

    def up(self, instant: float) -> int:
        """Nanoseconds of what is due, or done, at *instant*; they are rounded up."""
        return UP_NS + self.ahead + math.ceil(instant * S)

    def mono(self) -> int:
        """The instant of now, as this side's monotonic clock has it."""
        return self.down(self.now)

    def wall(self) -> int:
        """The instant of now, in nanoseconds of Unix time."""
        return self.mono() - UP_NS - self.ahead + BEGIN_UNIX_NS

    def journal(self, directory: Path, writer: int, tick: float, mode: str) -> Journal:
        """A journal by this clock; rows are written when it is flushed or closed."""
        return Journal(
            directory,
            writer=writer,
            sequence=1,
            tick=tick,
            mode=mode,
            background=False,
            retain_bytes=None,
            rotate_seconds=1e9,
            queue_rows=1 << 40,
            clock_ns=self.mono,
            wall_ns=self.wall,
            server="simulated-elsewhere" if self.ahead else "simulated",
        )


class Server(CoreSystem):
    """The core as a server that keeps a journal, and its clients that keep theirs."""

    def __init__(
        self, plan: Plan, clock: Clock, far: Clock, ours: Journal, theirs: Journal
    ) -> None:
        super().__init__(plan.law.tick)
        self.clock, self.far, self.ours, self.theirs = clock, far, ours, theirs
        self.rows = self.connections = self.reaped = 0

    def opened(self, client: SimulatedClient, now: float) -> None:
        self.connections += 1
        behaviour = client.behaviour
        opening = (round(behaviour.timeout * 1e3), behaviour.listener, client.key >> 1)
        client.log = [opening, self.theirs.open(self.far.down(now) - LATENCY_NS, *opening)]
        super().opened(client, now)

    def pinged(self, client: SimulatedClient, now: float) -> None:
        client.log[1].touch(self.far.down(now) - LATENCY_NS, client.number % 900 + 1)
        super().pinged(client, now)

    def left(self, client: SimulatedClient, now: float) -> None:
        self._client_ends(client, now, by_server=_app_closes(client))
        super().left(client, now)

    def _client_ends(self, client: SimulatedClient, now: float, by_server: bool) -> None:
        if by_server:
            client.log[1].close_peer(self.far.up(now) + LATENCY_NS, How.FIN.name)
        else:
            client.log[1].close_app(self.far.up(now) - LATENCY_NS, How.SELF.name)

    def _accept(self, client: SimulatedClient, now: float) -> None:
        super()._accept(client, now)
        self.rows += 1
        client.log[0] = self.ours.open(self.clock.down(now), *client.log[0])

    def _read(self, client: SimulatedClient, now: float) -> None:
        self.rows += 1
        client.log[0].touch(self.clock.down(now), client.number % 900 + 1)
        super()._read(client, now)

    def _hang_up(self, client: SimulatedClient, now: float) -> None:
        self.rows += 1
        end, why = (
            (client.log[0].close_app, "done")
            if _app_closes(client)
            else (client.log[0].close_peer, "eof")
        )
        end(self.clock.up(now), why)
        super()._hang_up(client, now)

    def _close(self, expired: list[Any], now: float) -> None:
        self.rows += len(expired)
        self.reaped += len(expired)
        for expiry in expired:
            log, deadline = expiry.uid.log[0], expiry.uid.behaviour.deadline
            reason = "headers" if deadline else "idle"
            log.reap(self.clock.up(now), self.clock.up(expiry.due), reason, deadline=deadline)
            self._client_ends(expiry.uid, now, by_server=True)
        super()._close(expired, now)


def _app_closes(client: SimulatedClient) -> bool:
    return client.key % APP_SHARE == 0


class Unrecorded(Crowd):
    """A crowd that keeps no record, and whose clients all leave at its end."""

    def stop(self, now: float) -> None:
        self.stopped = True
        for client in list(self.present.values()):
            self.system.left(client, now)

    def _record(self, client: SimulatedClient, how: How, now: float) -> None:
        pass


def wrong(
    name: str,
    at: int,
    timeout: int,
    tick: int,
    ahead: int,
    open_one: Callable[..., tuple[ConnectionLog, ConnectionLog]],
) -> Iterator[int]:
    """Write one connection that opens at *at*, speaks twice, and ends wrongly; all
    times are ns.

    Yields the instant of what it does next, before it does it. Its words are a tenth of
    the timeout apart. *open_one* opens both of its logs and returns the server's first.
    """
    piece = timeout // 10
    log, seen = open_one(at + LATENCY_NS + ahead, at)
    for number in (1, 2):
        yield at + number * piece
        seen.touch(at + number * piece, 10)
        log.touch(at + number * piece + LATENCY_NS + ahead, 10)
    last = at + 2 * piece + LATENCY_NS
    due = -(-(last - UP_NS) // tick) * tick + UP_NS + timeout
    early = last + timeout - max(timeout // 20, 300 * MS if timeout > S else 0)
    others = {
        "early": early,
        "late": due + 3 * tick + 2 * timeout,
        "missed": due + 30 * tick + 2 * timeout,
    }
    over = others.get(name, due + MS)
    yield over
    end = over + ahead
    if name == "missing_touch":
        log.n, log.idle_sum_ns = log.n + 1, log.idle_sum_ns + 1
    elif name == "backward":
        log.touch(log.last_ns - piece)
    if name == "missed":
        log.close_peer(end, "eof")
    elif name != "lost":
        log.reap(end, (early if name == "early" else due) + ahead, "idle")
    seen.close_peer(over + LATENCY_NS, How.FIN.name)
    if name == "duplicate":
        log.reap(end + MS, due + ahead, "idle")
    elif name == "activity_after_end":
        yield over + piece
        log.touch(end + piece)


def write_journals(
    plan: Plan,
    server: Path | None,
    client: Path | None = None,
    *,
    span: float,
    mode: str = "full",
    writers: int = 1,
    planted: Planted | None = None,
    stalls: int = 0,
) -> dict[str, Any]:
    """Write the journals that a server, and its clients, would have written of *plan*.

    Args:
        plan: Its ramp is followed, whatever its duration.
        server, client: Where to write; a folder is made if it is missing, and must hold
            no Parquet file. None: nothing is written.
        span: Virtual seconds from the first connection to the end; then clients leave
            what is open.
        mode: `full` or `gaps`, as a journal's.
        writers: Processes of the server. Each is simulated by a process; as many run at
            a time as there are processors.
        planted: The faults.
        stalls: How often the loop of each process stalls, for up to 5 s.

    Returns what was written, and the verdicts that an audit must come to. Raises
    BadArgument: a fault cannot be simulated so, or a directory is not empty.
    Cost: about 10 us per row on one core, and a kilobyte per open connection, whatever
    the number of rows.
    """
    planted = planted or Planted()
    if mode == "gaps" and planted.faults.get("backward"):
        raise BadArgument(
            "faults.backward: a journal in gaps mode writes no such silence: give --mode full"
        )
    if not 1 <= writers < 1 << 19:
        raise BadArgument(f"--writers {writers}: must be from 1 to {(1 << 19) - 1}")
    sides = [side for side in (server, client) if side is not None]
    for directory in sides:
        if directory.exists() and any(directory.rglob("*.parquet")):
            raise BadArgument(
                f"--journal {directory}: holds Parquet files already: give a new directory"
            )
    # Whatever a client does to its end is seen: no horizon cuts it.
    plan = replace(
        plan, behaviours=tuple(replace(each, horizon=math.inf) for each in plan.behaviours)
    )
    names = [name for name in NAMES for _ in range(planted.faults.get(name, 0))]
    work = partial(
        _write, plan, writers, server, client, span, mode, names, round(planted.ahead * S), stalls
    )
    written = {
        name: sum(counts) for name, *counts in zip(WRITTEN, *at_once(work, writers), strict=True)
    }
    reaped = written.pop("reaped")
    faults = {name: planted.faults.get(name, 0) for name in NAMES}
    verdicts = {"ok_reaped": reaped, "ok_closed": written["connections"] - reaped, **faults}
    verdicts["unknown"] = verdicts.pop("backward")
    written["connections"] += len(names)
    return {
        "schema": "reaper-simulated-journal/1",
        **written,
        "seed": plan.seed,
        "writers": writers,
        "mode": mode,
        "verdicts": verdicts,
        "bytes": sum(path.stat().st_size for side in sides for path in side.rglob("*.parquet")),
    }


def _write(
    plan: Plan,
    writers: int,
    server: Path | None,
    client: Path | None,
    span: float,
    mode: str,
    names: list[str],
    ahead: int,
    stalls: int,
    number: int,
) -> tuple[int, ...]:
    """Write what one process of the server and its clients write; returns the counts of
    WRITTEN.
    """
    clock, far = Clock(ahead), Clock()
    tick, timeout = round(plan.law.tick * S), round(plan.behaviours[0].timeout * S)
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(
                side.journal(where or Path(), writer, plan.law.tick, mode if where else "off")
            )
            for side, where, writer in (
                (clock, server, number + 1),
                (far, client, (1 << 19) + number),
            )
        )
        system = Server(plan, clock, far, ours, theirs)
        crowd = Unrecorded(plan, system, range(number, plan.connections, writers))
        mine = names[number::writers]
        room = max(span - 4 * max(each.timeout for each in plan.behaviours), 0.0)
        waiting: list[tuple[int, int, Iterator[int]]] = []

        def open_one(t: int, sent: int, peer: int) -> tuple[ConnectionLog, ConnectionLog]:
            opening = (
                timeout // MS,
                plan.behaviours[0].listener,
                key_of(plan.seed, peer, 1 << 33) >> 1,
            )
            return ours.open(t, *opening), theirs.open(sent, *opening)

        for serial, name in enumerate(mine):
            at = UP_NS + round(room * S * (serial + 1) / (len(mine) + 1))
            one = wrong(
                name, at, timeout, tick, ahead, partial(open_one, peer=number + serial * writers)
            )
            heappush(waiting, (at, serial, one))
        flushed = 0

        def each(now: float) -> None:
            nonlocal flushed
            clock.now = far.now = now
            while waiting and waiting[0][0] <= far.down(now):
                _, serial, one = heappop(waiting)
                if (then := next(one, None)) is not None:
                    heappush(waiting, (then, serial, one))
            if system.rows - flushed >= FLUSHED_ROWS:
                flushed = system.rows
                ours.flush()
                theirs.flush()

        def noted(instant: float, lag: float) -> None:
            ours.stall(clock.up(instant), math.ceil(lag * S))

        ours.config(clock.mono(), "settings tick")
        play(
            crowd,
            system,
            Faults(stalls=stalls).schedule(plan.seed + number, span),
            noted,
            span,
            each,
        )
        last = (
            max([span, *((at - UP_NS) / S for at, _, _ in waiting)])
            + 4 * timeout / S
            + 40 * plan.law.tick
        )
        each(last)
        ours.drain(clock.mono(), "drain")
        theirs.drain(far.mono(), "end of run")
    seen, heard = ours.statistics(), theirs.statistics()
    return (
        seen.rows,
        heard.rows,
        system.rows,
        system.connections,
        seen.files + heard.files,
        system.reaped,
    )


def connections_for(make: Callable[[int], Plan], events: int, span: float) -> int:
    """How many connections make about *events* rows on the server's side.

    *make* draws a plan of so many connections.
    """
    count = min(SAMPLE, events)
    rows: int = write_journals(make(count), None, span=span)["rows"]
    return max(round(events * count / rows), 1)
