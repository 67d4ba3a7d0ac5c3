"""Real journals in virtual time: what a server that keeps the law would have written of a plan, and its clients too.

One rule: *same arguments, same bytes* (with the same numpy and pyarrow), and the draws are the plan's own: connection
by connection the same steps as in a run. Time goes window by window, connections by the hundred thousand at once, and
what is held is bounded by the connections that are open, not by the rows.

The server kept the law to the tick, except on the connections that `Planted` names by number. Each writer is a process
of the server; beside it stands, on the other side, the journal of the clients that it served.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reaper.journal.schema import (
    ACTIVITY,
    CLOSE_APP,
    CLOSE_PEER,
    CONFIG,
    DRAIN,
    KINDS,
    OPEN,
    REAP,
    SCHEMA_VERSION,
    arrow_schema,
    connection_id,
)

from .plan.behaviours import Bursty, Chatty, Drip, Leave, Mute, Pipelined, Silent, SlowHeaders, key_of
from .plan.plan import Plan
from .simulate import Faults
from .units import BadArgument, parse_duration

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

S = 10**9
MS = 10**6
LATENCY_NS = MS
"""From one side to the other."""
GAP_NS = S
"""Silences up to it are not written in `gaps` mode."""
BEGIN_UNIX_NS = 1_767_571_200 * S
"""Monday, 2026-01-05 00:00 UTC: where every simulated journal begins."""
UP_NS = 10**5 * S
"""How long the machine had been up by then."""
LEG = 32
"""Steps of a connection that are drawn at a time."""
WINDOW_ROWS = 200_000
ROWS_PER_FILE = 800_000
"""About 64 MiB of stream, where a journal rotates."""
MOST_ANCHORS = 200
SAMPLE = 20_000
"""Connections from which the number is reckoned that makes so many rows."""
NAMES = ("early", "late", "missed", "lost", "duplicate", "activity_after_end", "missing_touch", "backward")
"""What can be planted, named like the verdict of an audit; a `backward` clock makes it `unknown`."""
REAPS_OF = {"late": 1, "early": 1, "duplicate": 2, "activity_after_end": 1, "missing_touch": 1, "backward": 1}
MODES = ("full", "gaps")
REASONS = ("", "idle", "headers", "eof", "reset", "drain", "stall", "FIN", "SELF", "done", "settings tick")
NONE, IDLE, HEADERS, EOF, RESET, DRAINED, STALLED, FIN, SELF, DONE, SETTINGS = range(len(REASONS))
APP_SHARE = 0.2
"""Of the connections that a client would leave: those that the server's program has closed by then."""
SUPPORTED = (Silent, Mute, Chatty, Pipelined, Drip, Leave, Bursty, SlowHeaders)


@dataclass(frozen=True)
class Planted:
    """What is wrong on purpose: name of a fault -> how many connections have it; `ahead`: seconds by which the server's
    monotonic clock is ahead of the clients' (another machine, then)."""

    faults: dict[str, int] = field(default_factory=dict)
    ahead: float = 0.0

    def __post_init__(self) -> None:
        for name, count in self.faults.items():
            if name not in NAMES or type(count) is not int or count < 0:
                raise BadArgument(f"faults.{name} = {count!r}: write a count of one of {', '.join(NAMES)}")


def load_planted(path: Path) -> Planted:
    """The faults in the TOML file *path*: a table `[faults]` of counts, and `ahead = "2s"` above it.

    Raises:
        BadArgument: it cannot be read, or holds anything else.
    """
    try:
        table = tomllib.loads(path.read_text())
        if unknown := set(table) - {"faults", "ahead"}:
            raise BadArgument(f"unknown key {min(unknown)!r}: it may have ahead and [faults]")
        faults = table.get("faults", {})
        if not isinstance(faults, dict):
            raise BadArgument("faults must be a table: write [faults]")
        return Planted(faults, parse_duration(str(table.get("ahead", "0"))))
    except (OSError, ValueError) as error:
        raise BadArgument(f"--faults {path}: {error}") from None


# ---- the plan's draws, for many connections at once ----------------------------------------------------------------

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(value: Keys) -> Keys:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def keys_of(seed: int, index: Ints, incarnation: Ints) -> Keys:
    """`Plan.key`, for each."""
    key = np.full(len(index), key_of(seed), np.uint64)
    for part in (index, incarnation):
        key = _mix(key + (part.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return key


def draws(key: Keys, number: Ints) -> Floats:
    """`behaviours.draw`, for each."""
    mixed = _mix(key + (number.astype(np.uint64) + np.uint64(1)) * _GAMMA) >> np.uint64(11)
    return mixed.astype(np.float64) * 2.0**-53


def gaps(behaviour: Any, key: Keys, number: Ints, offset: Floats) -> tuple[Floats, Floats]:
    """The next LEG silences of each connection, seconds, and how each ends: NaN where it goes on, inf where it falls
    silent for good, and else the offset at which its client leaves. A silence that is not to be is infinite."""
    numbers = number[:, None] + np.arange(LEG)
    spread = draws(np.repeat(key, LEG), numbers.ravel()).reshape(numbers.shape)
    ends = np.full(len(key), np.nan)
    if isinstance(behaviour, (Silent, Mute)):
        found = np.where(numbers < isinstance(behaviour, Silent), 0.0, np.inf)
        ends[:] = np.inf
    elif isinstance(behaviour, (Drip, SlowHeaders)):
        found = np.where(numbers > 0, behaviour.every, 0.0)
    elif isinstance(behaviour, Bursty):
        found = np.where(numbers > 0, behaviour.shortest * (1.0 - spread) ** (-1.0 / behaviour.tail), 0.0)
        deadly = found > behaviour.timeout
        ends[deadly.any(axis=1)] = np.inf
        found = np.where(np.logical_or.accumulate(deadly, axis=1), np.inf, np.minimum(found, 0.9 * behaviour.timeout))
    else:
        found = np.where(numbers > 0, behaviour.shortest + (behaviour.longest - behaviour.shortest) * spread, 0.0)
        if isinstance(behaviour, Leave):
            leaves = behaviour.earliest + (behaviour.latest - behaviour.earliest) * draws(key, np.zeros(len(key), int))
            gone = offset[:, None] + np.cumsum(found, axis=1) >= leaves[:, None]
            gone[:, 0] &= number > 0  # the first step is always done
            ends[gone.any(axis=1)] = leaves[gone.any(axis=1)]
            found[gone] = np.inf
    return found, ends


# ---- small tables of columns ---------------------------------------------------------------------------------------


class Columns:
    """Columns of one length."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def take(self, which: Any) -> Any:
        """Those rows, by index or mask; a copy."""
        return type(self)(*(getattr(self, each.name)[which] for each in fields(self)))  # type: ignore[arg-type]


def joined(parts: list[Any]) -> Any:
    """All rows of *parts*, in their order."""
    names = [each.name for each in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass
class Lives(Columns):
    """Connections whose future is not drawn to its end. `offset`: of the latest step, planned, in seconds."""

    conn: Ints
    index: Ints
    incarnation: Ints
    opened: Ints
    number: Ints
    offset: Floats
    server: Ints
    """The latest activity as the server saw it, ns; `client`: as its client did."""
    client: Ints
    sums: Ints
    """Of the silences that the server has written, ns; `seen_sums`: that the client has."""
    seen_sums: Ints


@dataclass
class Rows(Columns):
    """Rows to be written. `n` and `sums` count on end rows, and on those of the writer itself."""

    t: Ints
    conn: Ints
    kind: Ints
    behaviour: Ints
    idle: Ints
    n: Ints
    sums: Ints
    due: Ints
    reason: Ints
    peer: Ints

    @classmethod
    def of(cls, count: int, **columns: Any) -> Rows:
        """*count* rows; a column may be one value, and is 0 if not given."""
        return cls(*(np.broadcast_to(np.asarray(columns.get(each.name, 0), int), count) for each in fields(cls)))


# ---- files ---------------------------------------------------------------------------------------------------------


@dataclass
class Sink:
    """The files of one run of one writer; rows come in time order."""

    directory: Path
    plan: Plan
    metadata: dict[str, str]
    wall: int
    """Unix time less monotonic time, ns."""
    rows_per_file: int
    ahead: int = 0
    """ns by which this side's clock is ahead of the plan's; `renumbered`: by what its connections' ids differ."""
    renumbered: int = 0
    files: int = 0
    bytes: int = 0
    kinds: Ints = field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    _waiting: list[pa.Table] = field(default_factory=list)
    _held: int = 0

    def add(self, rows: Rows) -> None:
        """Append *rows*."""
        self.kinds += np.bincount(rows.kind, minlength=len(KINDS))
        shifted = {"t": rows.t + self.ahead, "due": rows.due + self.ahead, "conn": rows.conn + self.renumbered}
        self._waiting.append(self._table(replace(rows, **shifted)))
        self._held += len(rows)
        while self._held >= self.rows_per_file:
            self._write(self.rows_per_file)

    def close(self) -> None:
        """Write what is left."""
        if self._held:
            self._write(self._held)

    def _table(self, rows: Rows) -> pa.Table:
        clients = self.plan.behaviours
        listeners = sorted({client.listener for client in clients})
        timeouts = np.array([round(client.timeout * 1e3) for client in clients] + [0], np.int32)
        listener = np.array([listeners.index(client.listener) for client in clients] + [0], np.int16)
        own = rows.behaviour == len(clients)
        activity, ends = rows.kind == ACTIVITY, np.isin(rows.kind, (REAP, CLOSE_PEER, CLOSE_APP))
        deadline = (rows.kind == REAP) & (rows.reason == HEADERS)
        stall = own & (rows.reason == STALLED)

        def coded(codes: Any, values: Any, mask: Flags) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int16), mask=mask), pa.array(values))

        arrays = [
            pa.array(rows.t),
            pa.array(rows.conn),
            coded(rows.kind, KINDS, np.zeros(len(rows), bool)),
            pa.array(rows.idle, mask=(rows.kind == OPEN) | own & ~stall),
            pa.array(((rows.conn + rows.n) % 900 + 1).astype(np.int32), mask=~activity),
            pa.array(timeouts[rows.behaviour], mask=own | deadline),
            pa.array(rows.due, mask=rows.kind != REAP),
            coded(listener[rows.behaviour], listeners, own),
            coded(rows.reason, REASONS, rows.reason == NONE),
            pa.array(rows.n, mask=~ends),
            pa.array(rows.sums, mask=~ends),
            pa.array(rows.peer, mask=rows.kind != OPEN),
            pa.array(np.full(len(rows), self.wall)),
        ]
        return pa.Table.from_arrays(arrays, schema=arrow_schema())

    def _write(self, count: int) -> None:
        whole = pa.concat_tables(self._waiting)
        part, rest = whole.slice(0, count), whole.slice(count)
        self._waiting, self._held = ([rest] if len(rest) else []), len(rest)
        self.files += 1
        since, to = part["t"][0].as_py(), part["t"][-1].as_py()
        minutes = np.arange(since // (60 * S), to // (60 * S) + 1) * 60 * S
        at = minutes[np.unique(np.linspace(0, len(minutes) - 1, min(len(minutes), MOST_ANCHORS)).astype(int))]
        metadata = {
            "schema_version": str(SCHEMA_VERSION),
            **self.metadata,
            "serial": str(self.files),
            "dropped_before": "0",
            "anchors": json.dumps([[int(t), int(t) + self.wall, int(t)] for t in at]),
            "cut": "0",
        }
        unix_s = (since + self.wall) // S
        stem = f"reaper-{unix_s:010d}-w{int(self.metadata['writer']):07d}-{self.metadata['run']}-{self.files:06d}"
        temporary, final = self.directory / f".{stem}.parquet.tmp", self.directory / f"{stem}.parquet"
        part = part.combine_chunks().replace_schema_metadata(arrow_schema(metadata).metadata)
        pq.write_table(part, temporary, compression="zstd", write_page_checksum=True)
        self.bytes += temporary.stat().st_size
        temporary.replace(final)


# ---- one writer ----------------------------------------------------------------------------------------------------


@dataclass
class Loop:
    """The server's event loop: epochs of a tick, each closed up to 3 ms after it, and stalls, in which nothing is read.

    `stalls`: from, to, ns; each begins 5 ms after a tick: what the tick set off is what stalled."""

    phase: int
    tick: int
    stalls: list[tuple[int, int]]

    def closed(self, t: Ints) -> Ints:
        """When the epochs in which *t* lie were closed."""
        epoch = (t - self.phase) // self.tick
        late = (epoch.astype(np.uint64) * _GAMMA >> np.uint64(32)) % np.uint64(min(3 * MS, self.tick // 10))
        return self.wake(self.phase + (epoch + 1) * self.tick + late.astype(np.int64))

    def wake(self, t: Ints) -> Ints:
        """When the loop does what is to be done at *t*."""
        for begun, over in self.stalls:
            t = np.where((t > begun) & (t < over), over, t)
        return t

    def seen(self, t: Ints) -> Ints:
        """When the loop sees what arrives at *t*. Order is kept."""
        for begun, over in self.stalls:
            t = np.where((t > begun - 5 * MS) & (t < over), over, t)
        return t


class Writer:
    """One process of the server, and the clients that it serves: connections `number`, `number + writers`, ..."""

    def __init__(self, plan: Plan, number: int, writers: int, mode: str, loop: Loop, end: int, sinks: list[Sink]):
        self.plan = plan
        self.indices = np.arange(number, plan.connections, writers)
        offsets = np.fromiter(map(plan.connect_offset, range(number, plan.connections, writers)), float)
        self.opens = UP_NS + np.rint(offsets * S).astype(np.int64)
        self.written_from = GAP_NS if mode == "gaps" else -1
        self.loop = loop
        self.end = end
        self.sinks = sinks  # the server's; and its clients', where they are wanted
        self.own = int(sinks[0].metadata["first_conn"])
        self.next = self.own + 1
        self.coming = 0
        self.connections = 0
        self.pending: list[Rows] = [Rows.of(0)]
        self.seen: list[Rows] = [Rows.of(0)]
        self.rows = 0
        none = np.zeros(0, np.int64)
        self.waiting = self.returning = Lives(none, none, none, none, none, none.astype(float), none, none, none, none)
        self.timeouts = np.array([round(each.timeout * S) for each in plan.behaviours] + [0])

    def run(self, planted: list[str], windows: int, progress: Callable[[int], None]) -> None:
        """Everything, to the last file."""
        start = UP_NS
        each = max((self.end - start) // windows, 1)
        self._own(start, CONFIG, SETTINGS)
        for begun, over in self.loop.stalls:
            self._own(over, CONFIG, STALLED, idle=over - begun)
        spread = np.linspace(start, max(self.end - 4 * int(self.timeouts.max()), start + 1), len(planted) + 2)[1:-1]
        for at, name in zip(spread.astype(int).tolist(), planted, strict=True):
            self._plant(at, name)
        for number in range(1, windows + 1):
            to = self.end if number == windows else start + each * number
            lives = joined([self._arrivals(to), self._back(to)])
            while len(lives):
                self._leg(lives)
                due = self.waiting.client < to
                lives, self.waiting = joined([self.waiting.take(due), self._back(to)]), self.waiting.take(~due)
            self._emit(to)
            progress(self.rows)
        last = max(self.end, *(int(each.t.max()) for each in (*self.pending, *self.seen) if len(each)))
        self._note(
            self.pending, t=last + MS, conn=self.own, kind=DRAIN, reason=DRAINED, behaviour=len(self.plan.behaviours)
        )
        self._emit(last + S)

    def _own(self, t: int, kind: int, reason: int, idle: int = 0) -> None:
        """A row of the writer itself."""
        self._note(
            self.pending, t=t, conn=self.own, kind=kind, reason=reason, idle=idle, behaviour=len(self.plan.behaviours)
        )

    def _note(self, into: list[Rows], **columns: Any) -> None:
        into.append(Rows.of(1, **columns))

    def _arrivals(self, to: int) -> Lives:
        """Those whose plan has them connect before *to*, ns."""
        since, self.coming = self.coming, int(np.searchsorted(self.opens, to))
        index = self.indices[since : self.coming]
        return self._open(index, np.zeros(len(index), np.int64), self.opens[since : self.coming])

    def _back(self, to: int) -> Lives:
        """Those that come again before *to*."""
        due = self.returning.opened < to
        back, self.returning = self.returning.take(due), self.returning.take(~due)
        return self._open(back.index, back.incarnation, back.opened)

    def _open(self, index: Ints, incarnation: Ints, opened: Ints) -> Lives:
        count = len(index)
        conn = self.next + np.arange(count)
        self.next += count
        self.connections += count
        zero = np.zeros(count, np.int64)
        kinds = np.frombuffer(self.plan.kinds, np.uint8)[index]
        seen = self.loop.seen(opened + LATENCY_NS)
        peer = (keys_of(self.plan.seed, index, incarnation) >> np.uint64(1)).astype(np.int64)
        self.pending.append(Rows.of(count, t=seen, conn=conn, kind=OPEN, behaviour=kinds, peer=peer))
        self.seen.append(Rows.of(count, t=opened, conn=conn, kind=OPEN, behaviour=kinds, peer=peer))
        return Lives(conn, index, incarnation, opened, zero, zero.astype(float), seen, opened, zero, zero)

    def _leg(self, who: Lives) -> None:
        """The next steps of each, and the end of those that have no more; the others wait."""
        kinds = np.frombuffer(self.plan.kinds, np.uint8)[who.index]
        for number in np.unique(kinds):
            self._leg_of(who.take(kinds == number), int(number))

    def _leg_of(self, who: Lives, number: int) -> None:
        behaviour = self.plan.behaviours[number]
        key = keys_of(self.plan.seed, who.index, who.incarnation)
        steps, ends = gaps(behaviour, key, who.number, who.offset)
        offset = who.offset[:, None] + np.cumsum(steps, axis=1)
        done = np.isfinite(offset)
        planned = who.opened[:, None] + np.rint(np.where(done, offset, 0.0) * S).astype(np.int64)
        # A connection that is open at the end is left then, and a deadline ends one however it drips.
        over = np.full(len(who), self.end, np.int64)
        due_by_deadline = np.zeros(len(who), np.int64)
        if behaviour.deadline:
            due_by_deadline = self.loop.closed(self.loop.seen(who.opened + LATENCY_NS)) + self.timeouts[number]
            over = np.minimum(over, due_by_deadline - 2 * LATENCY_NS)
        cut = done & (planned >= over[:, None])
        done &= ~np.logical_or.accumulate(cut, axis=1)
        count = done.sum(axis=1)
        which = np.repeat(np.arange(len(who)), count)
        sent = planned[done]
        seen = self.loop.seen(sent + LATENCY_NS)
        column = np.cumsum(np.ones(len(which), np.int64)) - np.repeat(np.cumsum(count) - count, count)
        n = who.number[which] + column
        last_seen, sums = self._activity(self.pending, who, who.server, which, seen, n, count, number)
        last_sent, seen_sums = self._activity(self.seen, who, who.client, which, sent, n, count, number)
        stays = (count == LEG) & np.isnan(ends) & ~cut.any(axis=1)
        latest = np.take_along_axis(offset, np.maximum(count - 1, 0)[:, None], 1)[:, 0]
        after = replace(
            who, number=who.number + count, server=last_seen, client=last_sent, sums=who.sums + sums,
            seen_sums=who.seen_sums + seen_sums, offset=np.where(count > 0, latest, who.offset),
        )  # fmt: skip
        self.waiting = joined([self.waiting, after.take(stays)])
        gone = ~stays
        if gone.any():
            self._ends(after.take(gone), number, ends[gone], due_by_deadline[gone])

    def _activity(
        self, into: list[Rows], who: Lives, last: Ints, which: Ints, t: Ints, n: Ints, count: Ints, number: int
    ) -> tuple[Ints, Ints]:
        """Rows for the instants *t*, of connections *which*; the latest activity, and what they add to the sums."""
        before = np.empty_like(t)
        before[1:] = t[:-1]
        some = count > 0
        first = (np.cumsum(count) - count)[some]
        before[first] = last[some]
        idle = t - before
        written = idle > self.written_from
        into.append(
            Rows.of(len(t), t=t, conn=who.conn[which], kind=ACTIVITY, behaviour=number, idle=idle, n=n).take(written)
        )
        total = np.zeros(len(who), np.int64)
        np.add.at(total, which[written], idle[written])
        after = last.copy()
        after[some] = t[(np.cumsum(count) - 1)[some]]
        return after, total

    def _ends(self, who: Lives, number: int, ends: Floats, deadline: Ints) -> None:
        """How each ends: reaped for its silence or by a deadline, left by its client, or open until the end."""
        behaviour, loop, count = self.plan.behaviours[number], self.loop, len(who)
        due = np.where(deadline > 0, deadline, loop.closed(who.server) + self.timeouts[number])
        delay = 30_000 + (who.conn.astype(np.uint64) * _GAMMA >> np.uint64(44)).astype(np.int64)
        reaped_at = loop.wake(due + delay)
        leaves = np.where(np.isfinite(ends), who.opened + np.rint(np.where(np.isfinite(ends), ends, 0) * S), self.end)
        leaves = np.maximum(np.minimum(leaves.astype(np.int64), self.end), who.client + 1)
        reaps = (np.isinf(ends) | (deadline > 0)) & (reaped_at < self.end)
        closed_by_app = ~reaps & np.isfinite(ends) & (who.conn % round(1 / APP_SHARE) == 0)
        at = np.where(reaps, reaped_at, np.where(closed_by_app, leaves, loop.seen(leaves + LATENCY_NS)))
        at = np.maximum(at, who.server + 1)
        seen = np.where(reaps | closed_by_app, at + LATENCY_NS, leaves)
        self.pending.append(
            Rows.of(
                count, t=at, conn=who.conn, kind=np.where(reaps, REAP, np.where(closed_by_app, CLOSE_APP, CLOSE_PEER)),
                behaviour=number, idle=at - who.server, n=who.number, sums=who.sums, due=due,
                reason=np.where(reaps, HEADERS if behaviour.deadline else IDLE, np.where(closed_by_app, DONE, EOF)),
            )
        )  # fmt: skip
        theirs = reaps | closed_by_app
        self.seen.append(
            Rows.of(
                count, t=seen, conn=who.conn, kind=np.where(theirs, CLOSE_PEER, CLOSE_APP), behaviour=number,
                idle=seen - who.client, n=who.number, sums=who.seen_sums, reason=np.where(theirs, FIN, SELF),
            )
        )  # fmt: skip
        if behaviour.reconnect is not None:
            opened = seen + round(behaviour.reconnect * S)
            again = replace(who, incarnation=who.incarnation + 1, opened=opened)
            self.returning = joined([self.returning, again.take(opened < self.end)])

    def _plant(self, at: int, name: str) -> None:
        """A connection that opens at *at*, speaks twice, a tenth of the timeout apart, and ends wrongly."""
        conn, timeout = self.next, int(self.timeouts[0])
        self.next += 1
        self.connections += 1
        piece = timeout // 10
        sent = at + 2 * piece
        last = sent + LATENCY_NS
        due = int(self.loop.closed(np.array([last]))[0]) + timeout
        right = due + MS
        common: dict[str, Any] = {"conn": conn, "behaviour": 0}
        peer = key_of(self.plan.seed, conn) >> 1
        self._note(self.pending, t=at + LATENCY_NS, kind=OPEN, peer=peer, **common)
        self._note(self.seen, t=at, kind=OPEN, peer=peer, **common)
        for number in (1, 2):
            for into, delay in ((self.pending, LATENCY_NS), (self.seen, 0)):
                if piece > self.written_from:
                    row = {"t": at + delay + number * piece, "kind": ACTIVITY, "idle": piece, "n": number}
                    self._note(into, **row, **common)
        total = 2 * piece if piece > self.written_from else 0

        def end(t: int, kind: int = REAP, n: int = 2, sums: int = total, due: int = due) -> None:
            reason = IDLE if kind == REAP else EOF
            self._note(self.pending, t=t, kind=kind, idle=t - last, n=n, sums=sums, due=due, reason=reason, **common)

        over = right
        match name:
            case "early":
                over = last + timeout - max(timeout // 20, 300 * MS if timeout > S else 0)
                end(over, due=over)
            case "late":
                over = due + 3 * self.loop.tick + 2 * timeout
                end(over)
            case "missed":
                over = due + 30 * self.loop.tick + 2 * timeout
                end(over, CLOSE_PEER)
            case "duplicate":
                end(right)
                end(right + MS)
            case "activity_after_end":
                end(right)
                idle = right + piece - last
                if idle > self.written_from:
                    self._note(self.pending, t=right + piece, kind=ACTIVITY, idle=idle, n=3, **common)
            case "missing_touch":
                end(right, n=3, sums=total + 1)
            case "backward":
                self._note(self.pending, t=last - piece, kind=ACTIVITY, idle=-piece, n=3, **common)
                end(right, n=3)
        self._note(
            self.seen, t=over + LATENCY_NS, kind=CLOSE_PEER, idle=over + LATENCY_NS - sent, n=2, sums=total, reason=FIN,
            **common,
        )  # fmt: skip

    def _emit(self, to: int) -> None:
        """Hand over the rows before *to*, in time order."""
        for pending, sink in zip((self.pending, self.seen), self.sinks, strict=False):
            rows = joined(pending)
            now = rows.t < to
            pending[:] = [rows.take(~now)]
            rows = rows.take(now)
            rows = rows.take(np.argsort(rows.t, kind="stable"))
            self.rows += len(rows)
            if len(rows):
                sink.add(rows)
        if len(self.sinks) == 1:
            self.seen[:] = [Rows.of(0)]


# ---- the whole -----------------------------------------------------------------------------------------------------


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
    rows_per_file: int = ROWS_PER_FILE,
    progress: Callable[[int], None] = lambda rows: None,
) -> dict[str, Any]:
    """Write the journals of *plan*, of a server and, where *client* is given, of its clients.

    Args:
        plan: Who comes when and does what; its ramp is followed, whatever its duration.
        server, client: Directories, made if missing, that hold no Parquet file yet; no *server*: nothing is written.
        span: Virtual seconds from the first connection to the end; then clients leave what is open.
        mode: `full` or `gaps`, as a journal's.
        writers: Processes of the server.
        stalls: How often the loop of each stalls, for up to 5 s.

    Returns:
        What was written: rows (exact) of both sides, connections, rows by kind of the server, files, bytes, and the
        verdicts that an audit must come to.

    Raises:
        BadArgument: a behaviour, a mode or a fault that cannot be simulated so, or a directory that is not empty.
    Cost: about 1 us per row on one core; some hundred MB, whatever the number of rows.
    """
    planted = planted or Planted()
    _check(plan, mode, planted, writers)
    plan = replace(plan, behaviours=tuple(replace(each, horizon=math.inf) for each in plan.behaviours))
    end = UP_NS + round(span * S)
    for directory in (server, client):
        if directory is not None:
            if directory.exists() and any(directory.rglob("*.parquet")):
                raise BadArgument(f"--journal {directory}: holds Parquet files already: give a new directory")
            directory.mkdir(parents=True, exist_ok=True)
    names = [name for name in NAMES for _ in range(planted.faults.get(name, 0))]
    tick = round(plan.law.tick * S)
    sinks: list[list[Sink]] = []
    connections = 0
    per_connection = 8
    for number in range(writers):
        schedule = Faults(stalls=stalls).schedule(plan.seed + number, span)
        phase = UP_NS + key_of(plan.seed, number, 7) % tick
        begun = [(UP_NS + round(fault.start * S) - phase) // tick * tick + phase + 5 * MS for fault in schedule]
        lengths = [round(fault.length * S) for fault in schedule]
        loop = Loop(
            phase, tick, [(at, at + length) for at, length in zip(begun, lengths, strict=True) if at + length < end]
        )
        sides = [_sink(plan, server, number + 1, number + 1, mode, round(planted.ahead * S), rows_per_file)]
        if client is not None:
            sides.append(_sink(plan, client, (1 << 19) + number, number + 1, mode, 0, rows_per_file))
        sinks.append(sides)
        writer = Writer(plan, number, writers, mode, loop, end, sides)
        windows = max(len(writer.indices) * per_connection // WINDOW_ROWS, 1)
        writer.run(names[number::writers], windows, progress)
        connections += writer.connections
        for side in sides:
            side.close()
    return _summary(plan, sinks, connections, mode, writers, planted)


def connections_for(make: Callable[[int], Plan], events: int, span: float) -> int:
    """How many connections make about *events* rows on the server's side; *make* draws a plan of so many."""
    count = min(SAMPLE, events)
    plan = make(count)
    plan = replace(plan, behaviours=tuple(replace(each, horizon=math.inf) for each in plan.behaviours))
    _check(plan, "full", Planted(), 1)
    sink = _Counting(Path(), plan, {"first_conn": "1", "writer": "0"}, 0, 1)
    tick = round(plan.law.tick * S)
    Writer(plan, 0, 1, "full", Loop(UP_NS, tick, []), UP_NS + round(span * S), [sink]).run([], 1, lambda rows: None)
    return max(round(events * count / int(sink.kinds.sum())), 1)


class _Counting(Sink):
    """Counts, and writes nothing."""

    def add(self, rows: Rows) -> None:
        self.kinds += np.bincount(rows.kind, minlength=len(KINDS))


def _check(plan: Plan, mode: str, planted: Planted, writers: int) -> None:
    for behaviour in plan.behaviours:
        if not isinstance(behaviour, SUPPORTED) or (isinstance(behaviour, SlowHeaders) and not behaviour.deadline):
            known = ", ".join(cls.kind for cls in SUPPORTED)
            raise BadArgument(f"{behaviour.name}: a {behaviour.kind} client has no journal here: choose from {known}")
    if mode not in MODES:
        raise BadArgument(f"--mode {mode!r}: choose from {', '.join(MODES)}")
    if mode == "gaps" and planted.faults.get("backward"):
        raise BadArgument("faults.backward: a journal in gaps mode writes no such silence: give --mode full")
    if not 1 <= writers < 1 << 19:
        raise BadArgument(f"--writers {writers}: must be from 1 to {(1 << 19) - 1}")


def _sink(
    plan: Plan, directory: Path | None, writer: int, serves: int, mode: str, ahead: int, rows_per_file: int
) -> Sink:
    """The files of *writer*; of the clients of *serves*, if that is another."""
    metadata = {
        "run": f"{key_of(plan.seed, writer) >> 16:012x}",
        "writer": str(writer),
        "mode": mode,
        "tick_ns": str(round(plan.law.tick * S)),
        "gap_threshold_ns": str(GAP_NS if mode == "gaps" else 0),
        "first_conn": str(connection_id(writer, 1)),
        "server": "simulated" if not ahead else "simulated-elsewhere",
        "boot": str(UUID(int=key_of(plan.seed, ahead) << 64 | key_of(plan.seed), version=4)),
    }
    return Sink(
        directory or Path(), plan, metadata, BEGIN_UNIX_NS - UP_NS - ahead, rows_per_file, ahead,
        connection_id(writer, 1) - connection_id(serves, 1),
    )  # fmt: skip


def _summary(
    plan: Plan, sinks: list[list[Sink]], connections: int, mode: str, writers: int, planted: Planted
) -> dict[str, Any]:
    kinds = sum((sides[0].kinds for sides in sinks), np.zeros(len(KINDS), np.int64))
    rows = {name: int(count) for name, count in zip(KINDS, kinds, strict=True)}
    faults = {name: planted.faults.get(name, 0) for name in NAMES}
    reaped = rows["reap"] - sum(REAPS_OF.get(name, 0) * count for name, count in faults.items())
    verdicts = {"ok_reaped": reaped, "ok_closed": connections - reaped - sum(faults.values()), **faults}
    verdicts["unknown"] = verdicts.pop("backward")
    return {
        "schema": "reaper-simulated-journal/1",
        "events": sum(rows.values()),
        "client_events": sum(int(each.kinds.sum()) for sides in sinks for each in sides[1:]),
        "seed": plan.seed,
        "writers": writers,
        "mode": mode,
        "connections": connections,
        "kinds": rows,
        "verdicts": verdicts,
        "files": sum(each.files for sides in sinks for each in sides),
        "bytes": sum(each.bytes for sides in sinks for each in sides),
    }
