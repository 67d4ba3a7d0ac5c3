"""What the server shows of itself: its connections, and its counters for Prometheus.

One rule: *looking changes nothing*. A look at the connections takes time in proportion to the rows asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Any

import trio

from reaper.errors import UnknownUid
from reaper.metrics import Family, Histogram, families

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
            continue  # reaped a moment ago
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
    """Everything that is counted, in Prometheus' text format: the server's own metrics, then the library's."""
    return "".join(_text(family) for family in (*_families(server), *families(server.watcher.statistics()))).encode()


def metrics_of_all(server: Host) -> bytes:
    """The same of every worker, each sample labelled with its worker; of this one alone where there are no others.

    Labelled and not summed: a worker that is replaced begins at zero, which a monitoring system understands of one
    worker's counter and not of a sum. What the others say is up to half a second old.
    """
    own = metrics(server)
    if server.bulletins is None:
        return own
    lines: dict[str, list[str]] = {}
    for worker in range(server.bulletins.workers):
        text = own if worker == server.worker else server.bulletins.get(worker)
        head = ""
        for line in text.decode().splitlines():
            if line.startswith("# HELP"):
                head = line
                lines.setdefault(head, [])
            elif line.startswith("# TYPE"):
                head_and_type = lines[head]
                if not head_and_type:
                    head_and_type.append(line)
            else:
                lines[head].append(_labelled(line, worker))
    return "".join(f"{head}\n" + "\n".join(found) + "\n" for head, found in lines.items()).encode()


def _labelled(sample: str, worker: int) -> str:
    key, _, value = sample.rpartition(" ")
    name, brace, labels = key.partition("{")
    return f'{name}{{worker="{worker}"{"," + labels if brace else "}"} {value}'


def _families(server: Host) -> Iterator[Family]:
    counters = server.counters
    phases = dict(Counter(connection.policy.phase.value for connection in server.connections))
    if server.lot is not None:
        phases[PARKED] = len(server.lot)
    responses = {str(status): count for status, count in counters.responses.items()}
    yield Family("http_connections", "gauge", "Open connections.", server.open)
    yield Family("http_connections_in_phase", "gauge", "Open connections by phase.", phases, "phase")
    yield Family("http_connections_opened", "counter", "Connections accepted.", counters.opened)
    yield Family("http_connections_closed", "counter", "Connections closed.", counters.closed)
    yield Family("http_connections_refused", "counter", "Connections beyond the limit.", counters.refused)
    yield Family("http_connections_lost", "counter", "Connections broken off by the peer.", counters.lost)
    yield Family("http_accept_errors", "counter", "Errors of accept(2).", counters.accept_errors)
    yield Family("http_requests", "counter", "Requests begun.", counters.requests)
    yield Family("http_responses", "counter", "Responses by status.", responses, "status")
    yield Family("http_failures", "counter", "Routes that raised.", counters.failures)
    yield Family("http_reloads", "counter", "Configurations put in force by SIGHUP.", counters.reloads)


def _text(family: Family) -> str:
    name = family.name + ("_total" if family.kind == "counter" else "")
    values = family.values
    samples: list[tuple[str, float]]
    if isinstance(values, Histogram):
        buckets = values.cumulative()
        samples = [(f'_bucket{{le="{"+Inf" if bound == inf else f"{bound:g}"}"}}', count) for bound, count in buckets]
        samples += [("_sum", values.total), ("_count", buckets[-1][1])]
    elif isinstance(values, Mapping):
        samples = [(f'{{{family.label}="{value}"}}', number) for value, number in sorted(values.items())]
    else:
        samples = [("", values)]
    lines = [f"# HELP {name} {family.doc}", f"# TYPE {name} {family.kind}"]
    lines += [f"{name}{key} {number:.17g}" for key, number in samples]
    return "\n".join(lines) + "\n"
