"""What the server shows of itself: its connections, and its counters for Prometheus.

One rule: *looking changes nothing*. A look at the connections takes time in proportion to the rows asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import trio

from reaper.errors import UnknownUid
from reaper.metrics import Family

if TYPE_CHECKING:
    from .server import HttpServer

PARKED = "parked"
"""What is shown as the phase of a connection that waits for its next request without a task."""

Row = dict[str, object]


def connection_rows(server: HttpServer, limit: int) -> Row:
    """Up to *limit* connections as plain data, in the order of their descriptors.

    Seconds throughout; `due_in` is None while a request is in flight. `why` is the core's own explanation.
    """
    now = trio.current_time()
    core = server.watcher.core
    rows: list[Row] = []

    def add(uid: object, opened: float, received: int, sent: int, **said: object) -> None:
        try:
            explained = core.explain(uid)
        except UnknownUid:
            return  # reaped a moment ago
        idle_since = explained.active_from if explained.active_until is None else explained.active_until
        rows.append(
            {
                **said,
                "age": round(now - opened, 3),
                "idle_for": round(max(0.0, now - idle_since), 3),
                "due_in": None if explained.due is None else round(explained.due - now, 3),
                "timeout": None if explained.suspended else explained.timeout,
                "reason": None if explained.suspended else explained.reason,
                "received": received,
                "sent": sent,
                "why": str(explained),
            }
        )

    for kept in islice(server.lot, limit):
        connection = kept.connection
        if connection is None:
            phase, requests, moved, last = PARKED, kept.requests, kept, None
        else:
            policy, moved = connection.policy, connection.transport
            phase, requests, last = policy.phase.value, policy.requests, policy.retired
        about = {"peer": kept.peer, "phase": phase, "requests": requests}
        add(kept, kept.opened, moved.received, moved.sent, last_request=last, **about)
    return {"worker": os.getpid(), "open": len(server.lot), "draining": server.draining, "connections": rows}


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


def own_families(server: HttpServer) -> Iterator[Family]:
    """Everything that is counted, for Prometheus."""
    counters = server.counters
    phases = dict(Counter(connection.policy.phase.value for connection in server.connections))
    phases[PARKED] = server.lot.parked
    responses = {str(status): count for status, count in counters.responses.items()}
    yield Family("http_connections", "gauge", "Open connections, parked ones included.", len(server.lot))
    yield Family("http_connections_in_phase", "gauge", "Open connections by phase.", phases, "phase")
    yield Family("http_connections_opened", "counter", "Connections accepted.", counters.opened)
    yield Family("http_connections_closed", "counter", "Connections closed.", counters.closed)
    yield Family(
        "http_connections_refused",
        "counter",
        "Connections refused: max_connections were open.",
        counters.refused,
    )
    yield Family("http_connections_lost", "counter", "Connections broken off by the client.", counters.lost)
    yield Family("http_accept_errors", "counter", "Errors of accept(2).", counters.accept_errors)
    yield Family("http_requests", "counter", "Requests begun.", counters.requests)
    yield Family("http_responses", "counter", "Responses by status.", responses, "status")
    yield Family("http_failures", "counter", "Routes that raised.", counters.failures)
    yield Family("http_reloads", "counter", "Configurations put in force by SIGHUP.", counters.reloads)
