"""What was seen, as the table of docs/run.md; and what a guard has made worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from .trial import Limits

LATE = 2.0
"""Seconds that a close may take on a busy machine, beyond limit and tick."""
SAME = 1.5
"""Seconds by which two measurements of the same thing may differ there."""
CLIENTS = {
    "silent": "silent",
    "dripping": "drips a head",
    "idle": "idle after an answer",
    "slow": "5 s answer",
    "pauses": "an answer that pauses",
}
ENDS = {"SIGTERM": "SIGTERM", "SIGINT": "SIGINT", "reload": "reload"}
COLUMNS = {**CLIENTS, **ENDS}
"""What was tried, by its name in the results: with clients, and at an end."""
Seen = Mapping[str, Any]


def worse(stock: Seen, guarded: Seen, limits: Limits) -> Iterator[str]:
    """In words, each thing that is worse guarded than stock, or that the guard did not
    do.
    """
    for name in ("slow", "pauses"):
        if name in stock and (was := stock[name]["is"]) == "answered" != (
            now := guarded[name]["is"]
        ):
            yield f"{COLUMNS[name]}: {was}, guarded {now}"
    for name in ("SIGTERM", "SIGINT"):
        was, now = stock[name], guarded[name]
        if was["request"] == "answered" != now["request"]:
            yield f"{name}: the request in flight was answered, guarded it was {now['request']}"
        if was["s"] is not None and (now["s"] is None or now["s"] > was["s"] + LATE):
            yield f"{name}: ended after {was['s']} s, guarded {now['s']}"
        if None is not was["status"] != now["status"] and now["s"] is not None:
            yield f"{name}: exit status {was['status']}, guarded {now['status']}"
    if "reload" in stock:
        was, now = stock["reload"], guarded["reload"]
        if was["request"] == "answered" != now["request"]:
            yield f"reload: the request in flight was answered, guarded it was {now['request']}"
        if was["serves"] > now["serves"]:
            yield "reload: it serves no more"
    yield from not_held(guarded, limits)


def not_held(guarded: Seen, limits: Limits) -> Iterator[str]:
    """In words, each limit that the guard says and did not keep."""
    inside = guarded["how"] == "inside"
    hidden = any("first_byte cannot hold" in line for line in guarded["said"])
    sockets = inside and not any(
        f"keep_alive {limits.keep_alive:g}s" in line for line in guarded["said"]
    )
    idle = limits.keep_alive if inside and not sockets else limits.idle
    first = limits.first_byte if not sockets else limits.idle
    most = {
        "silent": None if hidden or sockets else first,
        "idle": idle,
        "dripping": limits.keep_alive + limits.headers if inside and not sockets else None,
    }
    for name, limit in most.items():
        seen = guarded[name]
        if limit is not None and (
            seen["is"] == "open" or seen.get("s", 0.0) > limit + limits.tick + LATE
        ):
            yield f"{COLUMNS[name]}: {closed(seen)}, its limit is {limit:g} s"
    after = guarded.get("reload", {}).get("silent")
    if after and most["silent"] and after.get("s", 99.0) > most["silent"] + limits.tick + LATE:
        yield f"after the reload a silent client is {closed(after)}"


def closed(seen: Seen) -> str:
    """A close in words."""
    return f"{seen['s']:.1f} s" if seen["is"] == "closed" else str(seen["is"])


def answered(seen: Seen) -> str:
    """An answer in words."""
    return f"{seen['is']} at {seen['s']:.1f} s" if seen["is"] == "cut" else str(seen["is"])


def stop(seen: Seen) -> str:
    """An end in words."""
    request = f"{seen['request']}, " if seen["request"] else ""
    return request + ("does not end" if seen["s"] is None else f"ends in {seen['s']:.1f} s")


def reload(seen: Seen) -> str:
    """A reload in words; *seen* of a guarded program says when a silent client was
    closed after.
    """
    request = f"{seen['request']}, " if seen["request"] else ""
    return request + ("serves" if seen["serves"] else "serves no more")


WORDS = {
    **dict.fromkeys(["silent", "dripping", "idle"], closed),
    **dict.fromkeys(["slow", "pauses"], answered),
    **dict.fromkeys(["SIGTERM", "SIGINT"], stop),
    "reload": reload,
}


def alike(name: str, stock: Seen, guarded: Seen) -> bool:
    """Whether both were seen to do the same, as well as a busy machine can tell."""
    rest = [{k: v for k, v in each.items() if k not in ("s", "bytes")} for each in (stock, guarded)]
    if name == "reload":
        return reload(stock) == reload(guarded)
    one, two = stock.get("s"), guarded.get("s")
    near = one == two or (None not in (one, two) and abs(one - two) <= SAME)  # type: ignore[operator]
    return rest[0] == rest[1] and near


def cell(name: str, found: Mapping[str, Any]) -> str:
    """A cell: stock and guarded, or once what both do."""
    stock, guarded = found["stock"].get(name), found["guarded"].get(name)
    if stock is None or guarded is None:
        return "-"
    word = WORDS[name]
    if alike(name, stock, guarded):
        return word(guarded)
    return f"{word(stock)} → {word(guarded)}"


def _rows(
    tried: Mapping[str, Any], columns: Mapping[str, str], *, how: bool = False
) -> Iterator[str]:
    """The table of *columns*; *how*: with how each program is guarded."""
    heads = ["program", *(["guarded from"] if how else []), *columns.values()]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name, found in tried.items():
        first = [f"{name} {found['version']}", *([found["guarded"]["how"]] if how else [])]
        yield f"| {' | '.join([*first, *(cell(each, found) for each in columns)])} |"


def markdown(results: Mapping[str, Any]) -> str:
    """The two tables of all programs that were tried, and a line for each that was
    not.
    """
    tried = {name: found for name, found in results.items() if "stock" in found}
    lines = ["With clients:", "", *_rows(tried, CLIENTS, how=True)]
    lines += ["", "At a stop and a reload:", "", *_rows(tried, ENDS)]
    days = sorted({found["date"][:10] for found in results.values()})
    loads = [found["load"] for found in tried.values()]
    when = " to ".join(dict.fromkeys([days[0], days[-1]]))
    busy = f"a load of {min(loads):.0f} to {max(loads):.0f}"
    cores = max(found["cpus"] for found in tried.values())
    commits = Counter(found.get("commit", "that was not noted") for found in tried.values())
    tree = ", ".join(f"{many} of commit {which}" for which, many in commits.most_common())
    lines += ["", f"{len(tried)} programs ({tree}), {when}, beside {busy} on {cores} cores."]
    if wrong := [f"{name}: {each}" for name, found in tried.items() for each in found["worse"]]:
        lines += ["", "Worse than stock, or not as the limit says:", ""]
        lines += [f"- {each}" for each in wrong]
    if missing := [name for name in results if name not in tried]:
        lines += ["", "Not tried:", ""]
        lines += [f"- {name}: {results[name]['why']}" for name in missing]
    return "\n".join(lines) + "\n"
