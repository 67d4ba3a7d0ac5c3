"""The table of troubles: a row for each, with its words, the command that mends it, and the function
that finds it.

The rule of this module: *trouble is what stays*. A function is told two looks, and speaks only of what
both of them show. It is pure: looks in, evidence out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..config.durations import format_duration
from .facts import Connection, Examination

NEARLY = 0.8
"""The share of its descriptors from which a process is near its limit."""
FORGOTTEN = 5.0
"""Seconds after which a half-closed connection was forgotten."""
STUCK = 10.0
"""Seconds without an acknowledgement after which a client takes nothing."""
MANY_HALF_OPEN = 16
"""Handshakes that are not completed, at both looks, from which somebody floods or is cut off."""
NAT_FORGETS = 350.0
"""Seconds of silence after which a NAT or a load balancer may forget a connection (AWS: 350 s)."""


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble."""

    kind: str
    words: str
    """What is wrong, for somebody who has never heard of it."""
    mend: str
    """One command; `{target}`, `{idle}`, `{pid}` and `{config}` are filled in."""
    seen: Callable[[Examination], str]
    """The evidence; empty: it is not there."""


class Finding(NamedTuple):
    """A trouble that was seen."""

    kind: str
    words: str
    evidence: str
    mend: str

    def record(self) -> dict[str, Any]:
        """The finding as JSON knows it."""
        return self._asdict()


def findings(seen: Examination) -> list[Finding]:
    """What is wrong with the server that was examined, in the order of the table."""
    found: list[Finding] = []
    for trouble in TROUBLES:
        if evidence := trouble.seen(seen):
            mend = trouble.mend.format(
                target=seen.target,
                idle=format_duration(seen.idle),
                pid=_fullest(seen),
                config=seen.config,
            )
            found.append(Finding(trouble.kind, trouble.words, evidence, mend))
    return found


def _fullest(seen: Examination) -> int:
    return (
        max(seen.last.processes, key=lambda one: one.open / max(one.most, 1)).pid
        if (seen.last.processes)
        else 0
    )


def _both(seen: Examination) -> Iterator[tuple[Connection, Connection]]:
    """The connections that both looks show, as they were and as they are."""
    for ident, before in seen.first.connections.items():
        if (now := seen.last.connections.get(ident)) is not None:
            yield before, now


def _lasted(found: Iterable[tuple[Connection, float]], what: str) -> str:
    """How many connections, the longest time, and an example."""
    listed = sorted(found, key=lambda one: -one[1])
    if not listed:
        return ""
    one, seconds = listed[0]
    held = f", held by process {one.pid}" if one.pid else ""
    count = f"{len(listed):,} connection{'s' * (len(listed) > 1)}"
    return f"{count} {what}, the longest for {seconds:.0f} s: {one.remote} -> {one.local}{held}"


def _descriptors(seen: Examination) -> str:
    near = [one for one in seen.last.processes if one.most and one.open >= NEARLY * one.most]
    if not near:
        return ""
    one = max(near, key=lambda each: each.open / each.most)
    connections = sum(each.pid == one.pid for each in seen.last.connections.values())
    return (
        f"process {one.pid} ({one.name}) has {one.open:,} of {one.most:,} descriptors in use, "
        f"{connections:,} of them connections"
    )


def _close_wait(seen: Examination) -> str:
    return _lasted(
        (
            (now, now.silent)
            for before, now in _both(seen)
            if before.half_closed and now.silent >= FORGOTTEN and not now.queued
            if (before.received, before.acked) == (now.received, now.acked)
        ),
        "closed by the other side and not by the program",
    )


def _silent(seen: Examination) -> str:
    return _lasted(
        (
            (now, now.quiet)
            for _, now in _both(seen)
            if now.incoming and now.quiet >= seen.idle and not now.waits_for_us
            if not now.half_closed
        ),
        f"silent for longer than {format_duration(seen.idle)}",
    )


def _half_open(seen: Examination) -> str:
    least = min(seen.first.half_open, seen.last.half_open)
    if least < MANY_HALF_OPEN:
        return ""
    seconds = seen.last.at - seen.first.at
    return f"{least:,} handshakes or more were not completed, at both looks {seconds:.0f} s apart"


def _takes_nothing(seen: Examination) -> str:
    return _lasted(
        (
            (now, now.quiet)
            for before, now in _both(seen)
            if before.queued and now.queued and before.acked == now.acked
            if now.incoming is not False and seen.last.at - seen.first.at >= STUCK
        ),
        "with data that the client's kernel does not acknowledge",
    )


def _no_keep_alive(seen: Examination) -> str:
    return _lasted(
        (
            (now, now.quiet)
            for _, now in _both(seen)
            if now.incoming and now.keeps_alive is False and now.quiet >= seen.idle
            if not now.loopback
        ),
        "silent, and nothing would tell if their clients were gone",
    )


def _backlog(seen: Examination) -> str:
    dropped = seen.last.overflows - seen.first.overflows
    full = [one for one in (*seen.first.doors, *seen.last.doors) if one.waiting >= one.room > 0]
    if not full or not dropped:
        return ""
    return (
        f"{full[0].waiting:,} connections waited at {full[0].address}, which has room for "
        f"{full[0].room:,}; {dropped:,} were dropped meanwhile"
    )


def _proxy(seen: Examination) -> str:
    return seen.proxy_trouble


def _outgoing(seen: Examination) -> str:
    return _lasted(
        (
            (now, now.quiet)
            for _, now in _both(seen)
            if now.incoming is False and not now.loopback and now.quiet >= NAT_FORGETS
            if now.keeps_alive is False
        ),
        "that the server opened, silent for longer than NATs remember",
    )


TROUBLES = (
    Trouble(
        "descriptors",
        "The process has nearly used up its descriptors: soon it accepts nobody (Too many open "
        "files).",
        "prlimit --pid {pid} --nofile=65536:65536",
        _descriptors,
    ),
    Trouble(
        "close-wait",
        "The other side has closed, and the program forgot to (CLOSE_WAIT): each such connection "
        "keeps a descriptor for ever. The program must close what reads an end of file.",
        "reaper attach {target} --idle 1m --close --how destroy",
        _close_wait,
    ),
    Trouble(
        "silent",
        "Clients are connected that say nothing: each takes a descriptor and memory.",
        "reaper attach {target} --idle {idle} --close",
        _silent,
    ),
    Trouble(
        "half-open",
        "Many clients begin to connect and do not go on: a flood, or their packets are lost.",
        "sysctl -w net.ipv4.tcp_syncookies=1",
        _half_open,
    ),
    Trouble(
        "takes-nothing",
        "Clients do not take what the server sends: they are gone, or do not read.",
        "reaper attach {target} --stalled-write 1m --close",
        _takes_nothing,
    ),
    Trouble(
        "no-keep-alive",
        "Connections are silent for long, and the kernel does not ask whether their clients still "
        "exist.",
        "reaper attach {target} --vanished 60s --close",
        _no_keep_alive,
    ),
    Trouble(
        "backlog",
        "The server accepts too slowly: the queue of new connections is full, and some are dropped.",
        "sysctl -w net.core.somaxconn=4096",
        _backlog,
    ),
    Trouble(
        "proxy",
        "The keep-alive timeout does not suit the proxy in front: it sends requests into a close, and "
        "answers 502.",
        "reaper check {config}",
        _proxy,
    ),
    Trouble(
        "outgoing",
        "Connections that the server opened are silent for so long that a NAT may have forgotten "
        "them: the next request on them hangs. Have their pool recycle them, or set keep-alives.",
        "ss -tnpo state established",
        _outgoing,
    ),
)
"""Every kind of trouble, what costs most first."""
