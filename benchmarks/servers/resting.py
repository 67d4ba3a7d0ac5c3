"""What a client costs that does nothing: connected, after half a request head, and between two requests behind TLS.

    python -m benchmarks.servers.resting [--clients 4000] [--tls-clients 1000] [--only NAMES] [--json FILE]

One rule: *every client is still there afterwards*. A server that closed some of them would look cheap, and is an error
here instead. Each figure is of a server of its own: resident bytes of all its processes, per client.

- `silent`: it has connected, and said nothing.
- `half a head`: it has sent all of a request but the last line.
- `tls idle`: it has asked once behind TLS, and is kept. `sessions` is what OpenSSL and Python's `ssl` need alone.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..common import machine
from .burst import one
from .command import at_least, chosen, flags, room_for, show
from .process import ALL_KINDS, REQUEST, SESSIONS, Certificate, Server, without_their_tool

CLIENTS, TLS_CLIENTS = 4000, 1000
SERVERS = ("ours-parked", "ours", "nginx", "hypercorn", "uvicorn", "aiohttp", SESSIONS)
SILENCE = 4.0
"""Seconds from the last byte to the look at memory."""
SAID = {"silent": b"", "half a head": REQUEST[:-2]}
MEASURES = (*SAID, "tls idle")


def run(
    clients: int,
    tls_clients: int,
    note: Callable[[str], None],
    *,
    only: Sequence[str] = SERVERS,
    silence: float = SILENCE,
) -> dict[str, Any]:
    """`results[server][measure]`: bytes per client; a server whose tool is missing is named under `not_run`.

    Raises:
        RuntimeError: A server does not answer correctly, or does not keep its clients.
    """
    room_for(max(clients, tls_clients), "clients")
    not_run = without_their_tool(only)
    results: dict[str, dict[str, float]] = {name: {} for name in only if name not in not_run}
    for name, found in results.items():
        for number, (measure, said) in enumerate(SAID.items()):
            if name == SESSIONS:
                continue
            note(f"{clients:,} clients, {measure}: {name}")
            with tempfile.TemporaryDirectory(prefix="reaper-resting-") as folder, one(name, clients, folder) as server:
                found[measure] = _bytes_of(server, clients, silence, partial(_dial, said, number))
        if ALL_KINDS[name].tls is not None:
            note(f"{tls_clients:,} clients, TLS: {name}")
            with tempfile.TemporaryDirectory(prefix="reaper-resting-") as folder:
                tls = Certificate.made(Path(folder))
                with one(name, tls_clients, folder, tls) as server:
                    found["tls idle"] = _bytes_of(server, tls_clients, silence, _ask)
    return {
        "machine": machine(),
        "clients": clients,
        "tls_clients": tls_clients,
        "results": results,
        "not_run": not_run,
    }


def _dial(said: bytes, number: int, server: Server) -> socket.socket:
    client = socket.socket()
    client.bind((f"127.0.4.{number + 1}", 0))
    client.connect(("127.0.0.1", server.port))
    if said:
        client.sendall(said)
    return client


def _ask(server: Server) -> socket.socket:
    client = server.dial()
    server.ask([client])
    return client


def _bytes_of(server: Server, clients: int, silence: float, dial: Callable[[Server], socket.socket]) -> float:
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


def table(report: dict[str, Any]) -> str:
    """One line per server, and ours / theirs with TLS."""
    results = report["results"]
    lines = [f"{'bytes per client':18}" + "".join(f"{measure:>14}" for measure in MEASURES)]
    for name, found in results.items():
        row = (f"{found[measure]:14,.0f}" if measure in found else f"{'-':>14}" for measure in MEASURES)
        lines.append(f"{name:18}" + "".join(row))
    ours = results.get("ours-parked", {}).get("tls idle")
    if ours is not None:
        for name, found in results.items():
            if name != "ours-parked" and found.get("tls idle", 0) > 0:
                lines.append(f"tls idle, ours-parked / {name}: {ours / found['tls idle']:.2f}")
    lines += [f"NOT RUN: {name}: {why}" for name, why in report["not_run"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write everything if asked. Exit status 0; 1 if it cannot; 2 for bad
    arguments; 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.servers.resting", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--clients", type=int, default=CLIENTS, metavar="N", help=f"default {CLIENTS}")
    parser.add_argument("--tls-clients", type=int, default=TLS_CLIENTS, metavar="N", help=f"default {TLS_CLIENTS}")
    flags(parser, SERVERS, SERVERS)
    options = parser.parse_args(arguments)
    only = chosen(parser, options.only, SERVERS)
    clients, tls_clients = options.clients, options.tls_clients
    at_least(parser, 1, {"--clients": clients, "--tls-clients": tls_clients})
    return show(lambda note: run(clients, tls_clients, note, only=only), table, options.json)


if __name__ == "__main__":
    sys.exit(main())
