"""nginx and HAProxy in front of a server, with a read timeout of so many seconds, or
with their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..tools import nginx, tool

NGINX = """
    {reads} proxy_http_version 1.1; proxy_set_header Connection "";
    server {{ listen {host}:{port} backlog=4096; location / {{
        proxy_pass http://127.0.0.1:{backend}; }} }}
"""
HAPROXY = """
global
    maxconn {most}
defaults
    mode http
    {reads}
frontend f
    bind {host}:{port} backlog 4096
    default_backend b
backend b
    server s 127.0.0.1:{backend}
"""


SHIPPED = Path("/etc/haproxy/haproxy.cfg")
"""HAProxy has no read timeout of its own; those that Debian's package comes with are
here.
"""


def _nginx(folder: Path, most: int, given: dict[str, str | int]) -> list[str]:
    reads = f"proxy_read_timeout {given['read']};" if given["read"] else ""
    return nginx(folder, NGINX.format(**given, reads=reads), most=3 * most + 100)


def _haproxy(folder: Path, most: int, given: dict[str, str | int]) -> list[str]:
    program, config = tool("haproxy"), folder / "haproxy.cfg"
    reads = ["timeout connect 5s", *(f"timeout {side} {given['read']}" for side in SIDES)]
    if not given["read"]:
        shipped = SHIPPED.read_text(encoding="utf-8")
        reads = re.findall(
            rf"^[ \t]+(timeout\s+(?:connect|{'|'.join(SIDES)})\s.*)$", shipped, re.MULTILINE
        )
    text = HAPROXY.format(**given, reads="\n    ".join(reads), most=2 * most + 50)
    config.write_text(text)
    return [program, "-f", str(config)]


SIDES = ("client", "server")


_COMMANDS: dict[str, Callable[[Path, int, dict[str, str | int]], list[str]]] = {
    "nginx": _nginx,
    "HAProxy": _haproxy,
}
PROXIES = tuple(_COMMANDS)
"""The proxies that can be started."""


def command_of(
    proxy: str,
    folder: Path,
    port: int,
    backend: int,
    read: str,
    *,
    most: int,
    host: str = "127.0.0.1",
) -> list[str]:
    """The command of *proxy*, which listens on *port* and asks the server at *backend*.

    Args:
        folder: Its files are written there.
        read: Its read timeout, in its own words, which are the same for both: `3s`;
            empty: as it comes.
        most: The most clients it has at a time.
    Raises:
        Missing: it is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given: dict[str, str | int] = {"host": host, "port": port, "backend": backend, "read": read}
    return _COMMANDS[proxy](folder, most, given)
