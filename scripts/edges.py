"""Volleys of requests at the edge of a server's keep-alive, behind those proxies of
proxies.toml whose pools outlive it.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadgen.clients import Speech
from loadgen.race import race
from loadgen.units import Target

from .proxies import command_of
from .serving import free_port, serving

PROXIES = ("nginx", "haproxy", "apache2", "varnishd")


@contextmanager
def proxy(name: str, backend: int, *, gives_up: bool = False) -> Iterator[int]:
    """The port of a proxy before the port *backend*. Raises Missing: it is not
    installed.

    Args:
        gives_up: Whether its pool gives an idle connection up within 2 s.
    """
    tables = tomllib.loads(Path(__file__).with_name("proxies.toml").read_text(encoding="utf-8"))
    (server,) = (each for each in tables["server"] if each["name"] == name)
    port = free_port()
    idle = server["idle"] if gives_up else ""
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(
            server, {"port": port, "backend": backend, "dir": folder, "idle": idle}
        )
        with serving(command, Path(folder) / "log", port=port):
            yield port


async def volley(ports: Sequence[int], rest: float, clients: int) -> list[tuple[int, int]]:
    """So many *clients* POST at once through the proxy at each of *ports*, and again
    *rest* seconds after the answer, when it holds a connection for each: how many of
    the second POSTs were lost, and how many were sent, of each port.

    Were they to come one after another, a pool would send most of them on the few
    connections that the first of them have just used.

    Raises:
        RuntimeError: no first one is answered.
    """
    found = await asyncio.gather(
        *(
            race(
                *(Target("127.0.0.1", port, socket.AF_INET), Speech(), rest, clients),
                spread=0.0,
                clients=clients,
                anew=True,
                method="POST",
            )
            for port in ports
        )
    )
    for port, each in zip(ports, found, strict=True):
        if not each.tried:
            raise RuntimeError(f"no POST through port {port} was answered")
    return [(each.lost.total(), each.tried) for each in found]
