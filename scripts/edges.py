"""Pairs of requests at the edge of a server's keep-alive, behind those proxies of
proxies.toml whose pools outlive it.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.clients import Speech
from loadgen.race import race
from loadgen.units import Target

from .proxies import command_of
from .serving import free_port, serving

PROXIES = ("nginx", "haproxy", "apache2", "varnishd")


@contextmanager
def proxy(name: str, backend: int) -> Iterator[int]:
    """The port of a proxy before the port *backend*. Raises Missing: it is not
    installed.
    """
    tables = tomllib.loads(Path(__file__).with_name("proxies.toml").read_text(encoding="utf-8"))
    (server,) = (each for each in tables["server"] if each["name"] == name)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(server, {"port": port, "backend": backend, "dir": folder})
        with serving(command, Path(folder) / "log", port=port):
            yield port


def pairs_lost(port: int, middle: float, spread: float, pairs: int, seed: int) -> Counter[str]:
    """*pairs* of POSTs through the proxy at *port*, all at once; each client's second
    one goes out between *middle* - *spread* and *middle* + *spread* seconds after its
    first was answered. `lost`, and `tried`.

    Raises:
        RuntimeError: no first one is answered.
    """
    target, speech = Target("127.0.0.1", port, socket.AF_INET), Speech()
    raced = race(
        *(target, speech, middle, pairs),
        spread=spread,
        clients=pairs,
        anew=True,
        method="POST",
        seed=seed,
    )
    found = asyncio.run(raced)
    if not found.tried:
        raise RuntimeError(f"no POST through port {port} was answered")
    return Counter(lost=found.lost.total(), tried=found.tried)
