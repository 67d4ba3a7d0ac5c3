"""The programs by name, and docs/performance.md: one screen for users on top, the table
of every program below a line.

*No figure is typed*: what the page says comes from the JSON files, and what was not
measured is named.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Any, NamedTuple

from scripts import marked

from . import dearer, figures
from .common import ROOT, figure, markdown, short, times


class Program(NamedTuple):
    """One question."""

    name: str
    module: str
    title: str

    def load(self) -> ModuleType:
        return importlib.import_module(f"benchmarks.{self.module}")


PROGRAMS = {
    program.name: program
    for program in (
        Program("touch", "heart.touch", "A touch"),
        Program("instructions", "instructions", "A touch in machine instructions"),
        Program("jvm", "peers.jvm", "A touch, and Netty's wheel on the JVM"),
        Program("ticks", "heart.ticks", "Ticks, and everything else that a connection needs"),
        Program("timers", "heart.timers", "Timers in the wheel and in a heap"),
        Program("calls", "heart.calls", "The longest call"),
        Program("memory", "heart.memory", "Memory of a connection"),
        Program("mass", "heart.mass", "The longest pause"),
        Program("journal", "heart.journal_cost", "The journal"),
        Program("keeper", "heart.keepers", "A keeper of what can be idle"),
        Program("exchanges", "servers.exchanges", "An exchange in instructions and system calls"),
        Program("guarded", "servers.guarded", "A request in instructions, stock and guarded"),
        Program("servers", "servers.run", "A request, ours and other servers'"),
        Program("idle", "servers.idle", "An idle connection, ours and other servers'"),
        Program("resting", "servers.resting", "A resting client, stock and guarded"),
        Program("tls", "servers.tls", "An idle TLS connection on asyncio, stock and guarded"),
        Program("tls-costs", "servers.tls_costs", "Waking a TLS connection, and a busy one"),
        Program("pauses", "servers.pauses", "The longest wait of one client beside a crowd"),
        Program("streams", "servers.streams", "A quiet event stream, pinged"),
        Program("vanished", "vanished", "Looking for clients that have vanished"),
        Program("attach", "attach", "Guarding another process"),
        Program("starts", "starts", "A Python start below `reaper run`"),
        Program("pipeline", "pipeline.run", "The pipeline"),
    )
}
"""In the order in which they run, and stand on the page."""
TLS_MEMORY = ROOT / "docs" / "howto" / "tls-memory.md"
TLS_MARKS = (
    "<!-- Written by `python -m benchmarks document` from here -->",
    "<!-- to here -->",
)
PIPELINE = ROOT / "docs" / "pipeline.md"
PIPELINE_MARKS = (
    "<!-- The seconds, by `python -m benchmarks document`: do not edit -->",
    "<!-- end of the seconds -->",
)
SLOW = ("pauses", "pipeline")
"""Run only where they are named: half an hour each, and gigabytes of disk."""

HEAD = """<!-- Written by `python -m benchmarks document` from benchmarks/results/*.json; do not edit. -->

# What it costs

What you pay, next to the usual way of doing the same. A ratio is the median (10th to 90th percentile) of rounds that
measured both sides a moment apart.
"""
ADVICE = """## Use something else when

- you have a few hundred connections and one timeout: `asyncio.timeout` or `trio.move_on_after` around each read is
  simpler. On asyncio it does close clients whose bytes had arrived while your loop was stalled;
- all connections share one timeout that never changes, and you need no explanations and no slices: an `OrderedDict`,
  its entries moved to the end per packet, has the cheaper tick;
- you schedule tasks, not silence: `heapq` is cheaper than the wheel;
- a proxy in front of you closes idle clients already, and nothing reaches you past it;
- you are on the JVM: Netty's wheel, re-armed only when it fires, costs no more per packet.

## Known bad

- `watched()` wraps every receive in one more `async` call; `serve_tcp` does not.
- `core.touch(uid)` looks the lease up first: keep the lease and touch that.
- Opening and closing a connection costs several times what it costs with a heap. Half of it, among other connections,
  is [the least in Python](#a-touch-in-machine-instructions): an object, a dict and a list. The rest, by taking it off:
  its place in a slot 1,240 instructions, the check of `now` 430, the count of closes 400, who is suspended 250, a
  `uid` that misbehaves 240, the slot of the one before 210, hooks 150.
- The map from uids is a dict, and churn makes it grow.
- A full garbage collection stops the loop: `reaper.tame_gc` keeps it out of a server, as it is in the reference server.
- The example HTTP server is [not fast](#a-request-ours-and-other-servers).
"""
BELOW = """---

## How to read the tables

Figures swing by half from run to run on a shared machine; a ratio within a round does not. A control times the same
code twice: its distance from 1.00 is the error of its neighbours. `make bench` measures all anew,
`python -m benchmarks run NAME` one table. Here: {machines}.
"""


def read(results: Path) -> dict[str, dict[str, Any]]:
    """What the programs have found, by their names."""
    return {
        name: json.loads(path.read_text())
        for name in PROGRAMS
        if (path := results / f"{name}.json").exists()
    }


def page(results: Path) -> str:
    """The whole page."""
    found = read(results)
    changes = dearer.section(found)
    if (demos := results / "scale" / "demos.json").exists():
        found["demos"] = json.loads(demos.read_text())
    parts = [HEAD, top(found), "", changes, ADVICE, BELOW.format(machines=machines(found))]
    for name, program in PROGRAMS.items():
        parts.append(f"## {program.title}\n")
        if name not in found:
            parts.append(f"Not measured: `python -m benchmarks run {name}`.\n")
        elif "absent" in found[name]:
            parts.append(f"Not measured: {found[name]['absent']}.\n")
        else:
            parts.append(
                program.load().table(found[name]) + f"\n\n<sub>{measured(found[name])}</sub>\n"
            )
    return "\n".join(parts)


def write_tls_memory(found: dict[str, dict[str, Any]], where: Path) -> None:
    """Put the table of idle TLS connections into the page *where* that is about them
    alone.

    Raises:
        SystemExit: the page lacks the marks.
    """
    part = found.get("tls")
    if part is not None:
        lines = PROGRAMS["tls"].load().table(part).splitlines()
        lines += ["", f"<sub>{measured(part)}</sub>"]
        text = "\n".join(line if "|" in line else fill(line, 88) for line in lines)
        marked.write(where, *TLS_MARKS, text)


def seconds_of_pipeline(part: dict[str, Any]) -> str:
    """What stands between `PIPELINE_MARKS`."""
    return f"{figures.pipeline_table(part)}\n\n<sub>{measured(part)}</sub>"


def write_pages(found: dict[str, dict[str, Any]]) -> None:
    """Put what was *found* into the pages that quote it, beside docs/performance.md."""
    write_tls_memory(found, TLS_MEMORY)
    if "pipeline" in found:
        marked.write(PIPELINE, *PIPELINE_MARKS, seconds_of_pipeline(found["pipeline"]))
    figures.write(ROOT, found)


def measured(part: dict[str, Any]) -> str:
    """When a table was measured, and at what commit, in a line."""
    about = part["about"]
    size = "" if part["scale"] == "full" else f" **A {part['scale']} run, with small sizes.**"
    load = about["load_before"]
    busy = f" **Busy machine: load {load:.1f}.**" if load > about["cpus"] else ""
    if beside := about.get("beside"):
        busy += f" **Beside {beside}.**"
    dirty = " with changes" if about["dirty"] else ""
    return (
        f"`{part['part']}`, {about['commit'][:12]}{dirty}, {about['date'].split()[0]}.{size}{busy}"
    )


def machines(found: dict[str, Any]) -> str:
    """What all of it was measured on."""
    known = {
        (each["about"]["cpu"], each["about"]["cpus"], each["about"]["python"])
        for each in found.values()
        if "about" in each
    }
    return "; ".join(f"{cpu}, {cpus} processors, {python}" for cpu, cpus, python in sorted(known))


def top(found: dict[str, Any]) -> str:
    """The screen for users."""
    rows = []
    for name, (part, cells) in ROWS.items():
        measured = part in found and "absent" not in found[part]
        rows.append([name, *(cells(found[part]) if measured else ["not measured"] * 2)])
    return markdown(["", "reaper", "the usual way"], rows)


def _of(part: dict[str, Any], peer: str, size: str | None = None) -> tuple[str, dict[str, Any]]:
    """(size, figures) of *peer* at *size*, or at the largest that was measured."""
    by_size = part["results"][peer]
    key = size if size and size in by_size else max(by_size, key=int)
    return key, by_size[key]


def _packet(part: dict[str, Any]) -> list[str]:
    size, ours = _of(part, "lease.touch()", "100000")
    said = []
    for peer, name in (
        ("asyncio call_later + cancel", "asyncio"),
        ("trio scope, deadline set anew", "trio"),
    ):
        theirs = part["results"][peer].get(size)
        if theirs:
            inverse = theirs["lease_to_it"]
            ratio = {
                key: 1 / inverse[other]
                for key, other in (("median", "median"), ("p10", "p90"), ("p90", "p10"))
            }
            said.append(f"{name} {figure(theirs['touch_ns']['median'])} ns, {times(ratio, 1)}")
    return [
        f"{figure(ours['touch_ns']['median'])} ns ({short(size)} open)",
        f"re-arming a timer: {'; '.join(said)}",
    ]


def _memory(part: dict[str, Any]) -> list[str]:
    _, ours = _of(part, "lease.touch()", "100000")
    _, theirs = _of(part, "asyncio call_later + cancel", "100000")
    return [
        f"{figure(ours['bytes_fresh'])} bytes",
        f"asyncio's timer: {figure(theirs['bytes_fresh'])} bytes",
    ]


def _idle_tick(part: dict[str, Any]) -> list[str]:
    size, ours = _of(part, "lease.touch()")
    _, theirs = _of(part, "asyncio call_later + cancel")
    return [
        f"{figure(ours['idle_us']['median'])} us ({short(size)} open)",
        f"asyncio: {figure(theirs['idle_us']['median'])} us",
    ]


def _traffic(part: dict[str, Any]) -> list[str]:
    size, ours = _of(part, "lease.touch()", "100000")
    peers = {
        "asyncio's timers": "asyncio call_later + cancel",
        "a heap": "heapq, re-armed when it comes up",
    }
    rest = (
        f"{name} {figure(_of(part, peer, size)[1]['steady_mean_ms']['median'])} ms"
        for name, peer in peers.items()
    )
    return [
        f"{figure(ours['steady_mean_ms']['median'])} ms ({short(size)}, each every 10 s)",
        "; ".join(rest),
    ]


def _pause(part: dict[str, Any]) -> list[str]:
    each = part["results"]
    parked, tasks = each["sockets, parked"], each["tasks without sockets"]
    theirs = each.get("the same by `trio.move_on_at`")
    ours = (
        f"{figure(parked['worst_ms'])} ms ({short(parked['connections'])} parked), "
        f"{figure(tasks['worst_ms'])} ms ({short(tasks['connections'])} tasks)"
    )
    return [
        ours,
        f"`trio.move_on_at` in each task: {figure(theirs['worst_ms'])} ms"
        if theirs
        else "not measured",
    ]


def _exchange(part: dict[str, Any]) -> list[str]:
    counts = {kind: each["instructions"] for kind, each in part["results"].items()}
    ratio = {kind: f"{n / counts['plain']:.2f}x" for kind, n in counts.items()}
    names = {
        "`serve_tcp`": "serve_tcp(idle=30)",
        "parked": "serve_parked()",
        "`watch()`": "watch() and touch()",
    }
    return [
        ", ".join(f"{name} {ratio[kind]}" for name, kind in names.items()),
        f"`trio.move_on_after` per read: {ratio['move_on_after per read']}",
    ]


def _idle(part: dict[str, Any]) -> list[str]:
    each = {
        name: figure(found["burst"]) for name, found in part["results"].items() if "burst" in found
    }
    rest = "; ".join(
        f"{name} {each[name]}"
        for name in ("nginx", "uvicorn", "aiohttp", "hypercorn")
        if name in each
    )
    return [f"{each['ours-parked']} bytes", rest]


def _ping(part: dict[str, Any]) -> list[str]:
    def adds(name: str, bare: str) -> str:
        cpu = {each: part["results"][each]["cpu_us"]["median"] for each in (name, bare)}
        return figure(cpu[name] - cpu[bare])

    theirs = f"a task for each stream: {adds('own', 'stock')} us"
    if "sse-starlette" in part["results"]:
        theirs += f"; sse-starlette {adds('sse-starlette', 'starlette')} us"
    return [f"{adds('pinged', 'guarded')} us ({short(part['streams'])} streams)", theirs]


def _accuracy(part: dict[str, Any]) -> list[str]:
    reaps = [demo["reaps"] for demo in part["results"].values()]
    early, late, total = (
        sum(each[key] for each in reaps) for key in ("early", "late_raw", "observed")
    )
    return [
        f"{early} of {total:,} early, {late} late",
        "on asyncio, after a stall, closes clients that had sent something",
    ]


ROWS = {
    "per packet": ("touch", _packet),
    "per connection, memory": ("memory", _memory),
    "per tick, nothing due": ("ticks", _idle_tick),
    "per tick, all talking": ("ticks", _traffic),
    "longest pause, all due at once": ("mass", _pause),
    "an echo: instructions, compared with no timeout": ("exchanges", _exchange),
    "an idle HTTP connection, memory": ("idle", _idle),
    "a ping every 15 s into an event stream, CPU a second": ("streams", _ping),
    "closes: early, or more than a tick late": ("demos", _accuracy),
}
