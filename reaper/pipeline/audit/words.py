"""What the audit says, in words: its reasons, the story of one connection, the table to
read.

Nothing is decided here. `run.conclude` decides which reasons hold, and takes each
sentence from this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import printable
from ..read.expected import instant
from ..read.runs import Run, Timeline
from .account import ALLOWED
from .account import total as totals
from .verdicts import VERDICTS, VIOLATIONS

QUANTILE_NAMES = ("min", "p50", "p90", "p99", "p999", "max")
"""The columns of the table of lateness."""

NO_CONNECTION = "no connection was found: nothing is proven"
NONE_JUDGED = "no connection could be judged: nothing is proven"
STEPPED = "the two sides' clocks cannot be reconciled: a clock was stepped"
CLIENT_UNREAD = (
    "the client's log was asked for, and none of its files could be read: one side alone was judged"
)


# ---- reasons


def violated(verdict: str, count: int) -> str:
    """So many connections have a verdict that is a violation."""
    return f"{count} {verdict}: {VERDICTS[verdict]}"


def ran_backwards(rows: int) -> str:
    """So many rows have an instant before that of a row that came earlier."""
    return f"{rows} row(s) in which a monotonic clock ran backwards"


def put_aside(quarantined: Sequence[Mapping[str, str]]) -> str:
    """Files were put aside; the first of them is named."""
    first = quarantined[0]
    return f"{len(quarantined)} file(s) put aside: {first['path']}: {first['reason']}"


def judged_by_no_rule(rows: int) -> str:
    """So many rows are of no run."""
    return f"{rows} row(s) were judged by no rule: they belong to no run of a writer that is known"


def dropped(rows: int) -> str:
    """Writers say that they lost so many rows."""
    return f"{rows} row(s) that the writers dropped: the journal is not whole"


def dropped_by_the_client(rows: int) -> str:
    """The client's writers say that they lost so many rows."""
    return (
        f"{rows} row(s) that the client's writers dropped: what they would have told of the "
        "server is not known"
    )


def unjudged(reason: str, connections: int, seconds: float) -> str:
    """So much time of so many connections was not judged."""
    return f"{hours(seconds)} of {connections} connection(s) not judged: {reason}"


def hours(seconds: float) -> str:
    """A length of time as connection-hours, or as seconds where that is little."""
    return f"{seconds / 3600:,.2f} h" if seconds >= 36 else f"{seconds:.3g} s"


def judged_line(accounted: Mapping[str, Any]) -> str:
    """How much of all time was judged. The first line of an answer."""
    lifetime = accounted["lifetime_ns"]
    if not lifetime:
        return "no connection-hours judged: no connection was open for any time"
    share = accounted["judged_ns"] / lifetime
    rest = [
        f"{part / lifetime:.2%} {ALLOWED[name]}"
        for name, part in accounted["allowed_ns"].items()
        if part
    ]
    left = sum(entry["ns"] for entry in accounted["unjudged"].values())
    rest += [f"{left / lifetime:.2%} not judged"] if left else []
    # No share is rounded up to all.
    shown = "100" if accounted["judged_ns"] == lifetime else f"{min(100 * share, 99.99):.2f}"
    also = f" ({'; '.join(rest)})" if rest else ""
    long = lifetime / 3600e9
    return f"{shown} % of {long:{',.0f' if long >= 10 else '.3g'}} connection-hours judged{also}"


def hidden(threshold: float, timeout: float) -> str:
    """Say that silences were not written that may have been too long. Seconds."""
    return (
        f"silences up to {threshold:g} s were not written (gap_threshold), and a timeout is "
        f"{timeout:g} s: a silence that outlasted it may have no row; write the journal with a threshold "
        "below the timeout, or in full mode"
    )


def drifting(spread: float, flight: float) -> str:
    """Say that the two sides' clocks drift or jump beyond what can be taken off.
    Seconds.
    """
    return (
        "the two sides' clocks cannot be compared: pairs of rows contradict their skew by up to "
        f"{spread:.3g} s, more than the {flight:g} s that bytes may be on their way (--flight); no "
        "close was called early by both clocks"
    )


def excused_by_a_busy_loop(silences: int) -> str:
    """Say that so many silences are excused by stalls that may be none."""
    return (
        f"{silences} silence(s) beyond their timeout are excused by a stall alone, during which "
        "rows of the same loop were written: that it stood still is not proven"
    )


def reaps_that_say_nothing(reaps: int) -> str:
    """Say that so many reaps can be compared with nothing."""
    return f"{reaps} reap(s) state neither timeout nor due: whether they were right is unknown"


def closed_by_neither(pairs: int, all_pairs: int) -> str:
    """Say that in so many pairs each side says that the other closed."""
    return (
        f"{pairs} of {all_pairs} pair(s) were closed by neither side: each says that the other "
        "did, so that something between them did, or a journal is not what it claims to be"
    )


def clockless(runs: int) -> str:
    """So many runs have no place on the shared timeline; empty for none. Other reasons
    contain this clause.
    """
    return f"; {runs} run(s) have no anchors, so their instants cannot be compared" if runs else ""


def ended_on_one_side(pairs: int, all_pairs: int, allowed: float) -> str:
    """Say that in so many pairs one side saw no end, for as long as it was there."""
    return (
        f"{pairs} of {all_pairs} pair(s) ended on one side alone, more than {allowed:.3g} of them "
        "(--unmatched): the log of the other goes on without their end, so that which is right "
        "is not known"
    )


def not_compared(pairs: int, all_pairs: int) -> str:
    """Say that nothing tells how far apart the clocks of so many pairs are."""
    return (
        f"{pairs} of {all_pairs} pair(s) were judged by the server's log alone: the clock of a "
        "side was set while they were open, or stood still as that of a suspended machine does, "
        "or no pair tells how far apart the clocks are"
    )


def nobody_paired(
    servers: int, clients: int, without_clock: int, far: tuple[int, float] | None = None
) -> str:
    """Say that none of the client's connections is among the server's. *servers*,
    *clients*: how many connections each side's log has; *far*: connections that both
    have, and by how many seconds the server's are later.
    """
    if far is not None:
        count, seconds = far
        return (
            f"none of the client's {clients} connection(s) is among the server's {servers} at the "
            f"same time, and {count} have the same addresses, {abs(seconds):,.1f} s apart: is a "
            f"clock wrong?{clockless(without_clock)}"
        )
    return (
        f"none of the client's {clients} connection(s) is among the server's {servers}: it is "
        "another server's client, or an address translator or balancer lies between them. No two "
        "logs can be joined across one: it gives connections other addresses, and nothing else "
        f"tells them apart{clockless(without_clock)}"
    )


def too_few_paired(
    joined: Mapping[str, int], servers: int, clients: int, allowed: float, without_clock: int
) -> str:
    """Say that more connections than *allowed*, a share, have no counterpart."""
    return (
        f"{joined['server_only']} of the server's {servers} connection(s) and "
        f"{joined['client_only']} of the client's "
        f"{clients} have no counterpart, more than {allowed:.3g} of them (--unmatched): one side "
        "alone was judged"
        f"{clockless(without_clock)}"
    )


# ---- one connection


def where(row: Any, run: Run, machines: Mapping[int, str]) -> str:
    """Which server, and when: the journal has only a hash of the addresses."""
    began = row.opened if row.opened is not None else row.last_t
    at = f", {instant(began + Timeline.UNIX.offset_ns(run))}" if run.anchors else ""
    return f"server {machines.get(run.writer) or 'without a name'}{at}"


def story(row: Any, joined: bool) -> str:
    """What happened to one connection, in words; times count from its opening."""
    start = row.opened if row.opened is not None else row.last_t

    def at(t: int | None) -> str:
        return "never" if t is None else f"at {(t - start) / 1e9:+.3f} s"

    timeout = row.end_timeout_ms if row.end_timeout_ms is not None else row.open_timeout_ms
    parts = [
        f"on {row.listener or 'no listener'}",
        f"timeout {timeout / 1e3:g} s" if timeout else "no idle timeout",
        f"{row.opens} opening(s), {row.activities} logged silence(s), last {at(row.last_activity)}",
    ]
    if row.ends:
        how = (
            "reaped"
            if row.reaps
            else "closed by its peer"
            if row.by_peer
            else "closed by the program"
        )
        parts.append(f"{how} {at(row.ended)} after {(row.end_idle_ns or 0) / 1e9:.3f} s of silence")
        if row.due_ns is not None:
            parts.append(f"due {at(row.due_ns)}")
        if row.ends > 1:
            parts.append(f"{row.ends} ends")
    else:
        parts.append("no end")
    if row.came_back:
        parts.append(
            f"active again {at(row.missed_t)}, {row.missed_ns / 1e9:.3f} s after it was due"
        )
    if joined and row.c_conn is not None:
        last, ended = (
            row.c_last - row.offset_ns,
            None if row.c_ended is None else row.c_ended - row.offset_ns,
        )
        parts.append(
            f"client: last byte {at(last)}, end "
            f"{at(ended)}{' by the server' if row.c_by_server else ''}"
        )
    return "; ".join(parts)


# ---- the table


def as_text(summary: dict[str, Any]) -> str:
    """The audit as a table to read. In names of listeners and files, what does not
    print is escaped: a line stays a line.
    """
    total = summary["connections"] + summary["lost_without_a_row"]
    rows = (
        f"{summary['rows_read']:,} rows read: {summary['rows']:,} of connections judged, "
        f"{summary['rows_of_writers']:,} of the writers themselves"
    )
    lines = [
        f"audit: {summary['result'].upper()}   {judged_line(totals(summary['accounted']))}",
        f"{summary['connections']:,} connections; {rows}",
    ]
    lines += [f"  - {reason}" for reason in summary["reasons"]]
    lines.append("")
    lines.append(f"{'verdict':<20}{'connections':>12}  {'share':>8}  meaning")
    for name, count in summary["verdicts"].items():
        if count or name in VIOLATIONS:
            share = count / total if total else 0.0
            lines.append(f"{name:<20}{count:>12,}  {share:>8.3%}  {VERDICTS[name]}")
    lines.append("")
    lines.append(
        f"{'lateness, s':<26}{'reaped':>10}" + "".join(f"{name:>9}" for name in QUANTILE_NAMES)
    )
    for listener, entry in summary["listeners"].items():
        for label, key in (("", "lateness_s"), (", as the client saw it", "seen_lateness_s")):
            if values := entry.get(key):
                cells = "".join(f"{values[name]:>9.3f}" for name in QUANTILE_NAMES)
                lines.append(f"{listener + label:<26}{entry['reaped']:>10,}{cells}")
    if joined := summary.get("joined"):
        skew = summary["clock"]["skew_s"]
        estimate = (
            "no evidence" if skew["estimate"] is None else f"{skew['estimate'] * 1e3:+.2f} ms"
        )
        if summary["clock"]["one_clock"]:
            estimate = "none: both read it"
        lines.append("")
        lines.append(
            f"joined: {joined['pairs']:,} pairs, {joined['server_only']:,} server only, "
            f"{joined['client_only']:,} client only, {joined['crossed']:,} crossed; clocks: "
            f"{summary['clock']['timeline']}, skew {estimate}"
        )
    for offender in summary["offenders"]:
        lines.append(
            f"  {offender['verdict']} {offender['conn']} ({offender['where']}): {offender['story']}"
        )
    return "\n".join(map(printable, lines))
