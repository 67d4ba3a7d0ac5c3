"""The table of troubles: a row for each, with its words, and the function that finds
it.

The rule of this module: *trouble is what stays*. A function is told two looks, and
speaks only of what both of them show; what comes and goes is seen by glances between
them. It is pure: looks in, evidence out, with the command that mends it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..config.durations import format_duration
from .facts import Connection, Examination, Process

NEARLY = 0.8
"""The share of its descriptors from which a process is near its limit."""
ROOMY = 65536
"""Descriptors that are enough for most."""
FORGOTTEN = 5.0
"""Seconds after which a half-closed connection that was answered was forgotten."""
GIVEN_UP = 60.0
"""Seconds after which one was that was not answered: a client that only closed its half
may wait.
"""
STUCK = 10.0
"""Seconds without an acknowledgement after which a client takes nothing."""
COMPLETES = 3.0
"""Seconds in which a handshake is complete, even if a packet of it was lost once."""
MANY_HALF_OPEN = 16
"""Handshakes that are not completed for so long, from which somebody floods or is cut
off.
"""
MENDS = ("close-wait", "backlog", "outgoing")
"""The kinds that `--mend` mends, because no other tool does."""
NAT_FORGETS = 350.0
"""Seconds of silence after which a NAT or a load balancer may forget a connection (AWS:
350 s).
"""


class Seen(NamedTuple):
    """What was seen of a trouble."""

    evidence: str
    mend: str
    """One command."""
    many: int = 1
    seconds: float | None = None
    """For how long, at least, the longest; None: that is not known."""
    example: str = ""
    idents: tuple[bytes, ...] = ()
    """The connections."""


class Finding(NamedTuple):
    """A trouble that was seen."""

    kind: str
    words: str
    seen: Seen

    def record(self) -> dict[str, Any]:
        """The finding as JSON knows it."""
        evidence, mend, many, seconds, example, _ = self.seen
        return {
            "kind": self.kind,
            "words": self.words,
            "evidence": evidence,
            "count": many,
            "seconds": None if seconds is None else round(seconds, 1),
            "example": example,
            "mend": mend,
        }


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble."""

    kind: str
    words: str
    """What is wrong, for somebody who has never heard of it."""
    find: Callable[[Examination], Seen | None]


def findings(seen: Examination) -> list[Finding]:
    """What is wrong with the server that was examined, in the order of the table."""
    found = ((one.kind, one.words, one.find(seen)) for one in TROUBLES)
    return [Finding(kind, words, what) for kind, words, what in found if what is not None]


def unjudged(seen: Examination) -> list[str]:
    """What could not be judged, and why: a line for each."""
    said = []
    hidden = [one.pid for one in seen.last.processes if one.open is None]
    if hidden or not seen.last.processes:
        whose = f"process {hidden[0]}" if hidden else "the server's processes"
        said.append(f"descriptors: those of {whose} may not be seen; run as its user or as root")
    quiet = [one for one in seen.last.connections.values() if one.quiet >= _remembered(seen)]
    unknown = sum(one.keeps_alive is None and not one.loopback for one in quiet)
    if unknown:
        what = f"{unknown:,} quiet connection{'s' * (unknown > 1)}"
        said.append(f"no-keep-alive, outgoing: the options of {what} were not read")
    vague = sum(one.incoming is None for one in quiet)
    if vague:
        said.append(f"silent: who opened {vague:,} connections is not known by this look")
    if young := sum(
        _may_be_forgotten(*both) and not _forgotten(*both) for _, *both in both_of(seen)
    ):
        what = f"{young:,} half-closed connection{'s' * (young > 1)}"
        said.append(
            f"close-wait: {what} may still be answered; ask again {GIVEN_UP:.0f} s after the close"
        )
    if seen.seconds < STUCK:
        said.append(f"takes-nothing: it needs --for {STUCK:.0f}s or longer")
    if seen.seconds < COMPLETES:
        said.append(f"half-open: it needs --for {COMPLETES + 1:.0f}s or longer")
    return said


def spelled(seconds: float) -> str:
    """A length of time for people: `45 s`, `4 min`, `3 h`, `2 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def both_of(seen: Examination) -> Iterator[tuple[bytes, Connection, Connection]]:
    """The connections that both looks show: its name, as it was, and as it is."""
    for ident, before in seen.first.connections.items():
        if (now := seen.last.connections.get(ident)) is not None:
            yield ident, before, now


def _lasted(
    seen: Examination, found: Iterable[tuple[bytes, Connection, float]], what: str, mend: str
) -> Seen | None:
    """How many connections, the longest time, and an example."""
    listed = sorted(found, key=lambda one: -one[2])
    if not listed:
        return None
    _, one, seconds = listed[0]
    arrow = "<-" if one.incoming is False else "->"  # from the client to the server
    example = f"{one.remote} {arrow} {one.local}"
    if one.pid:
        names = {process.pid: process.name for process in seen.last.processes}
        example += f", held by process {one.pid} ({names.get(one.pid, '?')})"
    count = f"{len(listed):,} connection{'s' * (len(listed) > 1)}"
    idents = tuple(ident for ident, _, _ in listed)
    return Seen(f"{count} {what}", mend, len(listed), seconds, example, idents)


def _attach(seen: Examination, flags: str) -> str:
    return f"reaper attach {seen.target} {flags} --close"


def _again(seen: Examination, kind: str, *flags: str) -> str:
    """The command by which the doctor mends what it finds again."""
    return " ".join(["reaper doctor", seen.target, *flags, f"--mend {kind}"])


def _idle(seen: Examination) -> str:
    return f"--idle {format_duration(seen.idle)}"


def _share(one: Process) -> float:
    return (one.open or 0) / one.most if one.most > 0 else 0.0  # -1: it has no limit


def _descriptors(seen: Examination) -> Seen | None:
    one = max(seen.last.processes, key=_share, default=None)
    if one is None or one.open is None or _share(one) < NEARLY:
        return None
    mine = [each for each in seen.last.connections.values() if each.pid == one.pid]
    evidence = (
        f"process {one.pid} ({one.name}) has {one.open:,} of {one.most:,} descriptors in use: "
        f"{one.sockets:,} sockets ({len(mine):,} of them connections), {one.files:,} files, "
        f"{one.open - one.sockets - one.files:,} others"
    )
    before = next((each.open for each in seen.first.processes if each.pid == one.pid), None)
    if before is not None and before != one.open:
        evidence += f"; {one.open - before:+,} in {spelled(seen.seconds)}"
    example = ""
    if mine:
        hosts = Counter(each.remote.rpartition(":")[0] for each in mine)
        host, count = hosts.most_common(1)[0]
        example = f"{host} has {count:,} of the connections"
    room = max(ROOMY, 4 * one.most)
    # More than the hard limit takes CAP_SYS_RESOURCE; up to it, whoever owns the
    # process may.
    limit = f"{min(room, one.hard)}:" if one.hard > one.most else f"{room}:{room}"
    whom = shlex.join(one.command) if seen.ends else f"--pid {one.pid}"
    mend = f"prlimit --nofile={limit} {whom}"
    return Seen(evidence, mend, one.open, None, example)


def _may_be_forgotten(before: Connection, now: Connection) -> bool:
    moved = (before.received, before.acked) != (now.received, now.acked)
    return before.half_closed and not now.queued and not moved


def _forgotten(before: Connection, now: Connection) -> bool:
    patience = GIVEN_UP if now.waits_for_us else FORGOTTEN
    return _may_be_forgotten(before, now) and now.silent >= patience


def _close_wait(seen: Examination) -> Seen | None:
    found = ((ident, now, now.silent) for ident, was, now in both_of(seen) if _forgotten(was, now))
    what = "closed by the other side and not by the program"
    return _lasted(seen, found, what, _again(seen, "close-wait", "--for 5s"))


def _silent(seen: Examination) -> Seen | None:
    found = (
        (ident, now, now.quiet)
        for ident, _, now in both_of(seen)
        if now.incoming and now.quiet >= seen.idle and not now.waits_for_us and not now.half_closed
    )
    what = f"silent for longer than {format_duration(seen.idle)}"
    return _lasted(seen, found, what, _attach(seen, _idle(seen)))


def _half_open(seen: Examination) -> Seen | None:
    stuck = {who: held for who, held in seen.glances.handshakes.items() if held >= COMPLETES}
    if len(stuck) < MANY_HALF_OPEN:
        return None
    who = max(stuck, key=lambda one: stuck[one])
    count, seconds = len(stuck), stuck[who]
    inside = f"nsenter --net --target {seen.within} " if seen.within else ""
    # One question instead of five: a handshake is then given up after 3 s instead
    # of 63.
    mend = f"{inside}sysctl -w net.ipv4.tcp_synack_retries=1 net.ipv4.tcp_syncookies=1"
    what = f"{count:,} handshakes that their clients began and did not complete"
    return Seen(what, mend, count, seconds, f"from {who}")


def _takes_nothing(seen: Examination) -> Seen | None:
    found = (
        (ident, now, seen.seconds)
        for ident, before, now in both_of(seen)
        if before.queued and now.queued and before.acked == now.acked
        if now.incoming is not False and seen.seconds >= STUCK
    )
    what = "with data that the client's kernel does not acknowledge"
    return _lasted(seen, found, what, _attach(seen, "--stalled-write 1m"))


def _no_keep_alive(seen: Examination) -> Seen | None:
    found = (
        (ident, now, now.quiet)
        for ident, _, now in both_of(seen)
        if now.incoming and now.keeps_alive is False and now.quiet >= seen.idle
        if not now.loopback
    )
    what = "quiet, and nothing would tell if their clients were gone"
    return _lasted(seen, found, what, _attach(seen, "--vanished 60s"))


def _backlog(seen: Examination) -> Seen | None:
    dropped = seen.last.overflows - seen.first.overflows
    full = [one for one in seen.glances.doors if one.waiting >= one.room > 0]
    if not full or dropped <= 0:
        return None
    one = max(full, key=lambda door: door.waiting)
    evidence = (
        f"{one.waiting:,} connections waited at {one.address}, which has room for {one.room:,}; "
        f"{dropped:,} were dropped in {spelled(seen.seconds)}"
    )
    return Seen(evidence, _again(seen, "backlog"), dropped, None, one.address)


def _proxy(seen: Examination) -> Seen | None:
    return Seen(*seen.proxy) if seen.proxy else None


def _remembered(seen: Examination) -> float:
    """Silence after which the way between may have forgotten a connection, seconds."""
    return min(seen.idle, NAT_FORGETS)


def _outgoing(seen: Examination) -> Seen | None:
    found = (
        (ident, now, now.quiet)
        for ident, _, now in both_of(seen)
        if now.incoming is False and not now.loopback and now.quiet >= _remembered(seen)
        if now.keeps_alive is False and not now.half_closed
    )
    what = "that the server opened, silent for longer than NATs remember"
    mend = _again(seen, "outgoing", _idle(seen), "--for 5s")
    return _lasted(seen, found, what, mend)


TROUBLES = (
    Trouble(
        "descriptors",
        "The process has nearly used up its descriptors: soon it accepts nobody (Too many open "
        "files). The command gives it more; if clients hold them, another finding says so.",
        _descriptors,
    ),
    Trouble(
        "close-wait",
        "The other side has closed, and the program forgot to (CLOSE_WAIT). The command ends these "
        "connections; a descriptor that the program never looks at again is free only when the "
        "program is mended and started anew.",
        _close_wait,
    ),
    Trouble(
        "silent",
        "Clients are connected that say nothing: each takes a descriptor and memory.",
        _silent,
    ),
    Trouble(
        "half-open",
        "Many clients begin to connect and do not go on: a flood, or their packets are lost. The "
        "command has the kernel give them up after 3 s.",
        _half_open,
    ),
    Trouble(
        "takes-nothing",
        "Clients do not take what the server sends: they are gone, or do not read.",
        _takes_nothing,
    ),
    Trouble(
        "no-keep-alive",
        "Connections are quiet for long, and the kernel does not ask whether their clients still "
        "exist. The command has it ask, and ends those that are gone.",
        _no_keep_alive,
    ),
    Trouble(
        "backlog",
        "The server accepts too slowly: the queue of new connections is full, and some are dropped. "
        "The command gives it more room now; give listen() a larger backlog for good.",
        _backlog,
    ),
    Trouble(
        "proxy",
        "The keep-alive timeout does not suit the proxy or client in front: it sends requests into a "
        "close, and they are lost (502, Server disconnected). Start the server anew with a timeout "
        "that suits.",
        _proxy,
    ),
    Trouble(
        "outgoing",
        "Connections that the server opened are silent for so long that a NAT may have forgotten "
        "them: the next request on them hangs. The command sets keep-alives on these; have their "
        "pool set them, or recycle, for good.",
        _outgoing,
    ),
)
"""Every kind of trouble, what costs most first."""
