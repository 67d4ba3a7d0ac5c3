"""One program, started stock or below `reaper run`, and what its clients saw.

Each client has a connection of its own; the clients of the first five columns are there
at the same time. What a column measures is said at its function.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.plan.acts import Act, Drip, Kind, Until
from loadgen.playing.play import played

from ..serving import DidNotStart, Server, free_port, serving, tree
from ..tools import Missing
from .asks import Ask
from .declared import Program
from .installing import path_with

APPS = Path(__file__).resolve().parent / "apps"
BACKEND = [sys.executable, str(APPS / "programs.py"), "aiohttp"]
HOST = "127.0.0.1"
DRIP = 0.4
"""Seconds between two bytes of a client that drips."""
BEGUN = 1.0
"""Seconds that a request is in flight when a signal comes."""
LISTENS_SOON = 120.0
"""Seconds in which a program listens; four at once start slowly."""

EARLY = 0.1
"""Seconds by which the sleep of a slow answer may be too short."""
GUARDED_SOON = 40.0
"""Seconds in which `reaper run` has said what it guards; a Python may take ten to say
that.
"""

Seen = dict[str, Any]
"""What was seen in a column, as JSON has it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a trial lasts, in seconds: first what `reaper run` is told, then how long
    clients wait.

    From outside a slow answer looks like a silent client: *idle* has to be longer than
    *slow*.
    """

    first_byte: float = 2.0
    headers: float = 2.0
    body: float = 2.0
    keep_alive: float = 2.0
    idle: float = 7.0
    tunnel: float = 7.0
    tick: float = 0.25
    slow: float = 5.0
    window: float = 11.0
    leaves: float = 20.0

    def flags(self) -> list[str]:
        """As `reaper run` takes them."""
        names = ("first_byte", "headers", "body", "keep_alive", "idle", "tunnel", "tick")
        return [
            word
            for name in names
            for word in (f"--{name.replace('_', '-')}", f"{getattr(self, name)}s")
        ]


@contextmanager
def started(
    program: Program, folder: Path, *, guarded: bool, limits: Limits
) -> Iterator[tuple[Server, str]]:
    """*program*, once it answers, and how it is guarded: `inside`, `outside`, or `` if
    it is stock.

    Args:
        folder: Where its commands are.
    Raises:
        DidNotStart: it has ended, did not answer, or nothing said that it is guarded.
        Missing: a command of it is not installed.
    """
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="program-")))
        shutil.copytree(APPS, place, dirs_exist_ok=True)
        place.chmod(0o755)
        port, path = free_port(), path_with(folder)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("REAPER_", "PYTHON"))}
        environment = {
            **inherited,
            "PATH": path,
            "HOME": str(place),
            "PYTHONPATH": str(place),
            "SLOW": f"{limits.slow:g}",
            **program.environment,
        }
        given = {"dir": place, "bin": folder, "port": port, "slow": limits.slow}
        if any("{backend}" in text for text in program.files.values()):
            behind = given["backend"] = free_port()
            stack.enter_context(
                serving(
                    [*BACKEND, str(behind)],
                    place / "backend.log",
                    port=behind,
                    environment=environment,
                )
            )
        for name, text in program.files.items():
            (place / name).write_text(text.format(**given))
        for line in program.setup:
            _run(line.format(**given), path, environment)
        command = _words(program.command, given, path)
        if guarded:
            command = [sys.executable, "-m", "reaper", "run", *limits.flags(), "--", *command]
        server = Server(
            command, place / "log", port=port, cwd=place, environment=environment, session=True
        )
        try:
            server.wait_until_it_listens(LISTENS_SOON)
            how = _guard_of(server) if guarded else ""
            asyncio.run(_answers(port, program.asks.now, limits))
            yield server, how
        finally:
            _end(server)


def _words(line: str, given: Mapping[str, Any], path: str) -> list[str]:
    name, *words = (word.format(**given) for word in line.split(" "))
    found = shutil.which(name, path=path)
    if found is None:
        raise Missing(f"{name} is not installed")
    return [found, *words]


def _run(line: str, path: str, environment: Mapping[str, str]) -> None:
    name, *words = shlex.split(line)
    found = shutil.which(name, path=path) or name
    done = subprocess.run([found, *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise DidNotStart(f"{line}: {(done.stderr or done.stdout).strip()[-300:]}")


def _guard_of(server: Server) -> str:
    until = time.monotonic() + GUARDED_SOON
    while time.monotonic() < until:
        said = [each for each in server.said().splitlines() if each.startswith("reaper run: ")]
        for how in ("inside", "outside"):
            if any(f"is guarded from {how}" in line for line in said):
                return how
        if server.status is not None:
            break
        time.sleep(0.05)
    raise DidNotStart(f"nothing said that it is guarded: {server.said()[-500:]}")


def _end(server: Server) -> None:
    """End what is left of *server*, which has a session, and so a process group, of its
    own.
    """
    left = tree(server.pid)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.end()


# ---- clients


async def _answers(port: int, ask: Ask, limits: Limits) -> None:
    """Wait until *ask* is answered: some programs listen long before they answer."""
    until = time.monotonic() + 60
    while (seen := (await answer(port, ask, limits))["is"]) != "answered":
        if time.monotonic() > until:
            raise DidNotStart(f"never answered a request: {seen}")
        await asyncio.sleep(0.2)


async def closes(port: int, limits: Limits, *, drip: bytes = b"", ask: Ask | None = None) -> Seen:
    """When a client is closed: {"is": "closed", "s": seconds}, or `open`, or `no
    answer`.

    The seconds count from the answer to *ask*; without one, from connect(2). Bytes of
    *drip* are sent one by one. A goodbye of what *ask* speaks is a close. It waits as
    long as the window says.
    """
    acts: tuple[Act, ...] = (Drip(drip, DRIP),) if drip else ()
    if ask is not None:
        acts = *ask.acts_for(limits.slow), Until(text=ask.whole)
    since, speaks = 0 if drip else None, "lines" if ask is None else ask.speaks
    kind = Kind(name="is closed", speaks=speaks, acts=acts, limit="any", since=since)
    try:
        seen = await played(kind, (HOST, port), limits.window)
    except OSError:
        return {"is": "refused"}
    if ask is not None and len(seen.marks) <= len(acts):
        return {"is": "no answer"}
    if seen.ended is None:
        return {"is": "open"}
    return {"is": "closed", "s": round(max(0.0, seen.ended - seen.marks[-1][1]), 2)}


async def answer(port: int, ask: Ask, limits: Limits, *, late: bool = False) -> Seen:
    """Whether *ask* is answered: `answered`, `cut` after so many seconds, `refused`,
    `no answer`; `another answer`: it came too soon for a *late* one, or not in halves,
    so nothing was tried.
    """
    asks = ask.acts_for(limits.slow)
    kind = Kind(name="is answered", speaks=ask.speaks, acts=asks, hears=(ask.whole,))
    try:
        seen = await played(kind, (HOST, port), limits.slow + limits.window)
    except OSError:
        return {"is": "refused"}
    seconds = round(time.monotonic() - seen.marks[0][1], 2)  # which is the loop's clock
    whole = kind.heard(seen.data)
    early = late and whole and seconds < limits.slow - EARLY
    if early or (seen.data and ask.starts not in seen.data):
        return {"is": "another answer", "s": seconds, "bytes": len(seen.data)}
    if whole:
        return {"is": "answered", "s": seconds}
    how = "no answer" if seen.ended is None else "cut"
    return {"is": how, "s": seconds, "bytes": len(seen.data)}


# ---- columns


async def quiet_and_slow(program: Program, port: int, limits: Limits) -> dict[str, Seen]:
    """The columns silent, dripping, idle, slow, pauses."""
    asks = program.asks
    running = {
        "silent": closes(port, limits),
        "dripping": closes(port, limits, drip=asks.drip),
        "idle": closes(port, limits, ask=asks.now),
    }
    if asks.slow is not None:
        running["slow"] = answer(port, asks.slow, limits, late=True)
    if asks.pauses is not None:
        running["pauses"] = answer(port, asks.pauses, limits, late=True)
    return dict(zip(running, await asyncio.gather(*running.values()), strict=True))


async def stopped(program: Program, server: Server, number: signal.Signals, limits: Limits) -> Seen:
    """The columns SIGTERM (to the process) and SIGINT (to its group, as a terminal
    sends it).

    A slow request is in flight, and a client silent. What became of the request, after
    how many seconds the process ended, None if it did not, and its exit status.
    """
    flight = asyncio.create_task(_in_flight(program, server.port, limits))
    await asyncio.sleep(BEGUN)
    silent = asyncio.create_task(closes(server.port, limits))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(server.pid, number)
    else:
        os.kill(server.pid, number)
    seconds: float | None = None
    while time.monotonic() < began + limits.leaves:
        if server.status is not None:
            seconds = round(time.monotonic() - began, 2)
            break
        await asyncio.sleep(0.02)
    status = server.status
    if seconds is None:
        _end(server)
    await silent
    return {"request": await flight, "s": seconds, "status": status}


async def _in_flight(program: Program, port: int, limits: Limits) -> str | None:
    slow = program.asks.slow
    return None if slow is None else str((await answer(port, slow, limits, late=True))["is"])


async def reloaded(
    program: Program, server: Server, limits: Limits, environment: Callable[[str], None]
) -> Seen:
    """The column reload: what became of a request in flight, whether a new one is
    answered, and when a silent client is closed after that.
    """
    flight = asyncio.create_task(_in_flight(program, server.port, limits))
    await asyncio.sleep(BEGUN)
    before = set(tree(server.pid))
    reload = program.reload
    if isinstance(reload, signal.Signals):
        os.kill(server.pid, reload)
    else:
        await asyncio.to_thread(environment, reload or "")
    request = await flight
    await asyncio.sleep(3.0)
    until = time.monotonic() + 40
    while (seen := (await answer(server.port, program.asks.now, limits))["is"]) != "answered":
        if time.monotonic() > until or server.status is not None:
            break
        await asyncio.sleep(0.2)
    anew = set(tree(server.pid)) != before
    silent = await closes(server.port, limits) if seen == "answered" else None
    return {"request": request, "serves": seen == "answered", "anew": anew, "silent": silent}


def tried(program: Program, folder: Path, *, guarded: bool, limits: Limits) -> dict[str, Any]:
    """All columns of *program*, and how it is guarded. Raises DidNotStart, Missing."""
    found: dict[str, Any] = {}
    with started(program, folder, guarded=guarded, limits=limits) as (server, how):
        found["how"] = how
        found |= asyncio.run(quiet_and_slow(program, server.port, limits))
        if server.status is not None:
            raise DidNotStart(f"it ended by itself: {server.said()[-300:]}")
        found["SIGTERM"] = asyncio.run(stopped(program, server, signal.SIGTERM, limits))
        found["said"] = [
            line.replace(f":{server.port}", ":PORT")
            for line in server.said().splitlines()
            if line.startswith("reaper run: ")
        ]
    with started(program, folder, guarded=guarded, limits=limits) as (server, _):
        found["SIGINT"] = asyncio.run(stopped(program, server, signal.SIGINT, limits))
    if program.reload is not None:
        with started(program, folder, guarded=guarded, limits=limits) as (server, _):
            place = server.log.parent

            def change(what: str) -> None:
                if " " in what:
                    given = {"dir": place, "port": server.port}
                    _run(what.format(**given), path_with(folder), os.environ)
                else:
                    with (place / what).open("a") as file:
                        file.write("\n")

            found["reload"] = asyncio.run(reloaded(program, server, limits, change))
    return found
