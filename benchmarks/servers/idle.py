"""What a client costs that does nothing: after a burst, connected, after half a request head, and idle behind TLS.

*Every client is still there afterwards*: a server that closed some of them would look cheap, and is an error here
instead. Each figure is of a server of its own: resident bytes of all its processes, per client.

- `burst`: all come at once, as after a deploy or in a reconnect storm; each asks once and falls silent.
- `silent`: each has connected, and said nothing.
- `half a head`: each has sent all of a request but the last line.
- `tls`: each has asked once behind TLS, and is kept.
"""

from __future__ import annotations

import select
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadgen.drive.connecting import IP_BIND_ADDRESS_NO_PORT
from loadgen.plan.capacity import SPARE_DESCRIPTORS, raise_descriptor_limit
from scripts.tools import certificate

from ..common import Note, Scale, by_scale, figure, markdown
from .process import KINDS, REQUEST, Server, not_here, running
from .run import BUSY

SERVERS = ("ours-parked", "nginx", "hypercorn", "uvicorn", "guarded", "aiohttp", "asyncio")
WARM_UP = 5
"""Requests on each of `BUSY` connections before anything is measured."""
IN_FLIGHT = 256
"""Clients that wait for the kernel or for their answer: fewer than any server's backlog holds."""
PATIENCE = 60.0
SAID = {"silent": b"", "half a head": REQUEST[:-2]}
MEASURES = {"burst": "after a burst", "silent": "silent", "half a head": "half a head", "tls": "idle, TLS"}


def run(scale: Scale, note: Note, only: Sequence[str] = SERVERS) -> dict[str, Any]:
    """`results[server][measure]`: bytes per client; `not_run`: what cannot be run here, and why.

    Raises:
        RuntimeError: A server does not answer correctly, or does not keep its clients.
    """
    clients, tls_clients = by_scale(scale, (60, 20), (500, 200), (4000, 1000))
    silence = by_scale(scale, 0.3, 2.0, 5.0)
    if clients > (most := raise_descriptor_limit() - SPARE_DESCRIPTORS):
        raise RuntimeError(f"{clients} clients are more than the {most} that the descriptors of a process allow")
    not_run = not_here(only)
    results: dict[str, dict[str, float]] = {name: {} for name in only if name not in not_run}
    for name, found in results.items():
        note(f"{clients:,} clients at once: {name}")
        with one(name, clients) as server:
            found["burst"] = burst(server, clients, silence)
        for number, (measure, said) in enumerate(SAID.items()):
            note(f"{clients:,} clients, {measure}: {name}")
            with one(name, clients) as server:
                found[measure] = bytes_of(server, clients, silence, dialling(said, number))
        if KINDS[name].tls:
            note(f"{tls_clients:,} clients, TLS: {name}")
            with tempfile.TemporaryDirectory() as folder, one(name, tls_clients, certificate(Path(folder))) as server:
                found["tls"] = bytes_of(server, tls_clients, silence, _ask)
    return {"clients": clients, "tls_clients": tls_clients, "results": results, "not_run": not_run}


@contextmanager
def one(name: str, clients: int, tls: tuple[str, str] | None = None) -> Iterator[Server]:
    """That server alone, warm: what it needs once is no connection's share."""
    with (
        tempfile.TemporaryDirectory(prefix="reaper-idle-") as folder,
        running([name], clients + 2 * BUSY, Path(folder), tls) as servers,
    ):
        server = servers[name]
        warm = [server.dial() for _ in range(BUSY)]
        for _ in range(WARM_UP):
            server.ask(warm)
        for client in warm:
            client.close()
        time.sleep(1.0)  # while it tidies up after them
        yield server


def burst(server: Server, clients: int, silence: float) -> float:
    """Let *clients* come at once; bytes per client when they have been silent for *silence* s."""
    empty = server.rss()
    held = connect(server, clients, "127.0.2.1")
    time.sleep(silence)
    full = server.rss()
    server.ask(held[:BUSY])  # they are all still there
    server.ask(held[-BUSY:])
    for client in held:
        client.close()
    return (full - empty) / clients


def connect(server: Server, clients: int, source: str) -> list[socket.socket]:
    """Connect all, a backlog's worth at a time; ask once on each, and read the answers."""
    held: list[socket.socket] = []
    while len(held) < clients:
        group = []
        for _ in range(min(IN_FLIGHT, clients - len(held))):
            client = socket.socket()
            client.settimeout(PATIENCE)
            # The port is chosen at connect, where those that linger in TIME_WAIT to another server do not count.
            client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            client.bind((source, 0))
            client.connect(("127.0.0.1", server.port))  # the kernel accepts into the backlog: this does not wait
            group.append(client)
        server.ask(group)
        held += group
    return held


def dialling(said: bytes, number: int) -> Callable[[Server], socket.socket]:
    """What makes a client that says *said* and nothing more."""

    def dial(server: Server) -> socket.socket:
        client = socket.socket()
        client.bind((f"127.0.4.{number + 1}", 0))
        client.connect(("127.0.0.1", server.port))
        if said:
            client.sendall(said)
        return client

    return dial


def _ask(server: Server) -> socket.socket:
    client = server.dial()
    server.ask([client])
    return client


def bytes_of(server: Server, clients: int, silence: float, dial: Callable[[Server], socket.socket]) -> float:
    empty = server.rss()
    held = [dial(server) for _ in range(clients)]
    time.sleep(silence)
    full = server.rss()
    gone = select.poll()
    for client in held:
        gone.register(client.fileno(), select.POLLRDHUP)
    closed = len(gone.poll(0))
    for client in held:
        client.close()
    if closed:
        raise RuntimeError(f"{server.name} closed {closed} of {clients} clients that it was to keep")
    return (full - empty) / clients


def table(found: dict[str, Any]) -> str:
    """A row per server."""
    rows = []
    for name, each in found["results"].items():
        about = KINDS[name].about
        shown = f"**{about}**" if name.startswith("ours") else about
        rows.append([shown, *(figure(each.get(measure)) for measure in MEASURES)])
    said = f"{found['clients']:,} clients, {found['tls_clients']:,} with TLS."
    said += "".join(f" NOT RUN: {name}: {why}." for name, why in found["not_run"].items())
    return markdown(["bytes per client", *MEASURES.values()], rows) + f"\n\n{said}"
