"""Both sides of a connection in one row: the server's log joined with the load generator's.

A server's log proves the reaper consistent with its own clock. The other side knows when it sent
its last byte and when it saw the end: what contradicts that is a violation whatever the server
wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..engine import F, together
from ..read.frames import lifetimes, ns, read_events, runs_frame, with_run
from ..read.inputs import Inputs
from ..read.runs import Stalls, Timeline
from .silences import excuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONSISTENT_S = 0.05
"""By how much the two bounds may cross before the clocks are called irreconcilable: delays are not
that regular.
"""

SLACK_NS = 1_000_000_000
"""How far apart two intervals may lie and still be one connection's: clocks, and a connection not
yet accepted.
"""

FAR_NS = 1 << 62
"""Beyond every instant."""

NEGLIGIBLE_SKEW_S = 0.005
"""A skew up to here changes no verdict: the tolerance is wider."""

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
    apart: list[int]
    """The runs that have no place on the timeline: their connections find no pair."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What the join of both sides found."""

    connections: DataFrame
    """One row per connection of the server, judged by both sides, as it was written."""
    skew: Skew
    client_seen: int
    """Connections of the client that it opened."""
    client_only: int
    """Of them, those that are no connection of the server."""


def read(spark: SparkSession, inputs: Inputs, timeline: Timeline) -> Side:
    """The audit's first step, for one side: a row per connection. Nothing is computed yet."""
    runs = runs_frame(spark, inputs.runs, timeline)
    lives = with_run(lifetimes(read_events(spark, inputs)), runs)
    return Side(inputs, runs, lives, timeline.stalls(inputs.runs), timeline.apart(inputs.runs))


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
    """The audit's fourth step: pair the server's connections with the client's, and judge again.

    Where the clocks turn out to be apart, everything is judged and written a second time with their
    skew taken off.

    Args:
        judged: The server's connections, judged by its own journal.
        one_clock: Whether both sides read the same clock; then no skew is taken off.
        flight_ns: See `judge_pairs`.
        write: Keeps a frame, and returns it as it reads back.
    """
    view = client_view(without_peer(client.lives, client.apart))
    # The server's own verdict comes before the join: both in one method would be too long for
    # Java to compile.
    paired = pair(without_peer(judged, server.apart), view)

    def judge_by_both(skew_ns: int) -> DataFrame:
        shifted = {
            run: [(since + skew_ns, to + skew_ns) for since, to in found]
            for run, found in client.stalls.items()
        }
        excused = excuse(spark, seen(paired, skew_ns), server.stalls, shifted)
        tolerance_ns = SAME_CLOCK_NS if one_clock else flight_ns
        return write(
            judge_pairs(excused, skew_ns=skew_ns, flight_ns=flight_ns, tolerance_ns=tolerance_ns)
        )

    progress("joining both sides, judging every connection")
    connections, client_seen = together(
        partial(judge_by_both, 0), client.lives.where("opens > 0").count
    )
    skew = measure_skew(connections)
    if not one_clock and skew.estimate is not None and abs(skew.estimate) > NEGLIGIBLE_SKEW_S:
        progress(f"judging again with the clocks' skew of {skew.estimate * 1e3:+.1f} ms taken off")
        connections = judge_by_both(round(skew.estimate * 1e9))
    matched = connections.where(F.col("c_conn").isNotNull()).select("c_conn").distinct().count()
    return Joined(connections, skew, client_seen, client_seen - matched)


@dataclass(frozen=True, slots=True)
class Skew:
    """What the pairs of rows say about the two clocks, after their anchors were reconciled.
    Seconds; None: no evidence.

    Positive: the server's clock is ahead.
    """

    pairs: int
    at_least: float | None
    """A close is seen by the client no earlier than the server made it: the skew is not below this
    (median pair).
    """
    at_most: float | None
    """A connection is accepted no earlier than the client began it: the skew is not above this
    (median pair).
    """

    @property
    def estimate(self) -> float | None:
        """The middle of what is possible."""
        if self.at_least is None or self.at_most is None:
            return self.at_least if self.at_most is None else self.at_most
        return (self.at_least + self.at_most) / 2

    @property
    def consistent(self) -> bool:
        """Whether one skew explains all pairs; False: a clock was stepped, or the timelines are not
        what they claim.
        """
        return (
            self.at_least is None
            or self.at_most is None
            or self.at_least <= self.at_most + CONSISTENT_S
        )


def client_view(client: DataFrame) -> DataFrame:
    """The load generator's lifetimes as the join wants them. One row per connection that has a peer
    key.

    Its times are on the shared timeline: peer_key, c_conn, c_run, c_opened, c_last (last byte it
    sent, or the opening), c_ended, c_by_server; and c_silent_to: up to when it certainly sent
    nothing after c_last (null: not known), while c_timeout_ms was in force.
    """
    last_sent = F.coalesce(F.col("ended") - F.col("end_idle_ns"), "last_activity", "opened")
    # Without an end a journal in `gaps` mode, or one with a hole, does not know the last byte;
    # ended, it sends no more.
    whole = F.when(F.col("full") & ~F.col("run_holed"), F.col("log_end_ns") + F.col("offset_ns"))
    silent_to = F.when(F.col("ended").isNotNull(), F.lit(FAR_NS)).otherwise(whole)
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
    )


def without_peer(lives: DataFrame, runs: list[int]) -> DataFrame:
    """*lives* without the peer of those in *runs*, which have no place on the shared timeline: they
    find no pair.
    """
    return (
        lives.withColumn("peer", F.when(~F.col("run").isin(runs), F.col("peer"))) if runs else lives
    )


def pair(server: DataFrame, client: DataFrame) -> DataFrame:
    """*server* (lifetimes with run) with the client's columns, null where the client's log has no
    such connection.

    Cardinality: every row of *server* once. A key that was used again belongs to the connection
    that was opened nearest in time, among those that were open together.
    """
    far = F.lit(FAR_NS)
    begun, over = (
        F.col("opened") + F.col("offset_ns"),
        F.coalesce(F.col("ended") + F.col("offset_ns"), far),
    )
    together = (begun - SLACK_NS <= F.coalesce("c_ended", far)) & (
        F.col("c_opened") <= over + SLACK_NS
    )
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
    )
    nearest = (
        server.where(F.col("peer").isNotNull() & F.col("opened").isNotNull())
        .select("conn", "peer", "opened", "ended", "offset_ns")
        .join(client, (F.col("peer") == F.col("peer_key")) & together, "inner")
        .groupBy(F.col("conn").alias("paired_conn"))
        .agg(F.min(F.struct(distance.alias("distance"), *columns)).alias("match"))
        .select("paired_conn", *(f"match.{name}" for name in columns))
    )
    return server.join(nearest, F.col("conn") == F.col("paired_conn"), "left").drop("paired_conn")


def measure_skew(paired: DataFrame) -> Skew:
    """The bounds on the skew of the two clocks, from *paired*."""
    reaped_and_seen = (F.col("reaps") == 1) & F.col("c_by_server")
    end = F.when(reaped_and_seen, F.col("ended") + F.col("offset_ns") - F.col("c_ended"))
    begin = F.col("opened") + F.col("offset_ns") - F.col("c_opened")
    row = (
        paired.where(F.col("c_conn").isNotNull())
        .agg(F.count(F.lit(1)), F.percentile_approx(end, 0.5), F.percentile_approx(begin, 0.5))
        .first()
    )
    pairs, least, most = row if row is not None else (0, None, None)
    return Skew(pairs, None if least is None else least / 1e9, None if most is None else most / 1e9)


def seen(frame: DataFrame, skew_ns: int) -> DataFrame:
    """*frame* (prepared, paired) with `seen_lateness_ns`, an idle reap's as the client saw it, and
    its last silence as the client saw it: `from` and `to` (shared timeline; null without a client),
    `over`, how long it was overdue. Of a connection without an end: up to the end of the log, as
    far as both sides say that a timeout was in force.

    Args:
        frame: One row per server connection. `leaking` is added: whether `to` is such an end of the
            log.
        skew_ns: Server's clock less the client's, still to be taken off.
    """
    idle_reap = (F.col("reaps") > 0) & F.col("idle_timeout_ns").isNotNull() & F.col("c_by_server")
    since = F.greatest("c_last", "c_opened")
    no_end, watched = (
        F.col("ends") == 0,
        (F.col("c_timeout_ms") > 0) & (F.col("last_timeout_ms") > 0),
    )
    log_end = F.col("log_end_ns") + F.col("offset_ns")
    known = no_end & watched & F.col("c_silent_to").isNotNull()
    until = F.when(known, F.least(log_end, F.col("c_silent_to") + F.lit(skew_ns)))
    timeout = F.when(no_end, ns(F.col("last_timeout_ms"))).otherwise(F.col("idle_timeout_ns"))
    return (
        frame.withColumn(
            "seen_lateness_ns",
            F.when(idle_reap, F.col("c_ended") - since - F.col("idle_timeout_ns")),
        )
        .withColumn("from", since + F.lit(skew_ns))
        .withColumn("to", F.coalesce(until, F.col("c_ended") + F.lit(skew_ns)))
        .withColumn("leaking", F.coalesce(known, F.lit(False)))
        .withColumn("over", F.col("to") - F.col("from") - timeout)
    )


def judge_pairs(judged: DataFrame, *, skew_ns: int, flight_ns: int, tolerance_ns: int) -> DataFrame:
    """*judged* (seen, excused) with the client's evidence in `verdict`, and `crossed`.

    Args:
        judged: One row per server connection, with its own verdict.
        skew_ns: Server's clock less the client's, still to be taken off.
        tolerance_ns: How far the two timelines may disagree.
        flight_ns: Bytes sent so shortly before the reap may have been on their way: `crossed`, not
            early.
    """
    ended = F.col("ended") + F.col("offset_ns") - F.lit(skew_ns)
    limit = F.col("limit_ns") + F.col("stalled_ns")
    paired = F.col("c_conn").isNotNull()
    idle_reap = paired & (F.col("reaps") > 0) & F.col("idle_timeout_ns").isNotNull()
    silent = ended - F.col("c_last")
    crossed = idle_reap & (silent < flight_ns)
    late = ~crossed & (F.col("seen_lateness_ns") > limit)
    early = idle_reap & ~crossed & (silent < F.col("idle_timeout_ns") - F.lit(tolerance_ns))
    left_by_itself = (
        paired
        & (F.col("reaps") == 0)
        & (F.col("ends") > 0)
        & ~F.coalesce("c_by_server", F.lit(False))
    )
    overdue = F.col("c_ended") - F.col("c_last") - F.col("idle_timeout_ns")
    log_end = F.col("log_end_ns") + F.col("offset_ns")
    forgotten = F.col("c_by_server") & (F.col("c_ended") + F.lit(skew_ns) < log_end - limit)
    leaked = F.col("leaking") & (F.col("over") > limit)
    lost = paired & (F.col("ends") == 0) & ~F.col("run_holed") & (forgotten | leaked)
    # What the server knows of activity is an epoch wide, and an end it learns of late; the client
    # knows both exactly.
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
    )
    fine = F.col("verdict").isin("ok_reaped", "ok_closed", "open_at_end", "late", "missing_touch")
    verdict = (
        F.when(fine & early, "early")
        .when(fine & left_by_itself & (overdue > limit), "missed")
        .when(fine & lost, "lost")
        .when(fine & late, "late")
        .when(acquitted_late, "ok_reaped")
        .when(acquitted_missed, "ok_closed")
        .otherwise(F.col("verdict"))
    )
    return (
        judged.withColumn("seen_lateness_ns", F.when(~crossed, F.col("seen_lateness_ns")))
        .withColumn("crossed", crossed)
        .withColumn("verdict", verdict)
    )
