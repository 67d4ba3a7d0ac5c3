"""What is done to a server while it has clients: signals, restarts, stalls, kills,
crowds, attack tools.

Each function takes as long as its trouble does, adds what it sees to the outcome, and
is named in trials.toml.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil

from loadgen.clients import ATTACKS, Account, Speech, keep_asking
from loadgen.drive.protocols import Paths
from loadgen.units import BadArgument, parse_duration, parse_target
from loadgen.vanish import vanish

from ..groups import Group, memory_group
from ..guests import conversations
from ..guests.__main__ import measured
from ..guests.columns import COLUMNS
from ..guests.named import faults
from ..serving import ROOT, Server, free_port, load, serving, tree
from ..stops import trial as stops
from ..stops.words import LAST
from ..streams.proxies import command_of
from ..tools import Missing, get, metrics, nginx, tool
from . import fuzz

SIEGE = ["mute", *(kind for kind in ATTACKS if kind not in ("slow_message", "listener"))]
"""What attackers play in turn; those of WebSockets need a server that has them."""


@dataclass
class Outcome:
    """What a trial saw. Trouble adds to `figures` and `failures`; `excused`: ports of
    clients that may be lost.
    """

    account: Account = field(default_factory=Account)
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    excused: set[int] = field(default_factory=set)

    @property
    def wrong(self) -> list[str]:
        """Why it did not pass."""
        return [f"{count} x {why}" for why, count in self.account.losses.items()] + self.failures

    @property
    def seen(self) -> dict[str, Any]:
        """The figures, those of the clients last."""
        account, found = self.account, dict(self.figures)
        found |= {"asked": account.asked, "lost": len(account.lost)} if account.asked else {}
        found |= {"not judged, for the client was late": account.late} if account.late else {}
        return found | ({"slowest answer, s": round(account.worst, 2)} if account.worst else {})

    def count(self, name: str, by: float = 1) -> None:
        """Add to a figure."""
        self.figures[name] = self.figures.get(name, 0) + by


@dataclass
class Round:
    """What trouble is given: the server that it is made for, and where what it sees
    goes.
    """

    server: Server
    command: list[str]
    folder: Path
    until: float
    outcome: Outcome
    group: Group | None = None

    @property
    def left(self) -> float:
        """Seconds of the trial's time that are left."""
        return self.until - time.monotonic()


async def nothing(given: Round, seconds: float) -> None:
    """What the clients do is trouble enough."""
    await asyncio.sleep(seconds)


async def signals(given: Round) -> None:
    """Send a signal to the whole process group, another one each round, and others
    after it.
    """
    first = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[given.outcome.figures["rounds"] % 3]
    await asyncio.sleep(1.0)
    for number in (first, signal.SIGHUP, signal.SIGTERM):
        os.killpg(given.server.pid, number)
        await asyncio.sleep(0.05)


async def restarts(given: Round) -> Callable[[], None]:
    """Let one server after another take the port over; end the last when all clients
    have left.
    """
    running, count = given.server, 0

    def end() -> None:
        running.stop()
        running.end()

    try:
        while count == 0 or given.left > 0:
            await asyncio.sleep(0.5)
            command = [*given.command, "--share-port", "--port", str(given.server.port)]
            command[command.index("--workers") + 1] = str(1 + count % 3)
            before, running = running, Server(command, given.folder / f"server-{count % 2}.log")
            await asyncio.to_thread(running.wait_until_it_listens)
            before.stop()
            await asyncio.to_thread(before.end)
            count += 1
            given.outcome.count("restarts")
        await asyncio.sleep(0.5)
    except BaseException:
        end()
        raise
    return end


async def reloads(given: Round) -> None:
    """SIGHUP to the whole group, again and again, with another configuration."""
    while "reloads" not in given.outcome.figures or given.left > 0:
        text = f'[timeouts]\nkeep_alive = "{random.randint(30, 90)}s"\n'
        (given.folder / "reaper.toml").write_text(text)
        os.killpg(given.server.pid, signal.SIGHUP)
        given.outcome.count("reloads")
        await asyncio.sleep(0.5)


async def stopped(given: Round, before: float, seconds: float, after: float) -> None:
    """All processes of the server stopped for so many *seconds*."""
    await asyncio.sleep(before)
    os.killpg(given.server.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.killpg(given.server.pid, signal.SIGCONT)
    await asyncio.sleep(after)


async def killed(given: Round, protocol: str) -> None:
    """kill -9 of one worker: those that it had may be lost, no other, and new ones are
    served.
    """
    await asyncio.sleep(1.0)
    victim = random.choice(psutil.Process(given.server.pid).children())
    given.outcome.excused = {
        kept.raddr.port for kept in victim.net_connections("tcp") if kept.raddr
    }
    victim.kill()
    given.outcome.count("killed")
    await come_later(given, 1.5, protocol)


async def crowded(given: Round, count: int, protocol: str) -> None:
    """More clients than descriptors; when they leave, those that come are served."""
    await asyncio.sleep(0.5)
    pairs = []
    for _ in range(count):
        with suppress(OSError):
            pairs.append(await asyncio.open_connection(*given.server.address))
    await asyncio.sleep(2.0)
    for _, writer in pairs:
        writer.transport.abort()
    await asyncio.sleep(1.0)
    await come_later(given, 0.5, protocol)


async def come_later(given: Round, seconds: float, protocol: str) -> None:
    """A healthy client after the trouble."""
    until = time.monotonic() + seconds
    account = given.outcome.account
    await keep_asking(
        given.server.address, lambda: time.monotonic() > until, account, 0.02, Speech(protocol)
    )


async def scrapes(given: Round, count: int, workers: int) -> None:
    """So many scrapes in one instant: each tells of every worker."""
    found = await asyncio.gather(
        *(asyncio.to_thread(metrics, given.server.address) for _ in range(count))
    )
    given.outcome.account.asked += count
    told = [sum(name.startswith("http_requests_total{") for name in each) for each in found]
    if missing := sum(each < workers for each in told):
        given.outcome.failures.append(f"{missing} scrapes lacked a worker")


async def vanished(given: Round, gone: float) -> None:
    """Clients whose machine is gone, without a FIN or a reset: each is closed in time,
    and none too early.
    """
    target = parse_target(f"127.0.0.1:{given.server.port}")
    speech = Speech(paths=Paths("/", "/upload", "", "/sleep?s=60"))
    try:
        found = await asyncio.to_thread(vanish, target, speech, 3 * gone, 5)
    except BadArgument as error:
        given.outcome.figures["NOT RUN"] = str(error)  # no root, no namespaces
        return
    # The last sign may be older than the link's end by the quarter of the limit after
    # which one is asked for; half a second of tick, and what looking takes.
    least, most = 0.75 * gone - 0.2, 1.25 * gone + 1.5
    kept = [(each.name, ended) for each in found for ended in each.seconds]
    given.outcome.count("vanished", len(kept))
    wrong = [
        f"{name}: {ended}" for name, ended in kept if ended is None or not least <= ended <= most
    ]
    given.outcome.failures += wrong if kept else ["no client vanished"]


async def besieged(given: Round) -> Callable[[], None]:
    """Attackers of every kind; when they have left, the server holds none."""
    most, until = 0, time.monotonic() + max(min(given.left, 300.0), 10.0)
    while time.monotonic() < until:
        await asyncio.sleep(1.0)
        most = max(most, await asyncio.to_thread(given.server.connections))
    given.outcome.figures |= {"kinds": len(SIEGE), "most connections held at once": most}

    def left() -> None:
        patience = (
            time.monotonic() + 60.0
        )  # longer than any limit, and than reading what kernels hold (tiny_chunks)
        while (still := given.server.connections()) and time.monotonic() < patience:
            time.sleep(0.5)
        if still:
            given.outcome.failures.append(f"{still} connections are held a minute after the attack")

    return left


async def fuzzed(given: Round) -> None:
    """Malformed requests, odd splits and rude goodbyes: the server lives on, leaks
    nothing and fails at nothing.
    """
    address, seed = given.server.address, fuzz.SEED + given.outcome.figures["rounds"]
    done = await asyncio.to_thread(fuzz.run, address, max(min(given.left, 30.0), 3.0), seed)
    for name, value in zip(("cases", "answered"), done, strict=True):
        given.outcome.count(name, value)
    if get(address, "/")[0] != 200:
        given.outcome.failures.append("the server does not answer any more")
    for _ in range(100):
        after = metrics(address)
        # The connection that asks is one of those open.
        leaked = after["http_connections_opened_total"] - after["http_connections_closed_total"] - 1
        if not leaked:
            break
        await asyncio.sleep(0.05)
    wrong = {"connections leaked": leaked, "failures": after["http_failures_total"]}
    wrong["leases beyond 2"] = max(after["reaper_leases"] - 2, 0)
    given.outcome.failures += [
        f"{count:.0f} {name}, seed {seed}" for name, count in wrong.items() if count
    ]


# ---- a crowd in a control group

CROWDS = 4
"""Processes of clients; each has an address of its own."""
ASKS = 20
"""Newcomers that ask when the crowd is there."""


async def confined(given: Round, count: int, beside: str = "", memory: int = 0) -> None:
    """*count* idle clients come to the server, which is in a memory control group, and
    newcomers ask: nothing is killed, and they are answered.

    Args:
        beside: The command of a server that is not guarded, which has the same in
            another group of *memory* bytes: it is killed, or the trial has shown
            nothing.
    """
    figures, failures = given.outcome.figures, given.outcome.failures
    assert given.group is not None
    found = await asyncio.to_thread(crowd, given.server, given.group, count)
    figures |= {f"guarded: {name}": value for name, value in found.items()}
    if found["killed"]:
        failures.append(f"the guarded server was killed {found['killed']} times")
    if found["newcomers answered 200"] + found["newcomers answered 503"] < ASKS:
        failures.append("newcomers were not answered")
    if not found["newcomers answered 200"] and not await_room(given.server):
        failures.append("newcomers were refused for good")
    if beside:
        port = free_port()
        command = [sys.executable, "-m", *beside.format(port=port).split()]
        with memory_group(memory) as group:
            log = given.folder / "stock.log"
            with serving(group.joined(command), log, port=port, session=True) as stock:
                found = await asyncio.to_thread(crowd, stock, group, count)
        figures |= {f"stock: {name}": value for name, value in found.items()}
        if not found["killed"]:
            failures.append("the server without a guard was not killed: nothing was shown")


def await_room(server: Server, patience: float = 30.0) -> bool:
    """Whether a newcomer is served before *patience* seconds have gone."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with suppress(OSError, http.client.HTTPException):
            if get(server.address, "/")[0] == HTTPStatus.OK:
                return True
        time.sleep(0.2)
    return False


def crowd(server: Server, group: Group, count: int) -> dict[str, int]:
    """What *count* idle clients of *server*, which is in *group*, and then some
    newcomers, see.
    """
    command = [sys.executable, "-m", "scripts.campaign.crowd", server.target, str(count // CROWDS)]
    comers = [
        subprocess.Popen(
            [*command, f"127.0.1.{number + 1}"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(CROWDS)
    ]
    heard, fresh, kept = Counter[str](), Counter[str](), 0
    try:
        for each in comers:
            assert each.stdout is not None
            heard.update(json.loads(each.stdout.readline()))
        for _ in range(ASKS):
            said = "lost"
            with suppress(OSError, http.client.HTTPException):
                said = str(get(server.address, "/")[0])
            fresh[said] += 1
            time.sleep(0.1)
    finally:
        for each in comers:
            kept += int(each.communicate("\n")[0] or 0)
    return {
        "killed": group.kills(),
        "most memory, MiB": group.peak() >> 20,
        "came": heard["200"],
        "refused": heard["503"],
        "lost as they came": heard.total() - heard["200"] - heard["503"],
        "open still": kept,
        "newcomers answered 200": fresh["200"],
        "newcomers answered 503": fresh["503"],
    }


async def told_to_stop(given: Round, streams: int, sockets: int, answers: int) -> None:
    """The server is told to stop while streams, WebSockets and answers are open, by
    SIGTERM and by Ctrl-C in turn: each is told and ends properly, and what is no stream
    arrives whole.
    """
    how = ("Ctrl-C", "SIGTERM")[given.outcome.figures["rounds"] % 2]
    seen = await stops.stopped(
        given.server, how, streams=streams, sockets=sockets, answers=answers, patience=60.0
    )
    counts = {
        "streams told": (len(seen.streams), sum(LAST in each.data for each in seen.streams)),
        "streams ended properly": (len(seen.streams), sum(each.whole for each in seen.streams)),
        "WebSockets closed with 1012": (
            len(seen.sockets),
            sum(each.code == stops.RESTART for each in seen.sockets),
        ),
        "answers whole": (len(seen.answers), sum(each.whole for each in seen.answers)),
        "lifespans ended": (1, int(seen.lifespan)),
        "processes ended": (1, int(seen.gone is not None)),
    }
    for name, (wanted, found) in counts.items():
        given.outcome.count(name, found)
        if found != wanted:
            given.outcome.failures.append(f"{how}: {found} of {wanted} {name}")


# ---- streams

FULL = 60.0
"""Seconds from which a trial of streams has them all."""
FEWER = 50
"""In a shorter one, one of so many comes."""
BRIEF = 4.5
"""Seconds that a stream is quiet in a shorter one."""
PING_EVERY = 1.0
"""Seconds; as trials.toml has it."""
A_PROXY = 5_000
"""Streams that one process of a proxy has: two descriptors each."""


class Kept:
    """For how long the machine kept servers from running: the most of any stretch.

    Args:
        servers: Each with its processes.
        stretch: Seconds.
    Attributes:
        most: Seconds, for each server.
        enough: Seconds from which on a server may have been too late for that alone.
    """

    def __init__(self, servers: list[Server], stretch: float) -> None:
        self._stretch = stretch
        self.enough: float = stretch / 2
        self._seen: dict[Server, deque[tuple[float, float]]] = {each: deque() for each in servers}
        self.most: dict[Server, float] = dict.fromkeys(servers, 0.0)

    async def watch(self) -> None:
        """Look at them, until this is cancelled."""
        while True:
            for server in self._seen:
                waited = max(stops.kept_waiting(pid) for pid in tree(server.pid))
                self.note(server, time.monotonic(), waited)
            await asyncio.sleep(self._stretch / 8)

    def note(self, server: Server, now: float, waited: float) -> None:
        """*server* has waited for so many seconds in all."""
        seen = self._seen[server]
        seen.append((now, waited))
        while seen[0][0] < now - self._stretch:
            seen.popleft()
        self.most[server] = max(self.most[server], waited - seen[0][1])


async def quiet(
    given: Round, streams: dict[str, int], read: str, seconds: float, beside: str
) -> None:
    """Streams that are quiet for *seconds*, behind proxies with the read timeout
    *read*: of the server none is cut, and of the one that *beside* starts, stock, all
    are. A proxy is not judged if the machine kept it, or the server, from running for
    half of what lies between a ping and that timeout.

    Raises Missing: none could be judged.
    """
    if given.left < FULL:
        streams, seconds = {name: count // FEWER for name, count in streams.items()}, BRIEF
    port = free_port()
    command = [sys.executable, "-m", *beside.format(port=port).split()]
    failures = given.outcome.failures
    with ExitStack() as stack:
        stock = stack.enter_context(serving(command, given.folder / "stock.log", port=port))
        lanes = [
            (name, server, count, given.folder / f"{name}-{server.port}-{first}")
            for name, wanted in streams.items()
            for first in range(0, wanted, A_PROXY)
            for count in [min(wanted - first, A_PROXY)]
            for server in (given.server, stock)
        ]
        fronts = []
        for name, server, count, folder in lanes:
            words = command_of(name, folder, at := free_port(), server.port, read, most=count)
            fronts.append(stack.enter_context(serving(words, folder / "log", port=at)))
        kept = Kept([given.server, *fronts], parse_duration(read) - PING_EVERY)
        watching = asyncio.create_task(kept.watch())
        found = await asyncio.gather(
            *(
                _heard(front, count, seconds)
                for front, (_, _, count, _) in zip(fronts, lanes, strict=True)
            )
        )
        watching.cancel()
    for front, (name, server, count, _), heard in zip(fronts, lanes, found, strict=True):
        guarded = server is given.server
        who, which = ("guarded", "whole") if guarded else ("stock", "cut")
        waited = max(kept.most[front], kept.most[given.server]) if guarded else 0.0
        if heard["began"] == count > heard[which] and waited > kept.enough:
            given.outcome.count("not judged, for the machine kept a proxy waiting", count)
            continue
        given.outcome.count(f"{name}, {who}: {which}", heard[which])
        if guarded:
            given.outcome.count(f"{name}: pings", heard["pings"])
        if heard[which] != count:
            failures.append(
                f"{name}, {who}: {heard[which]} of {count} {which}: {heard}, kept for {waited:.1f} s"
            )
    if not any("guarded" in name for name in given.outcome.figures):
        raise Missing("the machine kept every proxy waiting")


async def _heard(front: Server, count: int, seconds: float) -> dict[str, int]:
    """What *count* readers of *front* heard, whose streams are quiet for *seconds*."""
    readers = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "scripts.streams.readers",
            front.target,
            str(count),
            f"{seconds:g}",
        ),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    said, _ = await readers.communicate()
    return dict(json.loads(said))


BINS = 5
"""Parts of the window whose ends are counted."""
OFF = 0.5
"""Seconds by which a stream may end before or after its turn."""


async def spread(given: Round, streams: int, window: float) -> None:
    """SIGTERM with that many *streams* open, at as many guests as there is time for:
    their ends are even over *window* seconds. A guest whose ends are off by no more
    than the machine kept it waiting is tried again.

    Raises Missing: no guest could be judged.
    """
    if given.left < FULL:
        streams, window = streams // 5, 3.0
    guests = random.sample(list(stops.COMMANDS), len(stops.COMMANDS))
    judged, failures = set(), given.outcome.failures
    for name in guests:
        seen = await asyncio.to_thread(_spread, given.folder, name, streams, window)
        ended = [each.ended for each in seen.streams if each.whole and each.ended is not None]
        wrong = off(ended, window)
        given.outcome.count("stops")
        given.outcome.figures[f"ends of {name}"] = said = (
            f"{' '.join(map(str, histogram(ended, window)))}, off by {wrong:.2f} s"
        )
        if len(ended) < streams:
            failures.append(f"{name}: of {streams} {len(ended)} whole: {said}")
        elif wrong <= OFF:
            judged.add(name)
        elif wrong > OFF + seen.kept:
            failures.append(f"{name}: not even: {said}; kept waiting for {seen.kept:.2f} s")
        else:
            given.outcome.count("not judged: the machine kept them waiting")
            if guests.count(name) < TRIES:
                guests.append(name)
        if given.left <= 0:
            break
    if not judged and not failures:
        raise Missing("the machine kept every guest waiting")


TRIES = 3
"""How often a guest is tried that the machine kept waiting."""


def _spread(folder: Path, name: str, streams: int, window: float) -> stops.Seen:
    settings = {
        "REAPER_TICK": "250ms",
        "REAPER_TIMEOUTS_DRAIN_WINDOW": f"{window:g}s",
        "REAPER_TIMEOUTS_DRAIN_STREAMS": "2s",
        "REAPER_TIMEOUTS_DRAIN": f"{window + 10:g}s",
    }
    where = folder / name.replace(" ", "-")
    return stops.tried(
        name, where, settings=settings, streams=streams, answers=0, patience=window + 30
    )


def histogram(ends: list[float], window: float) -> list[int]:
    """How many of *ends*, instants, lie in each part of the *window* that begins with
    the first.
    """
    counts = [0] * BINS
    for each in ends:
        counts[min(int((each - min(ends)) / window * BINS), BINS - 1)] += 1
    return counts


def off(ends: list[float], window: float) -> float:
    """The most seconds by which one of *ends*, instants, is later than another, each
    compared with its turn if all were even over *window*.
    """
    late = [each - number / len(ends) * window for number, each in enumerate(sorted(ends))]
    return max(late, default=0.0) - min(late, default=0.0)


# ---- lifetimes

EACH = 30
"""Connections at a time per second of the trial, 2,000 to 18,000 of them: an hour's
campaign plays a million.
"""
GROWTH = {"memory, MB": 4.2, "descriptors": 0.0, "leases": 0.0}
"""By how much one worker may grow after its first rounds: what the allocator keeps
differs from round to round.
"""


async def lifetimes(given: Round, protocol: str, fewer: int = 1) -> None:
    """The load generator again and again, which judges every close; after each time and
    the same quiet, nothing may have grown. *fewer*: a saturated worker is late, and
    that is no growth.
    """
    figures, failures = given.outcome.figures, given.outcome.failures
    connections = round(min(max(EACH * given.left, 2_000), 18_000)) // fewer
    watched: dict[str, list[float]] = {name: [] for name in GROWTH}
    doubtful = count = 0
    while count < 3 or given.left > 0:
        count += 1
        report = await asyncio.to_thread(generated, given, protocol, connections)
        given.outcome.count("lifetimes", report["connections"]["established"])
        for name in ("observed", "early", "late", "missed", "false"):
            given.outcome.count(name, report["reaps"][name])
        if report["verdict"] == "fail":
            failures.append(f"time {count}: {'; '.join(report['reasons'])}")
        # The generator was too late, on a machine that does other things.
        doubtful += report["verdict"] == "inconclusive"
        await asyncio.sleep(4.0)  # longer than any timeout: every connection has ended
        worker = psutil.Process(given.server.pid).children()[0]
        watched["memory, MB"].append(worker.memory_info().rss / 1e6)
        watched["descriptors"].append(worker.num_fds())
        if protocol == "http":
            watched["leases"].append(metrics(given.server.address)["reaper_leases"])
    figures |= {"times": count, "not judged": doubtful}
    if 2 * doubtful > count:
        failures.append(
            f"{doubtful} of {count} times could not be judged: {'; '.join(report['reasons'])}"
        )
    for name, values in watched.items():
        if values:
            began, ended = statistics.median(values[1:3]), statistics.median(values[-3:])
            figures[f"{name}, first and last"] = f"{began:.1f}, {ended:.1f}"
            if ended > began + GROWTH[name]:
                failures.append(f"{name} grew from {began:.1f} to {ended:.1f} in {count} times")


def generated(given: Round, protocol: str, connections: int) -> dict[str, Any]:
    """What the load generator reports. RuntimeError: it does not."""
    path = given.folder / "report.json"
    flags = f"--protocol {protocol} --connections {connections} --quiet "
    flags += "--mix silent=40,chatty=20,leave=30,mute=10 "
    flags += "--timeout 2s --tick 500ms --duration 6s --connect-rate 2000 "
    command = load(given.server.target, flags, "--report", str(path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"the load generator ended with status {done.returncode}: {done.stderr[-300:]}"
        )
    return dict(json.loads(path.read_text()))


# ---- tools of others

ATTACKERS, FEW = 1000, 5
"""Clients of slowhttptest; those of its own probe, and the healthy one."""


async def slow(
    given: Round, flags: str, path: str, reason: str, timeout: float, attackers: int = ATTACKERS
) -> None:
    """slowhttptest. *The kernel counts*: from when the last of them has come it may
    hold them for the *timeout*, a tick, what the loop was stalled for, and as long as a
    look here was late.

    What slowhttptest says of them is of no use: its slow reader notices a reset only
    when it has read all.
    """
    url = f"http://{given.server.target}{path}"
    command = [
        tool("slowhttptest"),
        *flags.split(),
        "-c",
        str(attackers),
        "-r",
        "500",
        "-l",
        "20",
        "-u",
        url,
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ended = asyncio.create_task(process.wait())
    began = looked = risen = time.monotonic()
    peak, late, count, gone = 0, 0.0, 0, None
    while not ended.done() or (count > FEW and looked < began + 3 * timeout + 60):
        await asyncio.sleep(0.2)
        before, looked = looked, time.monotonic()
        late = max(late, looked - before - 0.2)
        count = await asyncio.to_thread(given.server.connections)
        if count > peak + FEW:
            peak, risen, gone = count, looked, None
        elif count <= FEW and gone is None:
            gone = looked
    spent = gone and round(gone - risen, 2)
    after = metrics(given.server.address)
    allowed = timeout + 1.0 + after["reaper_loop_lag_max_seconds"] + late + RESOLUTION
    closed = after.get(f'reaper_reaped_total{{reason="{reason}"}}', 0)
    seen = {
        "most at once": peak,
        f"closed by {reason}": int(closed),
        "held, s": spent,
        "allowed, s": round(allowed, 2),
    }
    given.outcome.figures |= seen
    if spent is None or spent > allowed or closed < attackers:
        given.outcome.failures.append(f"of {attackers}: {seen}")


RESOLUTION = 1.0
"""Seconds: slowhttptest opens in batches."""

PROXY = """
    log_format status '$status $request_method';
    upstream app {{ server {address}; keepalive 64; keepalive_timeout {idle}ms;
        keepalive_requests 1000000; }}
    server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
        access_log {folder}/access.log status;
        proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
"""


def proxy(given: Round, idle: float, port: int) -> AbstractContextManager[Server]:
    """nginx on *port* in front of the server, which closes its side of an idle
    connection after *idle* seconds.
    """
    http = PROXY.format(
        folder=given.folder, address=given.server.target, idle=round(1000 * idle), port=port
    )
    return serving(nginx(given.folder, http), given.folder / "nginx.log", port=port)


async def proxied(given: Round, idles: list[float], bursts: int = 8) -> None:
    """wrk through nginx in bursts that are as far apart as the idle timeouts. *nginx
    counts*: a 502 in its log is a request that a close has cost. Where the server
    closes first only GETs come: nginx may send no POST twice.
    """
    script, log = given.folder / "post.lua", given.folder / "access.log"
    script.write_text('wrk.method = "POST"\nwrk.body = "hello"\n')
    for idle in idles:
        for path, more in (("/", []), *((("/upload", ["-s", str(script)]),) if idle < 1 else ())):
            log.unlink(missing_ok=True)
            with proxy(given, idle, port := free_port()):
                for _ in range(bursts):
                    command = [
                        tool("wrk"),
                        "-t1",
                        "-c50",
                        "-d1s",
                        *more,
                        f"http://127.0.0.1:{port}{path}",
                    ]
                    await asyncio.to_thread(
                        subprocess.run, command, stdout=subprocess.DEVNULL, check=True
                    )
                    await asyncio.sleep(random.uniform(0.9, 1.2))
            statuses = Counter(line.split()[0] for line in log.read_text().splitlines())
            answered = statuses.total() - statuses.pop(
                "499", 0
            )  # wrk hangs up on what is in flight at its end
            given.outcome.count("answered", answered)
            if not answered or set(statuses) - {"200"}:
                given.outcome.failures.append(
                    f"nginx keeps for {idle:g} s, {path}: {dict(statuses)}"
                )


# ---- guests


LEAST = 60.0
"""Seconds that a visit to one guest takes."""


def _has_time(given: Round) -> None:
    if given.left < LEAST:
        raise Missing(f"{given.left:.0f} s are too short for one guest: take more --minutes")


async def visited(given: Round) -> None:
    """Each kind of client at as many guests as there is time for.

    Raises Missing: there is not the time for one.
    """
    _has_time(given)
    for column in random.sample(list(COLUMNS.values()), len(COLUMNS)):
        cells, holds = await asyncio.to_thread(measured, column, quick=True)
        given.outcome.count("guests")
        given.outcome.count("cells", len(cells))
        given.outcome.failures += faults(column.name, cells, holds)
        if given.left <= 0:
            break


async def conversed(given: Round) -> None:
    """Random conversations in HTTP/2 at as many guests as there is time for.

    Raises Missing: there is hardly time for one.
    """
    _has_time(given)
    guests = random.sample(list(conversations.H2.values()), len(conversations.H2))
    for number, column in enumerate(guests):
        first = random.randrange(1 << 30)
        until = time.monotonic() + max(0.0, given.left) / (len(guests) - number)
        seeds = range(first, first + 10_000)
        found = await asyncio.to_thread(conversations.tried, column, seeds, until)
        given.outcome.count("conversations", found.count)
        given.outcome.failures += [f"{column.name}: {each}" for each in found.wrong]
        if given.left <= 0:
            break
