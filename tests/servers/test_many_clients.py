"""The limits per client address of docs/howto/many-clients.md, as it has them, beside uvicorn."""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from scripts.serving import free_port, serving
from scripts.tools import nginx
from tests.helpers.server_process import PATIENCE, ROOT, installed

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "howto" / "many-clients.md"
LIMIT = 100
MORE = 50
DEFAULTS = """
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
"""


def connected(source: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(source, 0))


def command(name: str, folder: Path, front: int, back: int) -> list[str]:
    """The command of a proxy with the configuration of the page."""
    installed(name)
    language = "text" if name == "haproxy" else name
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{front}").replace(
        "127.0.0.1:8000", f"127.0.0.1:{back}"
    )
    if name == "nginx":
        return nginx(folder, text)
    (folder / "haproxy.conf").write_text(DEFAULTS + text)
    return [name, "-f", str(folder / "haproxy.conf")]


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_client_with_too_many_connections_is_refused_and_others_are_answered(
    tmp_path: Path, name: str
) -> None:
    front, back = free_port(), free_port()
    words = "uvicorn tests.helpers.asgi:application --http reaper.uvicorn:HttpTools"
    words += " --timeout-graceful-shutdown 1 --port"
    app = [sys.executable, "-m", *words.split(), str(back)]
    proxy = command(name, tmp_path, front, back)
    with (
        serving(app, tmp_path / "app", port=back, environment=dict(os.environ)),
        serving(proxy, tmp_path / "proxy", port=front),
        ExitStack() as held,
    ):
        refused = 0
        greedy = []
        for _ in range(LIMIT + MORE):
            try:
                client = held.enter_context(connected("127.0.0.2", front))
                client.sendall(b"GET /slow?60 HTTP/1.1\r\nhost: x\r\n\r\n")
                greedy.append(client)
            except ConnectionError:
                refused += 1
        # The last ones have been met by the limit, too, once another address has been answered.
        for number in range(1, 6):
            with connected(f"127.0.1.{number}", front) as honest:
                honest.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                assert honest.recv(1000).startswith(b"HTTP/1.1 200 ")
        for client in greedy:
            client.setblocking(False)
            try:
                refused += not client.recv(1000).startswith(b"HTTP/1.1 200 ")
            except BlockingIOError:
                pass
            except ConnectionError:
                refused += 1
        assert refused == MORE
