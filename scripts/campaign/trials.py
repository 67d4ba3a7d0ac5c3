"""The trials: what is done to a server, and what its clients lost by it.

*A client is lost if the server ended it although it kept the server's rules.* The clients are those of
`loadgen.clients`. A trial repeats its round until its time is over, at least once, and adds up what the rounds saw.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from loadgen.clients import ATTACKS, HTTP, Account, Client, Speech, ask, attack, behaviour, keep_asking, keep_talking
from loadgen.drive.protocols import Paths
from loadgen.drive.wire import Tls
from loadgen.units import BadArgument, parse_target
from loadgen.vanish import vanish

from ..interop import fuzz
from ..interop.tools import metrics
from ..serving import Server, example, free_port, serving

Say = Callable[[str], None]
Over = Callable[[], bool]
ECHO = Speech("echo")


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


def under(trouble: Awaitable[None], *clients: Callable[[Over], Awaitable[Any]]) -> None:
    """Run *clients* for as long as the *trouble* takes; each is given what says that it is over."""

    async def both() -> None:
        done = asyncio.Event()
        load = asyncio.gather(*(client(done.is_set) for client in clients))
        try:
            await trouble
        finally:
            done.set()
            await load

    asyncio.run(both())


def talkers(count: int, server: Server, account: Account, interval: float, speech: Speech) -> list[Any]:
    """Healthy clients that stay, for `under`."""

    async def talk(over: Over) -> None:
        await keep_talking(server.address, over, account, interval, speech)

    return [talk] * count


def comers(count: int, server: Server, account: Account, pause: float = 0.0, speech: Speech = HTTP) -> list[Any]:
    """Healthy clients that come, ask once and go, again and again, for `under`."""

    async def come(over: Over) -> None:
        await keep_asking(server.address, over, account, pause, speech)

    return [come] * count


def outcome(account: Account, failures: list[str] | None = None, **figures: Any) -> Outcome:
    """Passed if nothing was lost and nothing else failed."""
    found = {name.replace("_", " "): value for name, value in figures.items()}
    found |= {"asked": account.asked, "lost": len(account.lost)}
    if account.late:
        found["not judged, for the client was late"] = account.late
    if account.worst:
        found["slowest answer, s"] = round(account.worst, 2)
    wrong = [f"{count} x {why}" for why, count in account.losses.items()] + (failures or [])
    return Outcome(not wrong, found, wrong)


def quick(kind: str, *flags: str, workers: int = 2) -> list[str]:
    """A server that does not wait long for clients that are idle when it stops."""
    return example(kind, "--workers", str(workers), "--drain-idle", "100ms", *flags)


# ---- signals, restarts, reloads --------------------------------------------------------------------------------------

IN_FLIGHT = 20
SLOW = Speech(paths=Paths(get="/sleep?s=2s"))


def group_signals(folder: Path, seconds: float, say: Say) -> Outcome:
    """Requests in flight, a signal to the whole process group, and a burst of others after it."""
    account = Account()
    first = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    async def signalled(server: Server, sent: signal.Signals) -> None:
        asks = [asyncio.ensure_future(ask(server.address, SLOW)) for _ in range(IN_FLIGHT)]
        await asyncio.sleep(1.0)
        for number in (sent, signal.SIGHUP, signal.SIGTERM):
            os.killpg(server.pid, number)
            await asyncio.sleep(0.05)
        for ended in await asyncio.gather(*asks):
            account.add(ended)

    def once(number: int) -> None:
        with serving(quick("http"), folder / "server.log", session=True) as server:
            asyncio.run(signalled(server, first[number % 3]))
        say(f"{len(account.lost)} of {account.asked} lost")

    return outcome(account, rounds=rounds(seconds, once))


def rolling_restart(folder: Path, seconds: float, say: Say) -> Outcome:
    """Clients that connect all the time, while one server after the other takes the port over."""
    account = Account()
    restarts = 0

    async def replace(server: Server) -> None:
        nonlocal restarts
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
            await asyncio.sleep(0.5)
        finally:
            ending.append(running)

    ending: list[Server] = []
    with serving(quick("http"), folder / "server.log") as server:
        under(replace(server), *comers(8, server, account))
    for last in ending:
        last.stop()
        last.end()
    return outcome(account, restarts=restarts)


def reloads(folder: Path, seconds: float, say: Say) -> Outcome:
    """SIGHUP to the whole group, again and again, with clients that stay and clients that come."""
    account = Account()
    config = folder / "reaper.toml"
    config.write_text('[timeouts]\nkeep_alive = "60s"\n')
    sent = 0

    async def hang_up(server: Server) -> None:
        nonlocal sent
        until = time.monotonic() + seconds
        while sent == 0 or time.monotonic() < until:
            config.write_text(f'[timeouts]\nkeep_alive = "{random.randint(30, 90)}s"\n')
            os.killpg(server.pid, signal.SIGHUP)
            sent += 1
            say(f"{sent} reloads, {len(account.lost)} of {account.asked} lost")
            await asyncio.sleep(0.5)

    command = quick("http", "--config", str(config), "--max-requests", "1000000")
    with serving(command, folder / "server.log", session=True) as server:
        under(hang_up(server), *talkers(40, server, account, 0.2, HTTP), *comers(4, server, account, 0.02))
    return outcome(account, reloads=sent)


# ---- stalls ----------------------------------------------------------------------------------------------------------


async def stalled(server: Server, before: float, seconds: float, after: float) -> None:
    """All processes of *server* stopped for *seconds*."""
    await asyncio.sleep(before)
    os.killpg(server.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.killpg(server.pid, signal.SIGCONT)
    await asyncio.sleep(after)


def pauses(folder: Path, seconds: float, say: Say) -> Outcome:
    """SIGSTOP for more than three timeouts, with clients that go on talking, then SIGCONT."""
    account = Account()

    def once(_: int) -> None:
        with serving(quick("echo", "--idle", "1s", "--tick", "250ms"), folder / "server.log", session=True) as server:
            under(stalled(server, 1.0, 3.5, 1.5), *talkers(200, server, account, 0.4, ECHO))
        say(f"{len(account.lost)} of {account.asked} lost")

    return outcome(account, pauses=rounds(seconds, once))


def pipelined_stall(folder: Path, seconds: float, say: Say) -> Outcome:
    """Several requests in one write, again and again, with a stall of three timeouts in between."""
    account = Account()

    async def pipeline(server: Server, over: Over) -> None:
        client = Client(behaviour("pipelined", shortest="200ms", longest="400ms"), server.address)
        ended, limit = client.ended, time.monotonic() + 30
        account.add(await client.play(lambda: over() and (ended.answered >= ended.asked or time.monotonic() > limit)))

    def once(_: int) -> None:
        flags = ("--keep-alive", "1s", "--headers", "1s", "--tick", "250ms", "--max-requests", "1000000")
        with serving(quick("http", *flags), folder / "server.log", session=True) as server:
            under(stalled(server, 1.0, 3.5, 1.5), *[partial(pipeline, server)] * 40)
        say(f"{len(account.lost)} of {account.asked} lost")

    return outcome(account, stalls=rounds(seconds, once))


FEED = Speech(protocol="ws", paths=Paths("/feed"))


def listeners(folder: Path, seconds: float, say: Say) -> Outcome:
    """WebSocket clients of a guarded uvicorn that read what comes, and say nothing for five timeouts."""
    account = Account()

    async def listen(address: tuple[str, int]) -> None:
        until = time.monotonic() + 5.0
        clients = [Client("listener", address, FEED) for _ in range(20)]
        for ended in await asyncio.gather(*(one.play(lambda: time.monotonic() > until) for one in clients)):
            account.asked += 1
            if ended.how != "left":
                account.lost.append(ended.failure or ended.how)

    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "scripts.uvicorn_demo.app:app", "--http", "reaper.uvicorn:Auto"]
    settings = os.environ | {"REAPER_TICK": "250ms", "REAPER_TIMEOUTS_TUNNEL": "1s"}
    with serving([*command, "--port", f"{port}"], folder / "server.log", port=port, environment=settings) as server:
        count = rounds(min(seconds, 60.0), lambda _: asyncio.run(listen(server.address)))
    say(f"{len(account.lost)} of {account.asked} lost")
    return outcome(account, rounds=count)


# ---- TLS -------------------------------------------------------------------------------------------------------------


def certificate(folder: Path) -> list[str]:
    """Flags of a server that has one, made in *folder*."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"no certificate can be made: {error}") from error
    return ["--tls-cert", cert, "--tls-key", key]


TLS = Speech(tls=Tls("127.0.0.1", insecure=True))


def handshake_stall(folder: Path, seconds: float, say: Say) -> Outcome:
    """Clients that come while the server is stopped for longer than a handshake may take."""
    account = Account()

    async def come(server: Server) -> None:
        await asyncio.sleep(0.5)
        for ended in await asyncio.gather(*(ask(server.address, TLS) for _ in range(40))):
            account.asked += 1  # not `add`: that the handshake took so long is the server's doing
            if not ended.answered:
                account.lost.append(ended.failure or ended.how)

    async def both(server: Server) -> None:
        await asyncio.gather(stalled(server, 0.3, 3.5, 0.0), come(server))

    def once(_: int) -> None:
        flags = ("--handshake", "1s", "--first-byte", "2s", "--tick", "250ms", *certificate(folder))
        with serving(quick("http", *flags), folder / "server.log", session=True) as server:
            asyncio.run(both(server))
        say(f"{len(account.lost)} of {account.asked} lost")

    return outcome(account, stalls=rounds(seconds, once))


def crlf(folder: Path, seconds: float, say: Say) -> Outcome:
    """Clients that send nothing but empty lines over TLS, and a healthy one judged meanwhile."""
    account = Account()

    async def flood(server: Server, over: Over) -> None:
        context = TLS.tls.context() if TLS.tls else None
        while not over():
            with suppress(OSError, asyncio.IncompleteReadError):
                _, writer = await asyncio.open_connection(*server.address, ssl=context)
                try:
                    while not over() and not writer.is_closing():
                        writer.write(b"\r\n" * 30_000)
                        await asyncio.wait_for(writer.drain(), 2.0)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.1)

    with serving(quick("http", *certificate(folder), workers=1), folder / "server.log") as server:
        clients = [*[partial(flood, server)] * 2, *comers(3, server, account, 0.1, TLS)]
        under(asyncio.sleep(max(min(seconds, 60.0), 3.0)), *clients)
    say(f"{len(account.lost)} of {account.asked} lost")
    return outcome(account, flooding=2)


# ---- clients that vanish ---------------------------------------------------------------------------------------------

GONE = 4.0
"""`timeouts.vanished` of the trial, seconds."""


def vanished(folder: Path, seconds: float, say: Say) -> Outcome:
    """Clients whose machine is gone, without a FIN or a reset: each is closed in time, and none too early."""
    long = [word for name in ("first-byte", "body", "keep-alive", "request") for word in (f"--{name}", "10m")]
    flags = ["--host", "0.0.0.0", "--vanished", f"{GONE:g}s", "--min-in-rate", "0", "--tick", "500ms", *long]
    kept: list[tuple[str, float | None]] = []
    with serving(quick("http", *flags), folder / "server.log") as server:
        target = parse_target(f"127.0.0.1:{server.port}")
        speech = Speech(paths=Paths("/", "/upload", "", "/sleep?s=60"))

        def once(_: int) -> None:
            for each in vanish(target, speech, 3 * GONE, 5):
                kept.extend((each.name, ended) for ended in each.seconds)

        try:
            count = rounds(min(seconds, 120.0), once)
        except BadArgument as error:
            return Outcome(not kept, {"NOT RUN": str(error)})  # no root, no namespaces: no excuse once it could
    say(f"{len(kept)} clients have vanished")
    most = 1.25 * GONE + 1.5  # a tick of half a second, and what looking takes
    least = (
        0.75 * GONE - 0.2
    )  # the last sign may be older than the link's end by the quarter after which one is asked for
    wrong = [f"{name}: {ended}" for name, ended in kept if ended is None or not least <= ended <= most]
    longest = max((ended for _, ended in kept if ended is not None), default=0.0)
    figures = {"rounds": count, "vanished": len(kept), "kept at most, s": round(longest, 2)}
    return Outcome(not wrong and len(kept) > 0, figures, wrong)


# ---- workers, scrapes ------------------------------------------------------------------------------------------------


def killed_workers(folder: Path, seconds: float, say: Say) -> Outcome:
    """kill -9 of one worker: its own connections end, no other does, and new ones are served."""
    others, own, killed = Account(), 0, 0

    async def kill(server: Server) -> None:
        nonlocal killed, own
        done = asyncio.Event()
        spoken = behaviour("chatty", shortest="100ms", longest="200ms")
        clients = [Client(spoken, server.address, ECHO) for _ in range(60)]
        load = asyncio.gather(
            *(one.play(lambda one=one: done.is_set() and one.ended.answered >= one.ended.asked) for one in clients)  # type: ignore[misc]
        )
        await asyncio.sleep(1.0)
        victim = random.choice(psutil.Process(server.pid).children())
        ports = {kept.raddr.port for kept in victim.net_connections("tcp") if kept.raddr}
        victim.kill()
        killed += 1
        until = time.monotonic() + 1.5
        await keep_asking(server.address, lambda: time.monotonic() > until, others, 0.02, ECHO)
        done.set()
        for client, ended in zip(clients, await load, strict=True):
            if client.port in ports:
                own += bool(ended.lost)
            else:
                others.add(ended)

    def once(_: int) -> None:
        with serving(quick("echo", workers=3), folder / "server.log") as server:
            asyncio.run(kill(server))
        say(f"{killed} killed, {len(others.lost)} of {others.asked} others lost")

    rounds(seconds, once)
    found = outcome(others, killed=killed)
    found.figures["own connections of the killed, lost"] = own
    return found


WORKERS = 3
SCRAPES = 50


def scrapes(folder: Path, seconds: float, say: Say) -> Outcome:
    """Fifty scrapes in one instant, again and again: each tells of every worker."""
    account, missing = Account(), 0

    async def scrape(server: Server) -> None:
        nonlocal missing
        found = await asyncio.gather(*(asyncio.to_thread(metrics, server.address) for _ in range(SCRAPES)))
        account.asked += SCRAPES
        missing += sum(sum(name.startswith("http_requests_total{") for name in each) < WORKERS for each in found)

    with serving(quick("http", workers=WORKERS), folder / "server.log") as server:
        count = rounds(min(seconds, 60.0), lambda _: asyncio.run(scrape(server)))
    say(f"{missing} of {account.asked} without a worker")
    return outcome(account, [f"{missing} scrapes lacked a worker"] if missing else [], rounds=count)


# ---- nothing left: disk, descriptors ---------------------------------------------------------------------------------


def limited(command: list[str], **limits: int) -> list[str]:
    """*command* with rlimits, both hard and soft: fsize=..., nofile=..."""
    code = "import os, resource, sys; "
    code += " ".join(f"resource.setrlimit(resource.RLIMIT_{name.upper()}, ({n}, {n}));" for name, n in limits.items())
    return [sys.executable, "-c", code + " os.execv(sys.argv[1], sys.argv[1:])", *command]


def full_disk(folder: Path, seconds: float, say: Say) -> Outcome:
    """A journal whose files may not grow: every request is answered, and what was not written is counted."""
    account = Account()
    said: list[str] = []

    def once(number: int) -> None:
        command = limited(quick("http", "--journal", str(folder / f"journal-{number}")), fsize=8192)
        with serving(command, folder / "server.log") as server:
            under(asyncio.sleep(min(seconds, 15)), *comers(8, server, account, 0.002))
        said.extend(re.findall(r"\d+ rows were lost; last error: [^;\n]*", server.said()))
        say(f"{len(account.lost)} of {account.asked} lost")

    count = rounds(seconds, once)
    silent = [] if said else ["the server did not say that rows were lost"]
    return outcome(account, silent, rounds=count, said=said[-1] if said else "nothing")


CROWD = 600


def no_descriptors(folder: Path, seconds: float, say: Say) -> Outcome:
    """More clients than descriptors: those that are in stay, and when some leave, those that wait are served."""
    account = Account()

    async def crowd(server: Server) -> None:
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
        await keep_asking(server.address, lambda: time.monotonic() > until, account, 0.02, ECHO)

    def once(_: int) -> None:
        with serving(limited(quick("echo", workers=1), nofile=400), folder / "server.log") as server:
            under(crowd(server), *talkers(40, server, account, 0.3, ECHO))
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
HELD = Speech(paths=Paths("/", "/upload", "/download?bytes=20000000", "/sleep?s=60"), timeout=2.0)
KINDS = ["mute", *(kind for kind in ATTACKS if kind not in ("slow_message", "listener"))]
"""Those of WebSockets need a server that has them."""


def connections(server: Server) -> int:
    """That the server's workers hold."""
    workers = psutil.Process(server.pid).children()
    return sum(len([kept for kept in worker.net_connections("tcp") if kept.raddr]) for worker in workers)


def attackers(folder: Path, seconds: float, say: Say) -> Outcome:
    """Attackers of every kind at once, who come again when they are closed, and healthy clients judged meanwhile."""
    account = Account()
    crowd = ATTACKERS if seconds > 60 else ATTACKERS // 4
    held: list[int] = []

    async def watch(server: Server) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            held.append(await asyncio.to_thread(connections, server))
            say(f"{held[-1]} connections held, {len(account.lost)} of {account.asked} lost")

    def bad(server: Server, kind: str) -> Any:
        return lambda over: attack(kind, server.address, over, HELD)

    with serving(quick("http", *(word for pair in LIMITS.items() for word in pair)), folder / "server.log") as server:
        siege = [bad(server, KINDS[number % len(KINDS)]) for number in range(crowd)]
        under(watch(server), *siege, *comers(5, server, account, 0.1))
        for _ in range(60):  # longer than any limit, and than reading what kernels hold
            if (left := connections(server)) == 0:
                break
            time.sleep(0.5)
    still = [f"{left} connections are held 30 s after the attack"] if left else []
    figures = {"attackers": crowd, "kinds": len(KINDS), "most_connections_held_at_once": max(held)}
    return outcome(account, still, **figures, held_30_s_after_the_attack=left)


def nonsense(folder: Path, seconds: float, say: Say) -> Outcome:
    """Malformed requests, odd splits and rude goodbyes."""
    say(f"for {seconds:.0f} s")
    figures = fuzz.trial(seconds, f"{folder.name}.log")
    passed = bool(figures.pop("passed"))
    return Outcome(passed, figures, [] if passed else ["see the figures"])
