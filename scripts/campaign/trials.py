"""The trials: what is done to a server, and what its clients lost by it.

One rule: *a trial repeats its round until its time is over*, at least once, and adds up what the rounds saw.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ..interop import fuzz
from ..serving import Server, example, serving
from .clients import ATTACKS, Account, Talker, ask, attack, keep_asking

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a trial saw."""

    passed: bool
    figures: dict[str, Any]
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trial:
    """One kind of trouble."""

    name: str
    claim: str
    unseen: str
    """What it cannot see."""
    share: float
    """Of the campaign's time."""
    run: Callable[[Path, float, Say], Outcome]
    """With a folder for logs, the seconds it may take, and where to report progress."""


def rounds(seconds: float, once: Callable[[int], None]) -> int:
    """Call *once* with 0, 1, 2, ... until *seconds* have passed; how often."""
    until = time.monotonic() + seconds
    count = 0
    while count == 0 or time.monotonic() < until:
        once(count)
        count += 1
    return count


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run the clients of a round."""
    asyncio.run(main)


def outcome(account: Account, **figures: Any) -> Outcome:
    """Passed if nothing was lost."""
    told = {**figures, "asked": account.asked, "lost": len(account.lost)}
    if account.late:
        told["not judged, for the client was late"] = account.late
    if account.worst:
        told["slowest answer, s"] = round(account.worst, 2)
    return Outcome(not account.lost, told, [f"{count} x {why}" for why, count in account.losses.items()])


def quick(kind: str, *flags: str, workers: int = 2) -> list[str]:
    """A server that does not wait long for clients that are idle when it stops."""
    return example(kind, "--workers", str(workers), "--drain-idle", "100ms", *flags)


# ---- signals, restarts, reloads --------------------------------------------------------------------------------------

IN_FLIGHT = 20


def group_signals(folder: Path, seconds: float, say: Say) -> Outcome:
    """Requests in flight, a signal to the whole process group, and a burst of others after it."""
    account = Account()
    first = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def once(number: int) -> None:
        with serving(quick("http"), folder / "server.log", session=True) as server:
            run(signalled(server, first[number % 3]))
        say(f"{len(account.lost)} of {account.asked} lost")

    async def signalled(server: Server, sent: signal.Signals) -> None:
        asks = [asyncio.ensure_future(ask(server.address, "/sleep?s=2s")) for _ in range(IN_FLIGHT)]
        await asyncio.sleep(1.0)
        for number in (sent, signal.SIGHUP, signal.SIGTERM):
            os.killpg(server.pid, number)
            await asyncio.sleep(0.05)
        account.asked += IN_FLIGHT
        account.lost += [problem for problem in await asyncio.gather(*asks) if problem]

    return outcome(account, rounds=rounds(seconds, once))


LOADS = 8


def rolling_restart(folder: Path, seconds: float, say: Say) -> Outcome:
    """Clients that connect all the time, while one server after the other takes the port over."""
    account = Account()
    restarts = 0

    async def load(done: asyncio.Event, address: tuple[str, int]) -> None:
        await asyncio.gather(*(keep_asking(address, done.is_set, account) for _ in range(LOADS)))

    async def replace(server: Server) -> None:
        nonlocal restarts
        done = asyncio.Event()
        loads = asyncio.ensure_future(load(done, server.address))
        until = time.monotonic() + seconds
        running = server
        flags = ("--share-port", "--port", str(server.port))
        try:
            while restarts == 0 or time.monotonic() < until:
                await asyncio.sleep(0.5)
                log = folder / f"server-{restarts % 2}.log"
                successor = Server(quick("http", *flags, workers=1 + restarts % 3), log)
                await asyncio.to_thread(successor.wait_until_it_listens)
                running.stop()
                await asyncio.to_thread(running.end)
                running = successor
                restarts += 1
                say(f"{restarts} restarts, {len(account.lost)} of {account.asked} lost")
        finally:
            done.set()
            await loads
            running.stop()
            await asyncio.to_thread(running.end)

    with serving(quick("http"), folder / "server.log") as server:
        run(replace(server))
    return outcome(account, restarts=restarts)


def reloads(folder: Path, seconds: float, say: Say) -> Outcome:
    """SIGHUP to the whole group, again and again, with clients that stay and clients that come."""
    account = Account()
    config = folder / "reaper.toml"
    config.write_text('[timeouts]\nkeep_alive = "60s"\n')
    sent = 0

    async def hang_up(server: Server) -> None:
        nonlocal sent
        done = asyncio.Event()
        talkers = [Talker(server.address, account, 0.2, http=True) for _ in range(40)]
        clients = [keep_asking(server.address, done.is_set, account, 0.02) for _ in range(4)]
        load = asyncio.gather(*clients, *(talker.talk(done.is_set) for talker in talkers))
        until = time.monotonic() + seconds
        while sent == 0 or time.monotonic() < until:
            config.write_text(f'[timeouts]\nkeep_alive = "{random.randint(30, 90)}s"\n')
            os.killpg(server.pid, signal.SIGHUP)
            sent += 1
            say(f"{sent} reloads, {len(account.lost)} of {account.asked} lost")
            await asyncio.sleep(0.5)
        done.set()
        await load

    command = quick("http", "--config", str(config), "--max-requests", "1000000")
    with serving(command, folder / "server.log", session=True) as server:
        run(hang_up(server))
    return outcome(account, reloads=sent)


# ---- workers stopped and killed --------------------------------------------------------------------------------------


def pauses(folder: Path, seconds: float, say: Say) -> Outcome:
    """SIGSTOP for more than three timeouts, with clients that go on talking, then SIGCONT."""
    account = Account()

    async def pause(server: Server) -> None:
        done = asyncio.Event()
        talkers = [Talker(server.address, account, 0.4) for _ in range(200)]
        load = asyncio.gather(*(talker.talk(done.is_set) for talker in talkers))
        await asyncio.sleep(1.0)
        os.killpg(server.pid, signal.SIGSTOP)
        await asyncio.sleep(3.5)
        os.killpg(server.pid, signal.SIGCONT)
        await asyncio.sleep(1.5)
        done.set()
        await load

    def once(_: int) -> None:
        with serving(quick("echo", "--idle", "1s", "--tick", "250ms"), folder / "server.log", session=True) as server:
            run(pause(server))
        say(f"{len(account.lost)} of {account.asked} lost")

    return outcome(account, pauses=rounds(seconds, once))


def killed_workers(folder: Path, seconds: float, say: Say) -> Outcome:
    """kill -9 of one worker: its own connections end, no other does, and new ones are served."""
    others, own = Account(), 0
    killed = 0

    async def kill(server: Server) -> None:
        nonlocal killed, own
        done = asyncio.Event()
        talkers = [Talker(server.address, Account(), 0.2) for _ in range(60)]
        load = asyncio.gather(*(talker.talk(done.is_set) for talker in talkers))
        await asyncio.sleep(1.0)
        victim = random.choice(psutil.Process(server.pid).children())
        ports = {kept.raddr.port for kept in victim.net_connections("tcp") if kept.raddr}
        victim.kill()
        killed += 1
        coming = Account()
        until = time.monotonic() + 1.5
        await keep_asking_echo(server, lambda: time.monotonic() > until, coming)
        done.set()
        await load
        own += sum(bool(talker.lost) for talker in talkers if talker.port in ports)
        others.asked += sum(talker.port not in ports for talker in talkers) + coming.asked
        others.lost += [talker.lost for talker in talkers if talker.lost and talker.port not in ports] + coming.lost

    def once(_: int) -> None:
        with serving(quick("echo", workers=3), folder / "server.log") as server:
            run(kill(server))
        say(f"{killed} killed, {len(others.lost)} of {others.asked} others lost")

    rounds(seconds, once)
    told = outcome(others, killed=killed)
    told.figures["own connections of the killed, lost"] = own
    return told


async def keep_asking_echo(server: Server, until: Callable[[], bool], account: Account) -> None:
    """New clients, one after the other, that say one thing each."""
    while not until():
        begun = time.monotonic()
        await Talker(server.address, account, 0.0).talk(lambda begun=begun: time.monotonic() > begun + 0.02)  # type: ignore[misc]


# ---- nothing left: disk, descriptors ---------------------------------------------------------------------------------


def limited(command: list[str], **limits: int) -> list[str]:
    """*command* with rlimits, both hard and soft: fsize=..., nofile=..."""
    code = "import os, resource, sys; "
    code += " ".join(f"resource.setrlimit(resource.RLIMIT_{name.upper()}, ({n}, {n}));" for name, n in limits.items())
    return [sys.executable, "-c", code + " os.execv(sys.argv[1], sys.argv[1:])", *command]


def full_disk(folder: Path, seconds: float, say: Say) -> Outcome:
    """A journal whose files may not grow: every request is answered, and what was not written is counted."""
    account = Account()
    told: list[str] = []

    async def load(server: Server) -> None:
        until = time.monotonic() + min(seconds, 15)
        clients = [keep_asking(server.address, lambda: time.monotonic() > until, account, 0.002) for _ in range(8)]
        await asyncio.gather(*clients)

    def once(number: int) -> None:
        command = limited(quick("http", "--journal", str(folder / f"journal-{number}")), fsize=8192)
        with serving(command, folder / "server.log") as server:
            run(load(server))
        told.extend(re.findall(r"\d+ rows were lost; last error: [^;\n]*", server.said()))
        say(f"{len(account.lost)} of {account.asked} lost")

    count = rounds(seconds, once)
    result = outcome(account, rounds=count)
    result.figures["said"] = told[-1] if told else "nothing"
    if not told:
        result.failures.append("the server did not say that rows were lost")
    result.passed = not result.failures
    return result


CROWD = 600


def no_descriptors(folder: Path, seconds: float, say: Say) -> Outcome:
    """More clients than descriptors: those that are in stay, and when some leave, those that wait are served."""
    account = Account()

    async def crowd(server: Server) -> None:
        done = asyncio.Event()
        inside = [Talker(server.address, account, 0.3) for _ in range(40)]
        load = asyncio.gather(*(talker.talk(done.is_set) for talker in inside))
        await asyncio.sleep(0.5)
        pairs = []
        for _ in range(CROWD):
            with suppress(OSError):
                pairs.append(await asyncio.open_connection(*server.address))
        await asyncio.sleep(2.0)
        for _, writer in pairs:
            writer.transport.abort()
        await asyncio.sleep(1.0)
        until = time.monotonic() + 0.5
        await keep_asking_echo(server, lambda: time.monotonic() > until, account)
        done.set()
        await load

    def once(_: int) -> None:
        with serving(limited(quick("echo", workers=1), nofile=400), folder / "server.log") as server:
            run(crowd(server))
        say(f"{len(account.lost)} of {account.asked} lost")

    return outcome(account, rounds=rounds(seconds, once))


# ---- attackers -------------------------------------------------------------------------------------------------------

ATTACKERS = 2000
LIMITS = {
    **dict.fromkeys(["--first-byte", "--headers", "--body", "--min-in-grace", "--min-out-grace"], "2s"),
    **dict.fromkeys(["--write", "--half-closed"], "3s"),
    "--keep-alive": "5s",
    "--linger": "1s",
    "--tick": "500ms",
    "--max-age": "20s",
    "--max-connections": "6000",
    "--max-body-bytes": "262144",
}
SHORT = [word for pair in LIMITS.items() for word in pair]


def attackers(folder: Path, seconds: float, say: Say) -> Outcome:
    """Attackers of every kind at once, who come again when they are closed, and healthy clients judged meanwhile."""
    account = Account()
    crowd = ATTACKERS if seconds > 60 else ATTACKERS // 4
    held: list[int] = []
    left = -1

    def connections(server: Server) -> int:
        """That the server's workers hold."""
        workers = psutil.Process(server.pid).children()
        return sum(len([kept for kept in worker.net_connections("tcp") if kept.raddr]) for worker in workers)

    async def besiege(server: Server) -> None:
        nonlocal left
        until = time.monotonic() + seconds

        def over() -> bool:
            return time.monotonic() > until

        kinds = list(ATTACKS)
        bad = [asyncio.ensure_future(attack(server.address, kinds[n % len(kinds)], over)) for n in range(crowd)]
        good = asyncio.gather(*(keep_asking(server.address, over, account, 0.1) for _ in range(5)))
        while not over():
            await asyncio.sleep(1.0)
            held.append(await asyncio.to_thread(connections, server))
            say(f"{held[-1]} connections held, {len(account.lost)} of {account.asked} lost")
        await good
        await asyncio.gather(*bad)
        for _ in range(60):  # longer than any limit, and than reading what kernels hold
            left = await asyncio.to_thread(connections, server)
            if left == 0:
                break
            await asyncio.sleep(0.5)

    with serving(quick("http", *SHORT), folder / "server.log") as server:
        run(besiege(server))
    result = outcome(account, attackers=crowd, kinds=len(ATTACKS))
    result.figures["most connections held at once"] = max(held)
    result.figures["held 30 s after the attack"] = left
    if left:
        result.failures.append(f"{left} connections are held 30 s after the attack")
    result.passed = not result.failures
    return result


def nonsense(folder: Path, seconds: float, say: Say) -> Outcome:
    """Malformed requests, odd splits and rude goodbyes."""
    say(f"for {seconds:.0f} s")
    figures = fuzz.trial(seconds, f"{folder.name}.log")
    passed = bool(figures.pop("passed"))
    return Outcome(passed, figures, [] if passed else ["see the figures"])
