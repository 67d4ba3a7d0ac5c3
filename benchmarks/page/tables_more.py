"""The tables of the parts that stand for themselves: accuracy, servers, journal, timers, load generator, pipeline.

One rule: as in `tables.py`.
"""

from __future__ import annotations

from .results import Results
from .tables import MISSING, cell, table
from .words import people, quantity, times


def mass_table(results: Results) -> str:
    """Passes of trio's loop."""
    found = results.get("mass", "results")
    if found is None:
        return MISSING
    rows = [
        [name, people(int(each["connections"])), cell(each["p99_ms"]), cell(each["worst_ms"]), cell(each["all_gone_s"])]
        for name, each in found.items()
    ]
    return table(["", "connections", "p99 of passes, ms", "worst, ms", "all gone in, s"], rows)


def accuracy_table(results: Results) -> str:
    """Lateness, from the last byte plus the timeout."""
    if not results.get("accuracy"):
        return MISSING
    rows = []
    for case, each in results.get("accuracy", "core").items():
        at = each["lateness_s"]
        rows.append([f"the core in virtual time, {case}", f"{each['reaps']:,}", str(each["early"]), cell(at["min"]),
                     cell(at["median"]), cell(at["max"]), f"{each['beyond_a_tick']} ({each['stalls']} stalls)",
                     ])  # fmt: skip
    for name, words in (("simulated", "`loadgen simulate`, 10 stalls"), ("real", "`loadgen run`, real sockets")):
        each = results.get("accuracy", name)
        at, reaps = each["lateness_s"], each["reaps"]
        beyond = f"{reaps['late_raw']}, {reaps['late']} of them unexplained"
        rows.append([f"{words}: {each['verdict']}", f"{reaps['observed']:,}", str(reaps["early"] + reaps["false"]),
                     cell(at["min"]), cell(at["p50"]), cell(at["max"]), beyond])  # fmt: skip
    head = ["lateness in seconds, tick 1 s", "reaps", "early or false", "least", "median", "most", "beyond one tick"]
    return table(head, rows)


def echo_table(results: Results) -> str:
    """The echo servers."""
    found = results.get("echo", "results")
    if found is None:
        return MISSING
    rows = [
        [name, cell(each["cpu_ns"]["median"] / 1e3), times(each["cpu_to_plain"]),
         times(each["wall_to_plain"])]
        for name, each in found.items()
    ]  # fmt: skip
    head = [f"{results.get('echo', 'rounds')} rounds of {results.get('echo', 'requests_a_round'):,} requests",
            "CPU us per request", "x plain, CPU", "x plain, wall"]  # fmt: skip
    return table(head, rows)


def exchanges_table(results: Results) -> str:
    """What an exchange costs in counts, which no neighbour can disturb."""
    found = results.get("exchanges", "results")
    if not found:
        return ""
    plain, *_ = found.values()
    rows = [
        [name, f"{each['instructions']:,}", f"{each['instructions'] / plain['instructions']:.2f}x",
         f"{sum(each['calls'].values()):.1f}", ", ".join(f"{call} {n:.1f}" for call, n in each["calls"].items())]
        for name, each in found.items()
    ]  # fmt: skip
    words = (
        f"The same counted, and parked: {results.get('exchanges', 'connections')} clients that speak at once, again "
        "and again, each silent in between. Instructions of the server in user mode by callgrind, system calls by "
        "strace. With `serve_parked()` and in *http, parked* each connection is parked after each answer, which a "
        "server does not do to its few busiest: their tasks linger, as in *http, lingering*."
    )
    return f"{words}\n\n" + table(["", "instructions", "x plain", "system calls", "which"], rows)


def servers_table(results: Results) -> str:
    """Other servers."""
    found = results.get("servers", "results")
    if not found:
        return "**NOT RUN**; see above."
    about = results.get("servers", "servers") or {}
    rows = []
    for name, each in found.items():
        wrk = each.get("wrk") or {}
        rate, p99 = cell(wrk.get("requests_per_second")), cell(wrk.get("latency_ms_p99"))
        label = f"{name}: {about.get(name, '')}"
        rows.append([f"**{label}**" if name.startswith("ours") else label, cell(each["bytes_per_idle_connection"]),
                     cell(each["cpu_us"]), rate, p99])  # fmt: skip
    n = results.get("servers", "size", "connections")
    words = f"{n:,} idle connections to each; `wrk` shares the machine with the server."
    return f"{words}\n\n" + table(
        ["", "bytes an idle connection", "CPU us per request", "wrk requests/s", "p99 ms"], rows
    )


def journal_table(results: Results) -> str:
    """What the journal costs."""
    if not results.get("journal"):
        return MISSING
    rows = [
        [people(int(n)), cell(each["bare"]), cell(each["gaps"]), cell(each["difference"]), times(each["ratio"])]
        for n, each in results.get("journal", "touch_ns").items()
    ]
    events = "; ".join(f"{name} {cell(each, 'ns')}" for name, each in results.get("journal", "event_ns").items())
    size = results.get("journal", "parquet_bytes_per_row")
    head = ["journal: a touch in `gaps` mode, ns", "bare", "logging", "difference", "ratio"]
    return table(head, rows) + f"\n\nEach event: {events}; {size:.1f} bytes per row as Parquet."


def timers_table(results: Results) -> str:
    """The wheel compared with heapq."""
    found = results.get("timers", "timers")
    if found is None:
        return MISSING
    told = []
    for n, each in found.items():
        rows = [
            [act, cell(wheel), cell(each["heap"][act]), times(each["wheel/heap"][act])]
            for act, wheel in each["wheel"].items()
        ]
        told.append(
            table([f"`TimingWheel`, {people(int(n))} timers, ns each", "wheel", "heapq", "wheel / heapq"], rows)
        )
    last = results.get("timers", "purgatory")[-1]
    told.append(
        f"The purgatory, after every operation was completed and replaced {last['round']} times: {cell(last['bytes'])} "
        f"bytes of resident memory an operation, {cell(last['ns'])} ns to complete and renew one, the longest "
        f"{cell(last['longest_us'])} us."
    )
    return "\n\n".join(told)


def loadgen_table(results: Results) -> str:
    """The load generator."""
    report = results.get("loadgen", "report")
    if report is None:
        return MISSING
    own = report["loadgen"]
    lag, memory = own["lag_s"], own["rss_bytes_per_connection"]
    return (
        f"The load generator with {report['connections']['established']:,} connections and "
        f"{quantity(results.get('loadgen', 'rate'))} actions a second wanted: {cell(memory)} bytes per connection, "
        f"{own['cpu_fraction'] * 100:.0f} % of a processor, its own lag {cell((lag['p50'] or 0) * 1e3)} ms in the "
        f"median, {cell((lag['p99'] or 0) * 1e3)} ms at the 99th percentile."
    )


def pipeline_section(results: Results) -> str:
    """Spark beside its rivals: the ratio of each question."""
    from ..pipeline.run import ratio

    rows = []
    for name in (name for name in results.parts if name.startswith("pipeline")):
        if results.get(name, "kind") == "comparison":
            for question in ("audit", "advise"):
                for rival in ("duckdb", "polars"):
                    found = ratio(results.get(name, "samples"), "spark", question, question, rival)
                    if found is not None:
                        rows.append([name, question, rival, f"{found:.2f}x"])
    return table(["", "question", "rival", "Spark / rival, median of rounds"], rows) if rows else MISSING


def instructions_table(results: Results) -> str:
    """Machine instructions: what no neighbour can disturb."""
    counted = results.get("instructions", "instructions")
    if not counted:
        return ""
    rows = [[name, cell(count)] for name, count in counted.items()]
    words = "Machine instructions, counted by callgrind: the same to the last digit on every run, and blind to caches."
    return f"{words}\n\n" + table(["", "instructions"], rows)


FILLERS = {
    function.__name__: function
    for function in (
        mass_table, accuracy_table, echo_table, exchanges_table, servers_table, journal_table, timers_table,
        loadgen_table, pipeline_section, instructions_table,
    )
}  # fmt: skip
