"""Two steps of the audit: `read`, a row per connection of one side's journals, and
`join`, both sides of a connection in one row.

A server's log proves the reaper consistent with its own clock. The other side knows
when it sent its last byte and when it saw the end: what contradicts that is a violation
whatever the server wrote.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ..engine import F, together
from ..read.frames import lifetimes, ns, read_events, runs_frame, small_frame, with_run
from ..read.inputs import Inputs
from ..read.runs import FAR_NS, Stalls, Stretch, Timeline
from .silences import excuse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CONSISTENT_S = 0.05
"""Seconds by which the two bounds may cross before the clocks count as irreconcilable:
delays vary.
"""

SLACK_NS = 1_000_000_000
"""How far apart two intervals may lie and still be one connection's: clocks, and a
connection not yet accepted.
"""

BRIEF_NS = 60_000_000_000
"""For a connection that lasted no longer, both ends have the same skew."""

NEGLIGIBLE_SKEW_NS = 5_000_000
"""A skew of at most this changes no verdict: the tolerance is wider."""

KNOT_PAIRS = 16
"""Pairs of rows that give the skew of one stretch of time: enough for a median that
ignores the few seen late.
"""

BINS = 256
"""Bins of time into which pairs are counted before stretches are made of them."""

DRIFT = pa.schema(
    [
        ("k_run", pa.int32()),
        ("k_c_run", pa.int32()),
        ("k_from", pa.int64()),
        ("k_to", pa.int64()),
        ("k_at", pa.int64()),
        ("k_skew_ns", pa.int64()),
        ("k_slope", pa.float64()),
    ]
)
"""Grain: one row per pair of runs and stretch of time, from inclusive to exclusive; see
`Drift`.
"""

MOST_ROUND_TRIP_NS = 1_000_000_000
"""No network on earth takes longer there and back. What is later than that was closed
late.
"""

STRETCHES = pa.schema(
    [("p_run", pa.int32()), ("p_from", pa.int64()), ("p_to", pa.int64()), ("p_ns", pa.int64())]
)
"""Grain: one row per stretch of a run whose clock was set, or stood still; see
`Timeline.stretches`.
"""

SAME_CLOCK_NS = 1_000_000
"""How far two timelines may disagree that are read off one clock."""


@dataclass(frozen=True, slots=True)
class Side:
    """What the journals of one side say, on the timeline that both sides share."""

    inputs: Inputs
    runs: DataFrame
    """One row per run, see `frames.RUNS`."""
    lives: DataFrame
    """One row per connection, with the columns of its run."""
    stalls: Stalls
    placed_stalls: Stalls
    """The same, where a clock was set or stood still, by the anchors of that time."""
    stretches: dict[int, list[Stretch]]
    """Run -> the stretches of one whose clock was set or stood still; see
    `Timeline.stretches`.
    """
    apart: list[int]
    """The runs without a place on the timeline. Their connections find no pair."""


class Far(NamedTuple):
    """Connections of both logs with the same addresses, and other times."""

    connections: int
    seconds: float
    """By how much the server's are later, in the median."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What the join of both sides found."""

    connections: DataFrame
    """One row per connection of the server, judged by both sides, as it was written."""
    skew: Skew
    client_seen: int
    """How many connections the client opened."""
    client_only: int
    """How many of them are not among the server's."""
    compared: bool = True
    """Whether instants of the two clocks can be compared; if not, no pair was."""
    far: Far | None = None
    """The connections that the logs have in common, at other times; None: none was
    looked for.
    """


def read(spark: SparkSession, inputs: Inputs, timeline: Timeline) -> Side:
    """The audit's first step, for one side: a row per connection. Nothing is computed
    yet.
    """
    runs = runs_frame(spark, inputs.runs, timeline)
    lives = with_run(lifetimes(read_events(spark, inputs), inputs.files), runs)
    stretches = {run.index: timeline.stretches(run) for run in inputs.runs}
    return Side(
        inputs,
        runs,
        lives,
        timeline.stalls(inputs.runs),
        timeline.stalls(inputs.runs, placed=True),
        {run: each for run, each in stretches.items() if len(each) > 1},
        timeline.apart(inputs.runs),
    )


def join(
    spark: SparkSession,
    judged: DataFrame,
    server: Side,
    client: Side,
    *,
    one_clock: bool,
    flight_ns: int,
    write: Callable[[DataFrame], DataFrame],
    progress: Callable[[str], None],
) -> Joined:
    """The audit's fourth step: pair the server's connections with the client's, and
    judge again.

    Where the clocks turn out to be apart, everything is judged and written a second
    time with their skew taken off.

    Args:
        judged: The server's connections, judged by its own journal.
        one_clock: Whether both sides read the same clock; then no skew is taken off.
        flight_ns: See `judge_pairs`.
        write: Keeps a frame, and returns it as it reads back.
    """
    view = client_view(placed(spark, without_peer(client.lives, client.apart), client.stretches))
    # The server's own verdict comes before the join: both in one method would be too
    # long for Java to compile.
    paired = pair(placed(spark, without_peer(judged, server.apart), server.stretches), view)

    tolerance_ns = SAME_CLOCK_NS if one_clock else flight_ns

    def judge_by_both(drift: Drift, compared: bool = True, round_trip_ns: int = 0) -> DataFrame:
        skewed = with_skew(spark, paired, drift)
        stalls = server.placed_stalls, client.placed_stalls
        excused = excuse(spark, seen(skewed), *stalls, drift.at)
        return write(
            judge_pairs(
                excused,
                flight_ns=flight_ns,
                tolerance_ns=tolerance_ns,
                compared=compared,
                round_trip_ns=max(round_trip_ns, flight_ns),
            )
        )

    progress("joining both sides, judging every connection")
    connections, client_seen = together(
        partial(judge_by_both, NO_DRIFT), client.lives.where("opens > 0").count
    )
    skew = measure_skew(connections)
    estimate = skew.estimate
    drift, compared = NO_DRIFT, True
    far = min(round((skew.round_trip or 0.0) * 1e9), MOST_ROUND_TRIP_NS) > flight_ns
    if not one_clock and estimate is not None:
        numbered = connections.withColumns(
            {name: F.col(f"{name}_number") for name in ("run", "c_run")}
        )
        drift = measure_drift(numbered)
        spread = measure_spread(with_skew(spark, numbered, drift))
        skew = replace(skew, spread=spread)
        # Without a knot every stretch contradicts itself.
        compared = bool(drift.knots) and skew.consistent
        compared &= spread is None or spread * 1e9 <= flight_ns
        if drift.most_ns <= NEGLIGIBLE_SKEW_NS and compared:
            drift = NO_DRIFT
        else:
            progress(f"judging again with the clocks' skew of {estimate * 1e3:+.1f} ms taken off")
    if far or drift is not NO_DRIFT or not compared:
        if far:
            progress(f"judging again with a round trip of {skew.round_trip:.3f} s")
        connections = judge_by_both(
            drift, compared, min(round((skew.round_trip or 0.0) * 1e9), MOST_ROUND_TRIP_NS)
        )
    matched = connections.where(F.col("c_conn").isNotNull()).select("c_conn").distinct().count()
    far_off = None if matched else measure_far(connections, view)
    return Joined(connections, skew, client_seen, client_seen - matched, compared, far_off)


def placed(spark: SparkSession, lives: DataFrame, stretches: dict[int, list[Stretch]]) -> DataFrame:
    """*lives* with `steps`: whether the clock was set, or stood still, while the
    connection was open, or when is not known; and with the offset of its time. Each row
    once.

    Nothing compares a connection that saw a step with the other side's clock. So each
    of the others has one offset.
    """
    if not stretches:
        return lives.withColumn("steps", F.lit(False))
    rows = [(run, *stretch) for run, found in sorted(stretches.items()) for stretch in found]
    first, last = F.coalesce("opened", "last_t"), F.coalesce("ended", "log_end_ns")
    inside = (F.col("run") == F.col("p_run")) & (first >= F.col("p_from"))
    inside &= last <= F.col("p_to")
    whole = {run: found[0][2] for run, found in stretches.items()}
    # One that saw a step is found by when it was opened, as well as that is known.
    known = [(run, since, by) for run, found in stretches.items() for since, _, by in found]
    opened = F.col("offset_ns")
    for run, since, by in sorted(known, key=lambda each: (each[0], each[1])):
        opened = F.when((F.col("run") == run) & (first >= since), F.lit(by)).otherwise(opened)
    return (
        lives.join(F.broadcast(small_frame(spark, rows, STRETCHES)), inside, "left")
        .withColumn("steps", F.col("p_run").isNull() & F.col("run").isin(*whole))
        .withColumn("offset_ns", F.coalesce("p_ns", opened))
        .drop(*STRETCHES.names)
    )


def measure_far(connections: DataFrame, client: DataFrame) -> Far | None:
    """What the logs have in common, if time is not asked. None: nothing."""
    begun = F.col("opened") + F.col("offset_ns")
    ours = connections.where(begun.isNotNull() & F.col("peer").isNotNull())
    by = (F.col("begun") - F.col("c_opened")).alias("by")
    nearest = F.min(F.struct(F.abs(F.col("begun") - F.col("c_opened")).alias("distance"), by))
    found = (
        ours.select("conn", "peer", begun.alias("begun"))
        .join(client.select("peer_key", "c_opened"), F.col("peer") == F.col("peer_key"), "inner")
        .groupBy("conn")
        .agg(nearest.alias("match"))
        .agg(F.count(F.lit(1)), F.percentile_approx(F.col("match.by"), 0.5))
    )
    count, by_ns = found.collect()[0]
    return Far(count, by_ns / 1e9) if count else None


@dataclass(frozen=True, slots=True)
class Skew:
    """What the pairs of rows say about the two clocks, after their anchors were
    reconciled. Seconds; None: no evidence.

    Positive: the server's clock is ahead.
    """

    pairs: int
    at_least: float | None
    """A close is seen by the client no earlier than the server made it: the skew is not
    below this (median pair).
    """
    at_most: float | None
    """A connection is accepted no earlier than the client began it: the skew is not
    above this (median pair).
    """
    round_trip: float | None = None
    """Seconds for the way to the other side and back; one pair in ten is slower at
    most. Both ends of a connection say it together, whatever the clocks say. None: no
    evidence.
    """
    spread: float | None = None
    """How far single pairs contradict the skew of their time, in the direction in which
    no delay could explain it: nine in ten contradict it by less. None: the clock is the
    same, or no pair.
    """

    @property
    def estimate(self) -> float | None:
        """The middle of what is possible; None: no evidence."""
        if self.at_least is None or self.at_most is None:
            return self.at_least if self.at_most is None else self.at_most
        return (self.at_least + self.at_most) / 2

    @property
    def consistent(self) -> bool:
        """Whether one skew explains all pairs; False: a clock was stepped, or the
        timelines are not what they claim.
        """
        return (
            self.at_least is None
            or self.at_most is None
            or self.at_least <= self.at_most + CONSISTENT_S
        )


Knot = tuple[int, int]
"""An instant of the shared timeline, and the skew at it. ns."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The skew of the server's clock and the client's over time, by (run, c_run).

    Clocks drift apart by tens of ms an hour. So the skew is measured in stretches of
    time, each with pairs enough for a median, and is linear between their middles, and
    beyond the outermost. A stretch says nothing where its bounds are further apart than
    a round trip can be: something was late there, and a skew between them would hide
    it. Nor do a few pairs that would move the clocks by more than that, and bound them
    on one side alone.
    """

    knots: dict[tuple[int, int], list[Knot]]

    @property
    def most_ns(self) -> int:
        """The greatest skew, without its sign."""
        return max((abs(skew) for knots in self.knots.values() for _, skew in knots), default=0)

    def at(self, run: int, c_run: int, t: int) -> int:
        """The skew of a pair of runs at *t*; 0 if nothing is known."""
        knots = self.knots.get((run, c_run), [])
        if len(knots) < 2:
            return knots[0][1] if knots else 0
        place = min(max(bisect_right(knots, (t, 0)) - 1, 0), len(knots) - 2)
        (at, skew), (then, skew_then) = knots[place : place + 2]
        return skew + (t - at) * (skew_then - skew) // (then - at)

    def rows(self) -> list[tuple[int, int, int, int, int, int, float]]:
        """Return its stretches as rows of the schema `DRIFT`."""
        found = []
        for (run, c_run), knots in sorted(self.knots.items()):
            if len(knots) == 1:
                found.append((run, c_run, -FAR_NS, FAR_NS, *knots[0], 0.0))
                continue
            since = -FAR_NS
            for i, ((at, skew), (then, skew_then)) in enumerate(pairwise(knots)):
                to = FAR_NS if i == len(knots) - 2 else then
                found.append((run, c_run, since, to, at, skew, (skew_then - skew) / (then - at)))
                since = to
        return found


NO_DRIFT = Drift({})


def client_view(client: DataFrame) -> DataFrame:
    """The load generator's lifetimes as the join wants them. One row per connection
    that has a peer key.

    Its times are on the shared timeline: peer_key, c_conn, c_run, c_opened, c_last
    (last byte it sent, or the opening), c_ended, c_by_server; and c_silent_to: up to
    when it certainly sent nothing after c_last (null: not known), while c_timeout_ms
    was in force; c_steps, see `placed`; and c_awake_to: up to when its log would have
    its end (null: not known).
    """
    last_sent = F.coalesce(F.col("ended") - F.col("end_idle_ns"), "last_activity", "opened")
    # Without an end a journal in `gaps` mode, or one with a hole, does not know the
    # last byte; ended, it sends no more.
    whole = F.when(F.col("full") & ~F.col("run_holed"), F.col("log_end_ns") + F.col("offset_ns"))
    silent_to = F.when(F.col("ended").isNotNull(), F.lit(FAR_NS)).otherwise(whole)
    awake_to = F.when(~F.col("run_holed"), F.col("awake_to_ns") + F.col("offset_ns"))
    return client.where(F.col("peer").isNotNull() & (F.col("opens") > 0)).select(
        F.col("peer").alias("peer_key"),
        F.col("conn").alias("c_conn"),
        F.col("run").alias("c_run"),
        (F.col("opened") + F.col("offset_ns")).alias("c_opened"),
        (last_sent + F.col("offset_ns")).alias("c_last"),
        (F.col("ended") + F.col("offset_ns")).alias("c_ended"),
        (F.col("by_peer") == 1).alias("c_by_server"),
        silent_to.alias("c_silent_to"),
        F.coalesce("end_timeout_ms", "last_timeout_ms").alias("c_timeout_ms"),
        F.col("steps").alias("c_steps"),
        awake_to.alias("c_awake_to"),
    )


def without_peer(lives: DataFrame, runs: list[int]) -> DataFrame:
    """*lives* without the peer of those in *runs*, which have no place on the shared
    timeline: they find no pair.
    """
    return (
        lives.withColumn("peer", F.when(~F.col("run").isin(runs), F.col("peer"))) if runs else lives
    )


def pair(server: DataFrame, client: DataFrame) -> DataFrame:
    """Pair *server* (lifetimes with run) with the client's columns, null where the
    client's log has no such connection.

    Cardinality: every row of *server* once. A key that was used again belongs to the
    connection that was opened nearest in time, among those that were open together; of
    one that saw a step of a clock, among all.
    """
    far = F.lit(FAR_NS)
    begun, over = (
        F.col("opened") + F.col("offset_ns"),
        F.coalesce(F.col("ended") + F.col("offset_ns"), far),
    )
    together = (begun - SLACK_NS <= F.coalesce("c_ended", far)) & (
        F.col("c_opened") <= over + SLACK_NS
    )
    together = together | F.col("steps") | F.col("c_steps")
    distance = F.abs(begun - F.col("c_opened"))
    columns = (
        "c_conn",
        "c_run",
        "c_opened",
        "c_last",
        "c_ended",
        "c_by_server",
        "c_silent_to",
        "c_timeout_ms",
        "c_steps",
        "c_awake_to",
    )
    nearest = (
        server.where(F.col("peer").isNotNull() & F.col("opened").isNotNull())
        .select("conn", "peer", "opened", "ended", "offset_ns", "steps")
        .join(client, (F.col("peer") == F.col("peer_key")) & together, "inner")
        .groupBy(F.col("conn").alias("paired_conn"))
        # The least struct is that of the least distance: it comes first, and the rest
        # rides along.
        .agg(F.min(F.struct(distance.alias("distance"), *columns)).alias("match"))
        .select("paired_conn", *(f"match.{name}" for name in columns))
    )
    return server.join(nearest, F.col("conn") == F.col("paired_conn"), "left").drop("paired_conn")


def differences(frame: DataFrame) -> dict[str, Column]:
    """What single pairs say of the skew: it is not below `end`, and not above `begin`,
    at the instant `at`. The beginning of a long connection belongs to another time, and
    is left out. Null: no evidence.
    """
    reaped_and_seen = (F.col("reaps") == 1) & F.col("c_by_server") & ~F.col("steps")
    # Without an end its instant is that of its beginning.
    brief = F.coalesce(F.col("ended") - F.col("opened"), F.lit(0)) < BRIEF_NS
    brief &= ~F.col("steps")
    opened, ended = (F.col(name) + F.col("offset_ns") for name in ("opened", "ended"))
    return {
        "at": F.coalesce(ended, opened),
        "end": F.when(reaped_and_seen, ended - F.col("c_ended")),
        "begin": F.when(brief, opened - F.col("c_opened")),
    }


def measure_drift(connections: DataFrame) -> Drift:
    """The skew over time, by what *connections* (joined) say of each pair of runs."""
    said = differences(connections)
    pairs = connections.where(F.col("c_conn").isNotNull()).select(
        "run", "c_run", *(column.alias(name) for name, column in said.items())
    )
    bounds = pairs.agg(F.min("at"), F.max("at")).collect()[0]
    first = bounds[0] or 0
    # No narrower than a second: drift is slow, and a bin needs pairs.
    width = max(((bounds[1] or 0) - first) // BINS, 1_000_000_000)
    place = F.floor((F.col("at") - first) / width)
    rows = (
        pairs.groupBy("run", "c_run", place.alias("bin"))
        .agg(
            F.count(F.lit(1)).alias("pairs"),
            F.percentile_approx("end", 0.5).alias("end"),
            F.percentile_approx("begin", 0.5).alias("begin"),
        )
        .collect()
    )
    bins: dict[tuple[int, int], list[Bin]] = {}
    for row in sorted(rows, key=lambda row: (row.run, row.c_run, row.bin)):
        middle = first + row.bin * width + width // 2
        bins.setdefault((row.run, row.c_run), []).append((middle, row.pairs, row.end, row.begin))
    return Drift({runs: knots for runs, found in bins.items() if (knots := knots_of(found))})


Bin = tuple[int, int, int | None, int | None]
"""The middle of a bin of time, its pairs, and their medians of `end` and `begin`.
ns.
"""


def knots_of(bins: Sequence[Bin]) -> list[Knot]:
    """The skew at the middle of each stretch of *bins*, ascending; see `Drift`."""
    stretches: list[list[Bin]] = [[]]
    for each in bins:
        if sum(pairs for _, pairs, *_ in stretches[-1]) >= KNOT_PAIRS:
            stretches.append([])
        stretches[-1].append(each)
    # A last stretch with too few pairs for a median joins the one before.
    if len(stretches) > 1 and sum(pairs for _, pairs, *_ in stretches[-1]) < KNOT_PAIRS:
        last = stretches.pop()
        stretches[-1] += last
    knots = []
    for stretch in stretches:
        pairs = sum(n for _, n, *_ in stretch)
        medians = [
            median_of([(value, n) for value, n in zip(values, counts, strict=True)])
            for counts in [[n for _, n, *_ in stretch]]
            for values in ([each[2] for each in stretch], [each[3] for each in stretch])
        ]
        known = [value for value in medians if value is not None]
        # A few pairs that bound it on one side alone: what the anchors say, which is 0,
        # bounds it on the other.
        few = len(known) == 1 and pairs < KNOT_PAIRS
        bounds = [*known, 0] if few else known
        if known and max(bounds) - min(bounds) <= MOST_ROUND_TRIP_NS:
            middle = sum(at * n for at, n, *_ in stretch) // pairs
            knots.append((middle, sum(known) // len(known)))
    return knots


def median_of(weighted: Sequence[tuple[int | None, int]]) -> int | None:
    """The median of values with their weights; None: there is no value."""
    values = sorted((value, weight) for value, weight in weighted if value is not None)
    half, passed = sum(weight for _, weight in values) / 2, 0
    for value, weight in values:
        passed += weight
        if passed >= half:
            return value
    return None


def measure_spread(skewed: DataFrame) -> float | None:
    """See `Skew.spread`. *skewed*: joined, with `skew_ns`."""
    said = differences(skewed)
    rest = {name: said[name] - F.col("skew_ns") for name in ("end", "begin")}
    row = (
        skewed.where(F.col("c_conn").isNotNull())
        .agg(
            # Only in the direction that no delay explains: delays spread the other one.
            F.percentile_approx(rest["end"], [0.5, 0.9], 10_000),
            F.percentile_approx(rest["begin"], [0.1, 0.5], 10_000),
        )
        .collect()[0]
    )
    spans = [values[1] - values[0] for values in row if values]
    return max(spans) / 1e9 if spans else None


def with_skew(spark: SparkSession, frame: DataFrame, drift: Drift) -> DataFrame:
    """*frame* (joined) with `skew_ns`: server's clock less the client's, still to be
    taken off. Each row once.
    """
    rows = drift.rows()
    if not rows:
        return frame.withColumn("skew_ns", F.lit(0).cast("long"))
    # Of runs that say nothing of their skew it is not known, and not 0.
    at = F.coalesce("ended", "last_t") + F.col("offset_ns")
    here = (
        (F.col("run") == F.col("k_run"))
        & (F.col("c_run") == F.col("k_c_run"))
        & (at >= F.col("k_from"))
        & (at < F.col("k_to"))
    )
    known = F.col("k_skew_ns") + F.floor((at - F.col("k_at")) * F.col("k_slope"))
    return (
        frame.join(F.broadcast(small_frame(spark, rows, DRIFT)), here, "left")
        .withColumn("skew_ns", F.coalesce(known, F.lit(0)).cast("long"))
        .withColumn("steps", F.col("steps") | (F.col("c_conn").isNotNull() & known.isNull()))
        .drop(*DRIFT.names)
    )


def measure_skew(paired: DataFrame) -> Skew:
    """The bounds on the skew of the two clocks, over all of *paired*.

    The round trip is that of brief connections, in which clocks cannot part; where each
    lasted longer, as with timeouts of more than a minute, that of all.
    """
    reaped_and_seen = (F.col("reaps") == 1) & F.col("c_by_server") & ~F.col("steps")
    end = F.when(reaped_and_seen, F.col("ended") + F.col("offset_ns") - F.col("c_ended"))
    begin = F.when(~F.col("steps"), F.col("opened") + F.col("offset_ns") - F.col("c_opened"))
    brief = F.when(F.col("ended") - F.col("opened") < BRIEF_NS, begin - end)
    row = (
        paired.where(F.col("c_conn").isNotNull())
        .agg(
            F.count(F.lit(1)),
            *(F.percentile_approx(each, 0.5) for each in (end, begin)),
            *(F.percentile_approx(each, 0.1) for each in (brief, begin - end)),
        )
        .first()
    )
    pairs, *found, brief_trip, any_trip = row if row is not None else (0, None, None, None, None)
    found.append(any_trip if brief_trip is None else brief_trip)
    return Skew(pairs, *(None if each is None else each / 1e9 for each in found))


def _due(since: Column) -> Column:
    """When a connection was due that its client says was silent *since*, on the
    client's clock. Null: no timeout was in force.

    Where another timeout came into force during that silence, it was due no earlier.
    """
    since = _timed_since(since)
    changed = F.col("changed") + F.col("offset_ns") - F.col("skew_ns")
    last = F.col("ended") - F.col("end_idle_ns")
    due = since + F.col("idle_timeout_ns")
    return F.when(due.isNotNull(), F.greatest(due, F.when(F.col("changed") > last, changed)))


def _timed_since(silent: Column) -> Column:
    """Since when a timeout ran for a connection that was *silent* since then, on the
    client's clock: not before the server was done with its work.
    """
    return F.greatest(silent, F.col("last_untimed") + F.col("offset_ns") - F.col("skew_ns"))


def _hidden_work() -> Column:
    """For how long after its client's last byte the server may have been at work, and
    no row says so: until the last activity that it noted, up to the silence that its
    journal does not write (0 in `full` mode).
    """
    done = F.col("ended") - F.col("end_idle_ns") + F.col("offset_ns") - F.col("skew_ns")
    return F.greatest(F.lit(0), F.least(F.col("gap_threshold_ns"), done - F.col("c_last")))


def seen(frame: DataFrame) -> DataFrame:
    """*frame* (prepared, paired, with its skew) with `seen_lateness_ns`, an idle reap's
    as the client saw it, and its last silence as the client saw it: `from` and `to`
    (shared timeline; null without a client), `over`, how long it was overdue. Of a
    connection without an end: up to the end of the log, as far as both sides say that a
    timeout was in force.

    Args:
        frame: One row per server connection. `leaking` is added: whether `to` is such
            an end of the log.
    """
    skew = F.col("skew_ns")
    idle_reap = (F.col("reaps") > 0) & F.col("idle_timeout_ns").isNotNull() & F.col("c_by_server")
    since = _timed_since(F.greatest("c_last", "c_opened"))
    no_end, watched = (
        F.col("ends") == 0,
        (F.col("c_timeout_ms") > 0) & (F.col("last_timeout_ms") > 0),
    )
    log_end = F.col("log_end_ns") + F.col("offset_ns")
    known = no_end & watched & F.col("c_silent_to").isNotNull()
    until = F.when(known, F.least(log_end, F.col("c_silent_to") + skew))
    timeout = F.when(no_end, ns(F.col("last_timeout_ms"))).otherwise(F.col("idle_timeout_ns"))
    return (
        frame.withColumn("seen_lateness_ns", F.when(idle_reap, F.col("c_ended") - _due(since)))
        .withColumn("from", since + skew)
        .withColumn("to", F.coalesce(until, F.col("c_ended") + skew))
        .withColumn("leaking", F.coalesce(known, F.lit(False)))
        .withColumn("over", F.col("to") - F.col("from") - timeout)
    )


def judge_pairs(
    judged: DataFrame, *, flight_ns: int, tolerance_ns: int, compared: bool, round_trip_ns: int
) -> DataFrame:
    """*judged* (seen, excused) with the client's evidence in `verdict`, `crossed`,
    `one_end`: only one side has an end, although the log of the other goes on; and
    `unheard`: its client was silent for longer than its timeout when the server's
    program ended it, so that nobody else says that it was active.

    Args:
        judged: One row per server connection, with its own verdict.
        tolerance_ns: How far the two timelines may disagree.
        compared: Whether instants of the two clocks can be compared at all. If not,
            the server's own verdict stands, but that a reap is early where the client
            alone knows it: it saw the end too soon after its last byte. So it does, and
            without that, where a clock was set or stood still meanwhile (`steps`).
        flight_ns: Bytes sent so shortly before the reap may have been on their way:
            `crossed`, not early.
        round_trip_ns: The client's last byte comes so much later, and it sees the end
            so much later, than it knows.
    """
    ended = F.col("ended") + F.col("offset_ns") - F.col("skew_ns")
    if not compared:
        ended = F.when(F.col("c_by_server"), F.col("c_ended"))
    limit = F.col("limit_ns") + F.col("stalled_ns")
    paired = F.col("c_conn").isNotNull()
    same_clocks = F.lit(compared) & ~F.col("steps")
    idle_reap = paired & (F.col("reaps") > 0) & F.col("idle_timeout_ns").isNotNull()
    idle_reap &= ~F.col("steps")
    silent = ended - F.col("c_last")
    crossed = F.coalesce(idle_reap & (silent < flight_ns), F.lit(False))
    far = limit + F.lit(round_trip_ns)
    worked = far + _hidden_work()
    late = ~crossed & (F.col("seen_lateness_ns") > worked)
    early = idle_reap & ~crossed & (silent < F.col("idle_timeout_ns") - F.lit(tolerance_ns))
    left_by_itself = (
        paired
        & (F.col("reaps") == 0)
        & (F.col("ends") > 0)
        & ~F.coalesce("c_by_server", F.lit(False))
    )
    overdue = F.col("c_ended") - _due(F.col("c_last"))
    log_end = F.col("log_end_ns") + F.col("offset_ns")
    forgotten = F.col("c_by_server") & (F.col("c_ended") + F.col("skew_ns") < log_end - limit)
    leaked = F.col("leaking") & (F.col("over") > worked)
    lost = paired & (F.col("ends") == 0) & ~F.col("run_holed") & (forgotten | leaked)
    # What the server knows of activity is an epoch wide, and an end it learns of late;
    # the client knows both exactly.
    by_due = F.coalesce(F.col("ended") - F.col("due_ns") > limit, F.lit(False))
    acquitted_late = (
        (F.col("verdict") == "late") & idle_reap & (F.col("seen_lateness_ns") <= limit) & ~by_due
    )
    acquitted_late &= ~F.col("outlasted")
    acquitted_missed = (
        (F.col("verdict") == "missed")
        & left_by_itself
        & (overdue <= limit)
        & (F.col("came_back") == 0)
        # Of its end alone the client knows better.
        & (F.col("missed") <= 1)
        & F.coalesce(F.col("missed_t") == F.col("ended"), F.lit(True))
    )
    fine = F.col("verdict").isin("ok_reaped", "ok_closed", "open_at_end", "late", "missing_touch")
    missed = left_by_itself & (overdue > worked)
    ended_by_program = paired & (F.col("reaps") == 0) & (F.col("ends") > 0) & F.col("c_by_server")
    # Bytes that a handler reads late, or bytes that never came: the rows do not tell.
    unheard = F.coalesce(fine & ended_by_program & (overdue > worked), F.lit(False))
    verdict = (
        F.when(fine & early, "early")
        .when(~same_clocks, F.col("verdict"))
        .when(fine & F.col("run_holed") & (missed | late), "unknown")
        .when(fine & missed, "missed")
        .when(fine & lost, "lost")
        .when(fine & late, "late")
        .when(acquitted_late, "ok_reaped")
        .when(acquitted_missed, "ok_closed")
        .otherwise(F.col("verdict"))
    )
    # The end that the other side would have seen meanwhile.
    unseen = (F.col("ends") > 0) & F.col("c_ended").isNull()
    unseen &= F.col("c_awake_to") + F.col("skew_ns") > F.col("ended") + F.col("offset_ns") + far
    untold = (F.col("ends") == 0) & ~F.col("run_holed")
    untold &= F.col("awake_to_ns") + F.col("offset_ns") > F.col("c_ended") + F.col("skew_ns") + far
    one_end = paired & same_clocks & (F.coalesce(unseen, F.lit(False)) | untold)
    seen_ns = F.when(~crossed & same_clocks, F.col("seen_lateness_ns"))
    return (
        judged.withColumn("seen_lateness_ns", seen_ns)
        .withColumn("crossed", crossed)
        .withColumn("one_end", F.coalesce(one_end, F.lit(False)))
        .withColumn("unheard", unheard & same_clocks)
        .withColumn("verdict", verdict)
    )
