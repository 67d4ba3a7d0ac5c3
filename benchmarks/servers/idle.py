"""What a client costs that does nothing: after a burst, connected, after half a request
head, and idle behind TLS.

*Every client is still there afterwards*: a server that closed some of them would look
cheap, and is an error here instead. Each figure is of a server of its own: resident
bytes of all its processes, per client.

- `burst`: all come at once, as after a deploy or in a reconnect storm; each asks once
  and falls silent.
- `one more`: the same, when as many are there already: what a server needs once, and
  what a burst leaves unused, are no share of it.
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
from .process import BUSY, KINDS, PATIENCE, REQUEST, Server, not_here, running

SERVERS = (
    *("ours-parked", "nginx", "hypercorn", "guarded-hypercorn", "uvicorn", "guarded"),
    *("httptools", "guarded-httptools", "aiohttp", "guarded-aiohttp", "asyncio"),
)
WARM_UP = 5
"""Requests on each of `BUSY` connections before anything is measured."""
IN_FLIGHT = 256
"""Clients that wait for the kernel or for their answer: fewer than any server's backlog
holds.
"""
MEASURES = {
    "few": "after a burst of few",
    "burst": "after a burst",
    "one more": "one more",
    "silent": "silent",
    "half a head": "half a head",
    "tls": "idle, TLS",
}
Come = Callable[[Server, int], list[socket.socket]]
"""Brings so many clients."""


def run(scale: Scale, note: Note, only: Sequence[str] = SERVERS) -> dict[str, Any]:
    """`results[server][measure]`: bytes per client, `few` as `burst` of only
    `few_clients`; `not_run`: what cannot be run here, and why.

    Raises:
        RuntimeError: A server does not answer correctly, or does not keep its clients.
    """
    clients, tls_clients = by_scale(scale, (60, 20), (500, 200), (4000, 1000))
    few_clients = by_scale(scale, 20, 200, 1000)
    silence = by_scale(scale, 0.3, 2.0, 5.0)
    if 2 * clients > (most := raise_descriptor_limit() - SPARE_DESCRIPTORS):
        raise RuntimeError(
            f"{2 * clients} clients are more than the {most} that a process's descriptors allow"
        )
    not_run = not_here(only)
    results: dict[str, dict[str, float]] = {name: {} for name in only if name not in not_run}
    for name, found in results.items():
        for measure, come in COMING.items():
            tls, count = measure == "tls", tls_clients if measure == "tls" else clients
            if not tls or KINDS[name].tls:
                note(f"{count:,} clients, {measure}: {name}")
                both = measure == "burst"
                with one(name, 2 * count if both else count, tls) as server:
                    held: list[socket.socket] = []
                    found[measure] = bytes_of(server, count, silence, come, held)
                    if both:
                        found["one more"] = bytes_of(server, count, silence, come, held)
                    close(server, held)
        note(f"{few_clients:,} clients, burst: {name}")
        with one(name, few_clients, tls=False) as server:
            held = []
            found["few"] = bytes_of(server, few_clients, silence, COMING["burst"], held)
            close(server, held)
    return {
        "clients": clients,
        "tls_clients": tls_clients,
        "few_clients": few_clients,
        "results": results,
        "not_run": not_run,
    }


@contextmanager
def one(name: str, clients: int, tls: bool) -> Iterator[Server]:
    """That server alone, warm: what it needs once is no connection's share."""
    with tempfile.TemporaryDirectory(prefix="reaper-idle-") as folder:
        shown = certificate(Path(folder)) if tls else None
        with running([name], clients + 2 * BUSY, Path(folder), shown) as servers:
            server = servers[name]
            warm = [server.dial() for _ in range(BUSY)]
            for _ in range(WARM_UP):
                server.ask(warm)
            for client in warm:
                client.close()
            time.sleep(1.0)  # while it tidies up after them
            yield server


def bytes_of(
    server: Server, clients: int, silence: float, come: Come, held: list[socket.socket]
) -> float:
    """What each of *clients* more takes when all have been silent for *silence* s; they
    are added to *held*.
    """
    before = server.rss()
    held += come(server, clients)
    time.sleep(silence)
    return (server.rss() - before) / clients


def close(server: Server, held: list[socket.socket]) -> None:
    """End the clients. RuntimeError: the server closed some before."""
    gone = select.poll()
    for client in held:
        gone.register(client.fileno(), select.POLLRDHUP)
    closed = len(gone.poll(0))
    for client in held:
        client.close()
    if closed:
        raise RuntimeError(
            f"{server.name} closed {closed} of {len(held)} clients that it was to keep"
        )


def at_once(said: bytes) -> Come:
    """Clients that come a backlog's worth at a time, and say *said* and nothing more;
    whole requests are answered.
    """

    def come(server: Server, clients: int) -> list[socket.socket]:
        held: list[socket.socket] = []
        while len(held) < clients:
            group = []
            for _ in range(min(IN_FLIGHT, clients - len(held))):
                client = socket.socket()
                client.settimeout(PATIENCE)
                # The port is chosen at connect, where those that linger in TIME_WAIT to
                # another server do not count.
                client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                client.bind(("127.0.2.1", 0))
                client.connect(
                    ("127.0.0.1", server.port)
                )  # the kernel accepts into the backlog: this does not wait
                group.append(client)
            if said == REQUEST:
                server.ask(group)
            else:
                for client in group:
                    client.sendall(said)
            held += group
        return held

    return come


def one_by_one(server: Server, clients: int) -> list[socket.socket]:
    """Clients that ask once each: a handshake is waited for."""
    held = []
    for _ in range(clients):
        held.append(server.dial())
        server.ask(held[-1:])
    return held


COMING: dict[str, Come] = {
    "burst": at_once(REQUEST),
    "silent": at_once(b""),
    "half a head": at_once(REQUEST[:-2]),
    "tls": one_by_one,
}


def table(found: dict[str, Any]) -> str:
    """A row per server."""
    rows = []
    for name, each in found["results"].items():
        about = KINDS[name].about
        shown = f"**{about}**" if name.startswith("ours") else about
        rows.append([shown, *(figure(each.get(measure)) for measure in MEASURES)])
    said = (
        f"{found['clients']:,} clients, {found.get('few_clients', 0):,} in the burst of few, "
        f"{found['tls_clients']:,} with TLS. *One more*: the same again, beside those of the burst. "
        "A guard holds, for each connection, what it waits for, a lease and its places in two maps, and "
        "a weak reference that tells of the end: a server that keeps all of its own needs more by that. "
        "What uvicorn keeps is dropped while its client rests."
    )
    said += "".join(f" NOT RUN: {name}: {why}." for name, why in found["not_run"].items())
    return markdown(["bytes per client", *MEASURES.values()], rows) + f"\n\n{said}"
