"""What the server shows of itself: its connections, and its counters for Prometheus.

One rule: *looking changes nothing*. A look at the connections takes time in proportion to the rows asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import trio

from reaper.errors import UnknownUid

from .connection import Host

PARKED = "parked"
"""What is shown as the phase of a connection that waits for its next request without a task."""

Row = dict[str, object]


def connection_rows(server: Host, limit: int) -> Row:
    """Up to *limit* connections, the longest open first and the parked ones last, as plain data.

    Seconds throughout; `due_in` is None while a request is in flight. `why` is the core's own explanation.
    """
    now = trio.current_time()
    core = server.watcher.core
    rows: list[Row] = []
    for connection in islice(server.connections, limit):
        try:
            explained = core.explain(connection.uid)
        except UnknownUid:
            continue  # reaped, and about to be told so
        policy = connection.policy
        idle_since = explained.active_from if explained.active_until is None else explained.active_until
        rows.append(
            {
                "peer": connection.transport.peer,
                "phase": policy.phase.value,
                "age": round(now - connection.opened, 3),
                "idle_for": round(max(0.0, now - idle_since), 3),
                "due_in": None if explained.due is None else round(explained.due - now, 3),
                "timeout": None if explained.suspended else explained.timeout,
                "reason": None if explained.suspended else explained.reason,
                "requests": policy.requests,
                "received": connection.transport.received,
                "sent": connection.transport.sent,
                "last_request": policy.retired,
                "why": str(explained),
            }
        )
    dozing: Iterable[Any] = () if server.lot is None else server.lot
    for parked in islice(dozing, limit - len(rows)):
        explained = core.explain(parked)
        kept = parked.remembered
        idle_since = explained.active_from if explained.active_until is None else explained.active_until
        rows.append(
            {
                "peer": parked.peer,
                "phase": PARKED,
                "age": round(now - kept.opened, 3),
                "idle_for": round(max(0.0, now - idle_since), 3),
                "due_in": None if explained.due is None else round(explained.due - now, 3),
                "timeout": explained.timeout,
                "reason": explained.reason,
                "requests": kept.requests,
                "received": kept.received,
                "sent": kept.sent,
                "last_request": None,
                "why": str(explained),
            }
        )
    return {"worker": os.getpid(), "open": server.open, "draining": server.draining, "connections": rows}


def connections_text(table: Row) -> str:
    """The same for a terminal."""
    rows: Any = table["connections"]
    lines = [f"worker {table['worker']}: {table['open']} open"]
    lines.append(f"{'peer':24} {'phase':12} {'age':>9} {'idle for':>9} {'due in':>9} {'requests':>9}  why")
    for row in rows:
        due = "-" if row["due_in"] is None else f"{row['due_in']:.1f}"
        numbers = f"{row['age']:9.1f} {row['idle_for']:9.1f} {due:>9} {row['requests']:9}"
        lines.append(f"{row['peer']:24} {row['phase']:12} {numbers}  {row['why']}")
    return "\n".join([*lines, ""])


def metrics(server: Host) -> bytes:
    """Everything that is counted, in Prometheus' text format."""
    counters, statistics = server.counters, server.watcher.statistics()
    core = statistics.core
    phases: dict[str, float] = {}
    for connection in server.connections:
        name = connection.policy.phase.value
        phases[name] = phases.get(name, 0) + 1
    if server.lot is not None:
        phases[PARKED] = len(server.lot)
    responses = {str(status): float(count) for status, count in counters.responses.items()}
    parts = [
        _family("http_connections", "gauge", "Open connections.", server.open),
        _family("http_connections_in_phase", "gauge", "Open connections by phase.", phases, "phase"),
        _family("http_connections_opened_total", "counter", "Connections accepted.", counters.opened),
        _family("http_connections_closed_total", "counter", "Connections closed.", counters.closed),
        _family("http_connections_refused_total", "counter", "Connections beyond the limit.", counters.refused),
        _family("http_connections_lost_total", "counter", "Connections broken off by the peer.", counters.lost),
        _family("http_requests_total", "counter", "Requests begun.", counters.requests),
        _family("http_responses_total", "counter", "Responses by status.", responses, "status"),
        _family("http_failures_total", "counter", "Routes that raised.", counters.failures),
        _family("http_reloads_total", "counter", "Configurations put in force by SIGHUP.", counters.reloads),
        _family("reaper_reaped_total", "counter", "Connections reaped by reason.", counters.reaped, "reason"),
        _family("reaper_averted_total", "counter", "Reaps averted at the last look.", core.averted),
        _family("reaper_leases", "gauge", "Leases registered.", core.registered),
        _family("reaper_leases_suspended", "gauge", "Leases exempt: a request is in flight.", core.suspended),
        _family("reaper_lateness_max_seconds", "gauge", "Largest lateness of a reap.", core.max_lateness),
        _family("reaper_loop_lag_seconds", "gauge", "How late the last epoch ended.", statistics.lag),
        _family("reaper_loop_lag_max_seconds", "gauge", "The latest an epoch ever ended.", statistics.max_lag),
        _family("reaper_loop_stalls_total", "counter", "Epochs that ended more than a tick late.", statistics.stalls),
        _family("reaper_cpu_seconds_total", "counter", "CPU time of the reaper's task.", statistics.cpu),
    ]
    return "".join(parts).encode()


def _family(name: str, kind: str, doc: str, values: float | Mapping[str, float], label: str = "") -> str:
    samples: Iterable[tuple[str, float]]
    if isinstance(values, Mapping):
        samples = ((f'{{{label}="{value}"}}', number) for value, number in sorted(values.items()))
    else:
        samples = (("", values),)
    lines = [f"# HELP {name} {doc}", f"# TYPE {name} {kind}", *(f"{name}{key} {number:g}" for key, number in samples)]
    return "\n".join(lines) + "\n"
