"""docs/fleet.md: a fleet planned on paper from one measured comparison. Every figure is worked out here, none is typed.

The assumptions that are not measurements are the constants below, and the page names them as such.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reaper.journal.schema import WRITER_BITS

SERVERS = 10_000
EVENTS_A_DAY = 10**11
DAY_S = 86_400
ROTATE_S = 300
"""How often a journal rotates by default."""

VCPU_HOUR_USD = 0.04
GB_MONTH_USD = 0.02
GB_HOUR_MEMORY_USD = 0.005
SCALE_OUT = 0.7
"""Share of a core's speed that is left when many machines work together, shuffle over a network included."""

EXECUTOR_CORES = 8
BATCH_HOURS = 1.0
"""How long the nightly batch may take."""

PARTITION_BYTES = 128 << 20
AGGREGATE_BYTES = 27 * 8
"""A connection on its way through the shuffle: as many columns of eight bytes as an audit groups."""

RETAIN_RAW_DAYS, RETAIN_TABLE_DAYS = 3, 30
STEPS = {
    "audit": "audit, from the files",
    "advise": "advise, from the files",
    "table-audit": "audit, from the table",
    "table-advise": "advise, from the table",
    "table-recompute": "advise from recomputed silences, from the table",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What is taken from the measurement."""

    events: int
    cpus: int
    bytes_an_event: float
    table_bytes_an_event: float | None
    connections_an_event: float
    gaps_share: float
    gaps_bytes: float
    seconds: dict[str, float]
    """Step -> median."""
    peak: float
    """Bytes, of all Spark's processes at most."""
    compact_s: float | None

    @classmethod
    def of(cls, run: dict[str, Any]) -> Measured:
        """From a comparison of benchmarks/pipeline/run.py."""
        size = run["sizes"][0]
        spark = [sample for sample in run["samples"] if sample["engine"] == "spark"]
        steps = {step for sample in spark for step in sample["s"]}
        events = size["generated"]["events"] if "generated" in size else size["events"]
        table = size["table_bytes"] / events if size.get("table_bytes") else None
        return cls(
            events=events,
            cpus=run["machine"]["cpus"],
            bytes_an_event=size["bytes"] / events,
            table_bytes_an_event=table,
            connections_an_event=size["connections_an_event"],
            gaps_share=size["gaps_share"],
            gaps_bytes=size["gaps_bytes_a_row"],
            seconds={
                step: statistics.median(sample["s"][step] for sample in spark if step in sample["s"]) for step in steps
            },
            peak=max(max(sample["peak_bytes"].values()) for sample in spark),
            compact_s=size.get("compact_s"),
        )

    def rate(self, seconds: float) -> float:
        """Events a second and core."""
        return self.events / seconds / self.cpus


def n(value: float) -> str:
    """Two significant digits."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:.2g}"


def size(value: float) -> str:
    """Bytes in a unit that reads well."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{n(value)} {unit}"
        value /= 1000
    return f"{n(value)} PB"


def figures(run: dict[str, Any]) -> dict[str, str]:
    """Every figure that the template names, as it is printed."""
    m = Measured.of(run)
    a_second = EVENTS_A_DAY / DAY_S / SERVERS
    a_day = EVENTS_A_DAY * m.bytes_an_event
    gaps_day = EVENTS_A_DAY * m.gaps_share * m.gaps_bytes
    file_bytes = a_second * ROTATE_S * m.bytes_an_event
    files_a_day = SERVERS * DAY_S / ROTATE_S
    connections = EVENTS_A_DAY * m.connections_an_event
    table_day = EVENTS_A_DAY * (m.table_bytes_an_event or m.bytes_an_event)
    buckets = 2 ** max(1, math.ceil(math.log2(table_day / 24 / PARTITION_BYTES)))

    def core_hours(seconds: float) -> float:
        return EVENTS_A_DAY / (m.rate(seconds) * SCALE_OUT) / 3600

    named = {"check": "check of every file", **STEPS}
    steps = {title: m.seconds[step] for step, title in named.items() if step in m.seconds}
    if m.compact_s is not None:
        steps = {"compact, Spark's start included": m.compact_s, **steps}
    batch = sum(core_hours(m.seconds[step]) for step in ("check", "audit", "advise"))
    cores = batch / BATCH_HOURS
    memory = m.peak / m.cpus * EXECUTOR_CORES
    shuffle = connections * AGGREGATE_BYTES
    compute_usd = batch * (VCPU_HOUR_USD + memory / EXECUTOR_CORES / 1e9 * GB_HOUR_MEMORY_USD)
    check_hours = EVENTS_A_DAY / (m.rate(m.seconds["check"]) * m.cpus) / 3600
    kept = RETAIN_RAW_DAYS * a_day + RETAIN_TABLE_DAYS * table_day
    storage_usd = kept / 1e9 * GB_MONTH_USD / 30
    return {
        "measured_events": f"{m.events:,}",
        "cpus": str(m.cpus),
        "date": run["machine"]["date"],
        "commit": run["machine"]["commit"][:10],
        "servers": f"{SERVERS:,}",
        "events_a_day": f"{EVENTS_A_DAY:,}",
        "a_second": n(a_second),
        "bytes_an_event": n(m.bytes_an_event),
        "gaps_share": f"{m.gaps_share:.0%}",
        "gaps_bytes": n(m.gaps_bytes),
        "table_bytes": "not measured" if m.table_bytes_an_event is None else n(m.table_bytes_an_event),
        "connections_a_million": n(m.connections_an_event * 1e6),
        "rates": "\n".join(f"| {title}: events a second and core | {n(m.rate(s))} |" for title, s in steps.items()),
        "peak": size(m.peak),
        "vcpu_hour": f"{VCPU_HOUR_USD:g}",
        "memory_hour": f"{GB_HOUR_MEMORY_USD:g}",
        "gb_month": f"{GB_MONTH_USD:g}",
        "scale_out": f"{SCALE_OUT:.0%}",
        "aggregate": str(AGGREGATE_BYTES),
        "full_a_day": size(a_day),
        "rotate": str(ROTATE_S),
        "file": size(file_bytes),
        "files_a_day": n(files_a_day),
        "file_hourly": size(file_bytes * 3600 / ROTATE_S),
        "files_hourly": n(SERVERS * 24),
        "fewer_files": str(3600 // ROTATE_S),
        "gaps_a_day": size(gaps_day),
        "gaps_of_full": f"{gaps_day / a_day:.0%}",
        "buckets": f"{buckets:,}",
        "bucket": size(table_day / 24 / buckets),
        "raw_days": str(RETAIN_RAW_DAYS),
        "table_days": str(RETAIN_TABLE_DAYS),
        "core_hours": "\n".join(f"| {title} | {n(core_hours(s))} |" for title, s in steps.items()),
        "batch_hours": f"{BATCH_HOURS:g}",
        "batch": n(batch),
        "cores": n(cores),
        "executors": n(math.ceil(cores / EXECUTOR_CORES)),
        "executor_cores": str(EXECUTOR_CORES),
        "executor_memory": size(memory),
        "connections": n(connections),
        "shuffle": size(shuffle),
        "shuffle_partitions": n(shuffle / PARTITION_BYTES),
        "partition": size(PARTITION_BYTES),
        "compute_usd": n(compute_usd),
        "kept": size(kept),
        "storage_usd": n(storage_usd),
        "gaps_usd": n((compute_usd + storage_usd) * gaps_day / a_day),
        "check_hours": n(check_hours),
        "check_minutes": n(check_hours / 24 * 60),
        "collisions": n(SERVERS * (SERVERS - 1) / 2 / 2**WRITER_BITS),
        "writer_ids": f"{1 << WRITER_BITS:,}",
    }


def fleet_page(run: dict[str, Any]) -> str:
    """The page: the template beside this file with every figure filled in."""
    template = Path(__file__).with_name("fleet.md").read_text(encoding="utf-8")
    return template.format_map(figures(run))
