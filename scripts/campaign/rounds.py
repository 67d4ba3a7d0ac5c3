"""One trial: its rounds, the clients that a round has, and what they lost.

*A client is lost if the server ended it although it kept the server's rules.* The
clients are those of `loadgen.clients`. What a round saw is added up over the rounds, of
which there is at least one.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.clients import FOREVER, Client, Speech, ask, attack, behaviour, keep_asking
from loadgen.drive.protocols import Paths
from loadgen.drive.wire import Tls

from ..groups import memory_group
from ..serving import example, free_port, serving
from ..tools import certificate, limited
from . import trouble
from .trouble import SIEGE, Outcome, Round

PATIENCE = 20.0
"""Seconds for which a client that stays waits for its last answer."""
HELD = Paths("/", "/upload", "/download?bytes=20000000", "/sleep?s=60")
Over = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One kind of trouble, as trials.toml has it."""

    name: str
    claim: str
    unseen: str
    meanwhile: dict[str, Any]
    share: float = 0.0
    server: str = ""
    command: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    memory: int = 0
    clients: list[dict[str, Any]] = field(default_factory=list)
    tls: bool = False
    says: str = ""
    interop: bool = False

    @classmethod
    def all(cls) -> dict[str, Trial]:
        """By name, in the order of the file."""
        text = Path(__file__).with_name("trials.toml").read_text(encoding="utf-8")
        return {each["name"]: cls(**each) for each in tomllib.loads(text)["trial"]}


def played(trial: Trial, folder: Path, seconds: float) -> Outcome:
    """The rounds of *trial*. Raises DidNotStart, Missing, RuntimeError: it could not be
    tried.
    """
    outcome, until = Outcome(), time.monotonic() + seconds
    while not outcome.figures.get("rounds") or time.monotonic() < until:
        outcome.count("rounds")
        one_round(trial, folder, until, outcome)
        if "NOT RUN" in outcome.figures:
            break
    return outcome


def one_round(trial: Trial, folder: Path, until: float, outcome: Outcome) -> None:
    """Start the server, let its clients come and the trouble with them, and end it."""
    kind, *flags = (
        (trial.server or trial.command).format(folder=folder, port=(port := free_port())).split()
    )
    if trial.tls:
        cert, key = certificate(folder)
        flags += ["--tls-cert", cert, "--tls-key", key]
    (folder / "reaper.toml").write_text("")  # of the trials that load one
    command = example(kind, *flags) if trial.server else [sys.executable, "-m", kind, *flags]
    environment = os.environ | trial.environment
    more: dict[str, Any] = {
        "environment": environment,
        "session": True,
        "port": None if trial.server else port,
    }
    with ExitStack() as ends:
        group = ends.enter_context(memory_group(trial.memory)) if trial.memory else None
        started = limited(command, **trial.limits)
        started = started if group is None else group.joined(started)
        server = ends.enter_context(serving(started, folder / "server.log", **more))
        given = Round(server, command, folder, until, outcome, group)
        arguments = dict(trial.meanwhile)
        make = getattr(trouble, arguments.pop("do"))
        if after := asyncio.run(beside(make(given, **arguments), clients_of(trial, given))):
            after()
    if trial.says:
        found = re.findall(trial.says, server.said())
        outcome.figures["the server says"] = found[-1] if found else "nothing"
        outcome.failures += [] if found else ["the server did not say what it lost"]


async def beside(
    trouble: Awaitable[Callable[[], None] | None], clients: list[Callable[[Over], Any]]
) -> Callable[[], None] | None:
    """Run *clients* for as long as *trouble* takes; each is given what says that it is
    over. What is to be done when they have left, if anything, is what *trouble*
    returns.
    """
    done = asyncio.Event()
    load = asyncio.gather(*(client(done.is_set) for client in clients))
    try:
        return await trouble
    finally:
        done.set()
        await load


def clients_of(trial: Trial, given: Round) -> list[Callable[[Over], Any]]:
    """The clients of a round, each ready to be called."""
    found: list[Callable[[Over], Any]] = []
    for each in trial.clients:
        options = dict(each)
        play, count = CLIENTS[options.pop("does")], options.pop("count")
        tls = Tls("127.0.0.1", insecure=True) if trial.tls else None
        speech = Speech(options.pop("protocol", "http"), Paths(options.pop("path", "/")), tls)
        found += [partial(play, given, speech, number=number, **options) for number in range(count)]
    return found


# ---- clients


async def talk(
    given: Round, speech: Speech, over: Over, number: int = 0, kind: str = "chatty", **how: str
) -> None:
    """A healthy client that stays, behaves as *kind* with *how* as a scenario has it,
    and waits for its last answer.
    """
    client = Client(behaviour(kind, speech.timeout, **how), given.server.address, speech)
    ended, limit = client.ended, FOREVER

    def through() -> bool:
        nonlocal limit
        if not over():
            return False
        limit = min(limit, time.monotonic() + PATIENCE)
        return ended.answered >= ended.asked or time.monotonic() > limit

    await client.play(through)
    if client.port in given.outcome.excused:
        given.outcome.count("own clients of the killed, lost", bool(ended.lost))
    else:
        given.outcome.account.add(ended)
        given.outcome.account.asked += not ended.asked  # who only listens is counted too


async def come(
    given: Round, speech: Speech, over: Over, number: int = 0, pause: float = 0.0
) -> None:
    """A healthy client that comes, asks once and goes, again and again."""
    await keep_asking(given.server.address, over, given.outcome.account, pause, speech)


async def once(
    given: Round,
    speech: Speech,
    over: Over,
    number: int = 0,
    after: float = 0.0,
    patient: bool = False,
) -> None:
    """A healthy client that asks once. *patient*: that it took so long to connect is
    the server's doing.
    """
    await asyncio.sleep(after)
    ended = await ask(given.server.address, speech)
    ended.overslept = ended.overslept and not patient
    given.outcome.account.add(ended)


async def siege(given: Round, speech: Speech, over: Over, number: int = 0) -> None:
    """An attacker, who comes again when it is closed."""
    await attack(
        SIEGE[number % len(SIEGE)], given.server.address, over, Speech(paths=HELD, timeout=2.0)
    )


CLIENTS: dict[str, Callable[..., Any]] = {
    "talk": talk,
    "come": come,
    "once": once,
    "attack": siege,
}
