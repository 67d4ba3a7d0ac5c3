"""How long a server keeps clients that vanish: no FIN comes, no reset, their machine is
gone.

One rule: *the server's own kernel is asked*, because the client sees nothing any more.
A connection is kept as long as it is established there. The clients live in a network
namespace of their own, at the far end of a virtual cable; taking the link down is all
that happens to them. This needs iproute2, and root (or a user namespace in which this
process is root).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic, sleep

from .clients import Client, Speech
from .units import BadArgument, Target

CLONE_NEWNET = 0x40000000
LOOK = 0.1
CONNECTING = 10.0
"""Seconds that the clients have to connect, at most."""

BEFORE = 1.0
"""Seconds that they then have to say what they say, before they vanish."""
QUESTIONS = {
    "http": {
        "vanished_new": "mute",
        "vanished_request": "ask_slow",
        "vanished_upload": "stalled_body",
        "vanished_idle": "silent",
    },
    "ws": {"vanished_upgraded": "silent_upgrade"},
    "echo": {"vanished_new": "mute", "vanished_idle": "silent"},
}
"""Protocol -> question -> the behaviour that a client has begun when it vanishes."""


@dataclass
class Kept:
    """How long the server kept each client of one question, in seconds from the end of
    the link.

    None stands for a client that it kept to the end.
    """

    name: str
    seconds: list[float | None]


@contextmanager
def namespace() -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Make a network namespace at the end of a cable, for the length of the block.

    Yields its name, the address of our end of the cable, and a function that takes the
    link down. Raises BadArgument: iproute2 is missing, or the right to do it.
    """
    name, link, net = f"loadgen{os.getpid()}", f"lg{os.getpid()}", f"10.213.{os.getpid() % 250}"

    def run(words: str, check: bool = True) -> None:
        done = subprocess.run([_tool("ip"), *words.split()], capture_output=True, text=True)
        if check and done.returncode:
            raise BadArgument(
                f"--vanish: {done.stderr.strip()}: it takes root, and network namespaces"
            )

    run(f"netns add {name}")
    try:
        run(f"link add {link} type veth peer name away netns {name}")
        run(f"addr add {net}.1/30 dev {link}")
        run(f"link set {link} up")
        run(f"-n {name} addr add {net}.2/30 dev away")
        run(f"-n {name} link set away up")
        yield name, f"{net}.1", lambda: run(f"-n {name} link set away down")
    finally:
        # The link first: the kernel takes a namespace apart later, and the next would
        # find the link's name taken.
        run(f"link del {link}", check=False)
        run(f"netns del {name}", check=False)


def vanish(target: Target, speech: Speech, wait: float, trials: int) -> list[Kept]:
    """Connect clients, take their link down, and watch the server for *wait* seconds.

    *trials* clients ask each question. The server must listen on all addresses
    (0.0.0.0), because they come over the cable. Raises BadArgument: as `namespace`, or
    no client could connect.
    """
    questions = QUESTIONS.get(speech.protocol, QUESTIONS["echo"])
    with namespace() as (name, ours, go):
        there = Target(ours, target.port, target.family)
        done = threading.Event()
        plain = replace(speech, timeout=3600.0)
        slow = replace(
            plain, paths=replace(speech.paths, get=speech.paths.slow or speech.paths.get)
        )
        clients = [
            (
                question,
                Client("silent", there, slow) if kind == "ask_slow" else Client(kind, there, plain),
            )
            for question, kind in questions.items()
            for _ in range(trials)
        ]

        async def live() -> None:
            await asyncio.gather(*(client.play(done.is_set) for _, client in clients))

        def away() -> None:
            with open(f"/run/netns/{name}") as handle:
                if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
                    return
            asyncio.run(live())

        thread = threading.Thread(target=away, daemon=True)
        thread.start()
        until = monotonic() + CONNECTING
        while (
            thread.is_alive()
            and monotonic() < until
            and not all(client.established for _, client in clients)
        ):
            sleep(LOOK)
        sleep(BEFORE)
        ports = {client.port: question for question, client in clients if client.established}
        if not ports:
            raise BadArgument(
                f"--vanish: nobody answers at {there}: "
                "the server must listen on all addresses (0.0.0.0)"
            )
        go()
        gone = monotonic()
        kept: dict[int, float | None] = dict.fromkeys(ports)
        while monotonic() < gone + wait and None in kept.values():
            sleep(LOOK)
            still = _established(target.port)
            for port in [
                port for port, ended in kept.items() if ended is None and port not in still
            ]:
                kept[port] = monotonic() - gone
        done.set()
        thread.join(2.0)
    return [
        Kept(question, [kept[p] for p, asked in ports.items() if asked == question])
        for question in questions
    ]


def _tool(name: str) -> str:
    """Find a program of iproute2, also in root's folders. Raises BadArgument: it is
    nowhere.
    """
    if found := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        return found
    raise BadArgument("--vanish needs iproute2: apt-get install iproute2")


def _established(port: int) -> set[int]:
    """The ports of the clients whose connections to *port* of this machine are
    established.
    """
    command = [_tool("ss"), "-Htn", "state", "established", f"sport = :{port}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines}
