"""The tables of docs/performance.md, from the results to Markdown.

One rule: what was not measured is said to be so, in the place where its figures would stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ..heart.touch import COLD, HOT
from ..peers import table as peers
from ..suite import PARTS, present
from .results import LEASE, UID, Comparison, Results, comparisons, middle
from .words import people, quantity, times

MISSING = "*Not measured in this run.*"
MET, MISSED = "met", "missed"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is a figure."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: Any, unit: str = "") -> str:
    """A figure, or a dash."""
    found = middle(value)
    return "-" if found is None else quantity(found) + (f" {unit}" if unit else "")


def ours(peer: str) -> str:
    """The name of a peer, ours in bold."""
    return f"**{peer}**" if peer in peers.OUR_NAMES else peer


def scale(results: Results) -> str:
    """A warning, if these are not the figures of a full run."""
    small = sorted(name for name, part in results.parts.items() if part.get("scale") in ("tiny", "quick"))
    if not small:
        return ""
    return f"**This is a small run ({', '.join(small)}): its figures are for orientation only.**"


def machine(results: Results) -> str:
    """What it was measured on."""
    about = next(part["about"] for part in results.parts.values() if "about" in part)
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    state = " with changes not committed" if about["dirty"] else ""
    commits = {part["about"]["commit"][:12] for part in results.parts.values() if "about" in part}
    several = f" (parts of this page: {', '.join(sorted(commits))})" if len(commits) > 1 else ""
    return (
        f"{about['cpu']}, {about['cpus']} processors, {about['memory_bytes'] / 2**30:.0f} GiB; {about['system']} "
        f"{about['kernel']}; {about['python']}; {packages}. Commit {about['commit'][:12]}{state}{several}, "
        f"{about['date']}."
    )


def not_run(results: Results) -> str:
    """What could not be run here, loudly."""
    told = [
        f"- **NOT RUN**: {part}: {name}: {why}"
        for part in ("jvm", "servers")
        for name, why in (results.get(part, "not_run") or {}).items()
    ]
    if absent := results.get("instructions", "absent"):
        told.append(f"- **NOT RUN**: instructions: {absent}")
    told += [
        f"- **NOT RUN**: the part `{part.name}`: {part.about}"
        for part in PARTS
        if present(part) and part.name not in results.parts
    ]
    return "\n".join(told) or "Everything could be run on this machine."


def hot(results: Results) -> str:
    """Up to how many connections everything is in the caches."""
    return f"{HOT:,}"


def cold(results: Results) -> str:
    """From how many connections on nothing is in the caches."""
    return f"{COLD:,}"


def touch_table(results: Results) -> str:
    """Nanoseconds a touch by peer and size, and times the empty call."""
    found = results.get("touch", "results")
    if found is None:
        return MISSING
    sizes = sorted({int(n) for by_n in found.values() for n in by_n})
    how = {kind.name: kind.how for kind in peers.ALL}
    rows = []
    for peer, by_n in found.items():
        row = [ours(peer), how.get(peer, "")]
        for n in sizes:
            figures = by_n.get(str(n))
            words = "-" if figures is None else f"{cell(figures['touch_ns'])}<br>{times(figures['to_empty'])}"
            if figures is not None and "cold_ns" in figures and n < COLD:
                words += f"<br>cold: {cell(figures['cold_ns'])}<br>{times(figures['cold_to_empty'])}"
            row.append(words)
        rows.append(row)
    return table(["", "what a touch does", *(f"{people(n)}, ns<br>x empty call" for n in sizes)], rows)


def touch_special(results: Results) -> str:
    """First and repeated; the busy among many."""
    again, subset = results.get("touch", "repeated"), results.get("touch", "hot_subset")
    if again is None or subset is None:
        return MISSING
    return (
        f"The first touch of a connection in an epoch, {people(again['n'])} connections: {cell(again['first'], 'ns')}; "
        f"touched again in the same epoch: {cell(again['second'], 'ns')} = {times(again['second_to_first'])}. "
        f"{subset['busy']:,} busy connections among {people(subset['few'])}: {cell(subset['among_few'], 'ns')} a "
        f"touch; among {people(subset['many'])}: {cell(subset['among_many'], 'ns')} = {times(subset['ratio'])}."
    )


def jvm_table(results: Results) -> str:
    """The JVM's timers."""
    found = results.get("jvm", "results")
    if not found:
        return "**NOT RUN**: this needs Java 17 and pyspark's jars; see above."
    sizes = sorted({int(n) for by_n in found.values() for n in by_n})
    about = results.get("jvm", "peers") or {}
    rows = []
    for peer, by_n in found.items():
        row = [f"**{peer}**" if peer == "lease.touch" else f"{peer}: {about.get(peer, '')}"]
        for n in sizes:
            figures = by_n.get(str(n)) or {}
            ratio = results.get("jvm", "ratios", peer, str(n), "touch")
            row.append(cell(figures.get("touch_ns")) + (f"<br>ours {times(ratio)} of it" if ratio else ""))
        for n in sizes:
            whole = (by_n.get(str(n)) or {}).get("process_cpu_ns")
            ratio = results.get("jvm", "ratios", peer, str(n), "all_in")
            row.append(cell(whole) + (f"<br>ours {times(ratio)} of it" if ratio else ""))
        row.append(cell((by_n.get(str(max(int(n) for n in by_n))) or {}).get("bytes")))
        rows.append(row)
    skipped = "; ".join(f"{name}: {why}" for name, why in (results.get("jvm", "not_measured") or {}).items())
    java = results.get("jvm", "java") or "Java"
    words = (
        f"CPU nanoseconds a touch, {java}, rounds that alternate with ours: first of the thread that touches, then of "
        "the whole process until the work that was put off for another thread is done; for us, a share of the ticks."
    )
    head = [*(f"{people(n)}, ns" for n in sizes), *(f"{people(n)}, all, ns" for n in sizes)]
    return f"{words} Not measured: {skipped}.\n\n" + table(["", *head, "bytes"], rows)


TICK_COLUMNS = {
    "register_ns": "register, ns",
    "release_ns": "release, ns",
    "idle_us": "nothing due, us",
    "one_percent_ms": "1 % due, ms",
    "all_due_ms": "all due, ms",
    "steady_mean_ms": "traffic, mean ms",
    "steady_worst_ms": "traffic, worst ms",
}


def ticks_table(results: Results) -> str:
    """Everything but the touch, at the largest size that all but the slowest hold, and at the largest of all."""
    found = results.get("ticks", "results")
    if found is None:
        return MISSING
    told = []
    for n in sorted({int(n) for by_n in found.values() for n in by_n})[-2:]:
        rows = []
        for peer, by_n in found.items():
            if (figures := by_n.get(str(n))) is not None:
                rows.append([ours(peer), *(cell(figures.get(column)) for column in TICK_COLUMNS)])
        told.append(table([f"{people(n)} connections", *TICK_COLUMNS.values()], rows))
    retimed = results.largest("ticks", "results", LEASE)
    retime = results.get("ticks", "results", LEASE, str(retimed), "retime_ns")
    told.append(
        f"*1 % due*: all were registered in one instant, and all but one in a hundred have spoken since: every one of "
        f"them has to be looked at in that tick, which is the worst case of a lazy structure. `lease.retime()` costs "
        f"{cell(retime, 'ns')}; with the other structures it is a touch."
    )
    return "\n\n".join(told)


def steady_table(results: Results) -> str:
    """Ticks under traffic, by pattern and size."""
    found = results.get("steady", "results")
    if found is None:
        return MISSING
    rows = []
    for pattern, by_n in found.items():
        for n, figures in by_n.items():
            whole, sliced = figures["whole"], figures["sliced"]
            rows.append([
                f"{pattern}, {people(int(n))}", cell(whole["cpu_mean_ms"]), cell(whole["cpu_ms"]["max"]),
                cell(whole["tick_ms"]["max"]), f"{whole['reaped']:,}", cell(sliced["cpu_mean_ms"]),
                cell(sliced.get("slice_cpu_ms", {}).get("max")),
            ])  # fmt: skip
    head = ["", "mean, ms CPU", "worst, ms CPU", "worst, ms wall", "reaped", "in slices: mean", "longest step, ms CPU"]
    return table(head, rows)


def slice_limit(results: Results) -> str:
    """Leases a slice."""
    return cell(results.get("pauses", "limit"))


def pauses_table(results: Results) -> str:
    """Slices of a mass expiry and of its control."""
    found = results.get("pauses", "results")
    if found is None:
        return MISSING
    rows = []
    for n, each in found.items():
        for name, what in (("ours", "slices"), ("control", "the control")):
            wall, cpu = each[name]["wall"], each[name]["cpu"]
            rows.append([
                f"{people(int(n))}, {what}", f"{each['rounds']} x {each['slices']:,}", cell(cpu["median"]),
                cell(cpu["p99.9"]), cell(cpu["worst"]["max"]), cell(wall["p99.9"]), cell(wall["worst"]["max"]),
                str(each["full_collections"]) if name == "ours" else "",
            ])  # fmt: skip
    head = [
        "",
        "runs x slices",
        "median CPU ms",
        "p99.9 CPU",
        "worst CPU",
        "p99.9 wall",
        "worst wall",
        "full collections",
    ]
    return table(head, rows)


def outliers_table(results: Results) -> str:
    """Slow slices by design."""
    found = results.get("outliers", "results")
    if found is None:
        return MISSING
    slow = results.get("outliers", "slow_ms")
    rows = [
        [name, f"{each['slices']:,}", cell(each["median_ms"]), cell(max(each["worst_ms"])),
         cell(max(each["worst_cpu_ms"])), str(len(each["slow"])), str(each["taken_by_others"]),
         str(sum(one["page_faults"] > 100 for one in each["slow"])),
         cell(sorted(each["last_ms"])[len(each["last_ms"]) // 2])]
        for name, each in found.items()
    ]  # fmt: skip
    head = ["", "slices", "median ms", "worst, wall", "worst, CPU", f"over {slow:g} ms", "of those taken by others",
            "with > 100 page faults", "the last slice, ms"]  # fmt: skip
    return table(head, rows)


def outliers_finding(results: Results) -> str:
    """What the table says, computed."""
    found = results.get("outliers", "results")
    if found is None:
        return ""
    slow = sum(len(each["slow"]) for each in found.values())
    taken = sum(each["taken_by_others"] for each in found.values())
    limit = results.get("outliers", "slow_ms")
    control = found["empty loop (control)"]
    words = (
        f"Of {slow:,} slices over {limit:g} ms, in {taken:,} the thread had the processor for less than half of the "
        f"time: it was taken away. The empty loop, which allocates nothing, had {len(control['slow'])} of them, the "
        f"worst {quantity(max(control['worst_ms']))} ms."
    )
    told = [words]
    names = [name for name in found if name != "empty loop (control)"]
    heavy = {name: max(found[name]["worst_cpu_ms"]) for name in names}
    for name, cpu in sorted(heavy.items(), key=lambda item: -item[1]):
        own = [one for one in found[name]["slow"] if one["cpu_ms"] >= one["ms"] / 2 or one["cpu_ms"] > limit]
        if cpu > limit and own:
            at = sum(one["at"] > 0.99 for one in own)
            told.append(
                f"*{name}* is slow by itself: {quantity(cpu)} ms of CPU at worst, {at} of its {len(own)} such slices "
                f"at the very end."
            )
    if heavy.get("one list, kept to the end", 0) > limit:
        told.append(
            "The list held every connection until it was dropped, and then all of them were freed in one step: a "
            "cascade of deallocations, and the collector has no part in it."
        )
    ours_cpu = heavy["chunks (ours)"]
    verdict = "none of ours is" if ours_cpu <= limit else "ours is too"
    told.append(f"In CPU time {verdict} slow: {quantity(ours_cpu)} ms at worst.")
    return " ".join(told)


def memory_table(results: Results) -> str:
    """Bytes a connection by peer and size."""
    found = results.get("memory", "results")
    if found is None:
        return MISSING
    sizes = sorted({int(n) for by_n in found.values() for n in by_n})
    rows = []
    for peer, by_n in found.items():
        if peer == UID:
            continue  # the same core
        row = [ours("lease.touch()") + " and its map" if peer == LEASE else ours(peer)]
        for n in sizes:
            figures = by_n.get(str(n)) or {}
            after = figures.get("bytes_traffic")
            row.append(cell(figures.get("bytes_fresh")) + ("" if after is None else f" -> {cell(after)}"))
        rows.append(row)
    words = "Fresh -> after a minute in which each spoke every ten seconds, where that was tried.\n\n"
    return words + table(["", *(people(n) for n in sizes)], rows)


def memory_hour(results: Results) -> str:
    """An hour of it."""
    hour = results.get("memory", "hour")
    if hour is None:
        return MISSING
    series = hour["by_minute"]
    return (
        f"{people(hour['n'])} connections, registered evenly over one timeout: {cell(hour['lease'], 'B')} a lease and "
        f"{cell(hour['uid_map'], 'B')} for the map from uids. After {hour['minutes']} minutes of virtual traffic "
        f"{cell(hour['after'], 'B')} instead of {cell(hour['fresh'], 'B')}, {(hour['growth'] - 1) * 100:+.1f} %; "
        f"between {cell(min(series), 'B')} and {cell(max(series), 'B')} on the way."
    )


def lose(results: Results) -> str:
    """Every comparison in which another one is better: one row per metric and peer, at the size where it is worst."""
    worst: dict[tuple[str, str, str], list[Comparison]] = defaultdict(list)
    total = 0
    for each in comparisons(results):
        total += 1
        if each.ratio > 1:
            worst[each.metric, each.ours, each.theirs].append(each)
    rows = []
    for (metric, us, them), found in sorted(worst.items(), key=lambda item: -max(each.ratio for each in item[1])):
        at = max(found, key=lambda each: each.ratio)
        sizes = ", ".join(people(each.n) for each in sorted(found, key=lambda each: each.n))
        rows.append([f"{metric}: {us} / {them}", f"{at.ratio:.2f}x", people(at.n), cell(at.our_value, at.unit),
                     cell(at.their_value, at.unit), sizes])  # fmt: skip
    lost = sum(len(found) for found in worst.values())
    words = f"{lost} of {total} comparisons of one metric with one peer at one size.\n\n"
    return words + table(["", "ours / theirs at worst", "at", "ours", "theirs", "lost at"], rows)


def parts(results: Results) -> str:
    """Each part with its time, memory, date and commit."""
    rows = []
    for name, each in results.parts.items():
        about = each.get("about") or each.get("machine") or {}
        dirty = " (changed)" if about.get("dirty") else ""
        peak = each.get("peak_rss_bytes")
        rows.append([
            name, each.get("scale", "-"), cell(each.get("seconds")), cell(peak / 2**20 if peak else None),
            about.get("date", "-"), str(about.get("commit", "-"))[:12] + dirty, cell(about.get("load_before")),
        ])  # fmt: skip
    return table(["part", "scale", "seconds", "peak MiB", "date", "commit", "load before"], rows)


FILLERS: dict[str, Callable[[Results], str]] = {
    function.__name__: function
    for function in (
        scale, machine, not_run, hot, cold, touch_table, touch_special, jvm_table, ticks_table, steady_table,
        slice_limit, pauses_table, outliers_table, outliers_finding, memory_table, memory_hour, lose, parts,
    )
}  # fmt: skip
