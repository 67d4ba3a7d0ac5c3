"""A keep-alive race, planted: uvicorn behind a slow wire, a proxy in front of it, and a
client that asks again just before the proxy can know that uvicorn has closed.

    python -m scripts.races --document

plants it with nginx and HAProxy, and compares what the client lost with what `losses`
finds in the proxy's log. Minutes, most of them rests.

The wire delays each direction, so that uvicorn's close and the next request cross on
it. A client that rests for less than the keep-alive minus a round trip meets no race.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from reaper.html.units import spoken
from reaper.pipeline.engine import embedded, use
from reaper.pipeline.losses.formats import KNOWN
from reaper.pipeline.losses.run import AT_ONCE_S, losses

from . import marked
from .serving import free_port, serving
from .tools import nginx, tool

PAGE = Path(__file__).parent.parent / "docs" / "pipeline.md"
BEGIN = "<!-- races: written by `python -m scripts.races --document`, do not edit -->"
END = "<!-- end of races -->"

DELAY = 0.3
"""Seconds of the wire, each way."""
KEEP_ALIVE = 5
"""Seconds of uvicorn's keep-alive, its default."""
REQUESTS = 12
IN_TIME, IN_A_RACE = 2.0, KEEP_ALIVE - DELAY
"""How long a client rests to meet no race, or one."""

NGINX = """log_format losses {form};
upstream app {{ server 127.0.0.1:{backend}; keepalive 8; }}
server {{
    listen 127.0.0.1:{port}; access_log "{log}" losses;
    proxy_http_version 1.1; proxy_set_header Connection "";
    location / {{ proxy_pass http://app; }}
    location /gone {{ proxy_pass http://127.0.0.1:{nobody}; }}
}}"""
HAPROXY = """global
  log 127.0.0.1:{log} local0
defaults
  mode http
  option httplog
  log global
  timeout client 30s
  timeout server 10s
  timeout connect 5s
frontend web
  bind 127.0.0.1:{port}
  use_backend nobody if {{ path /gone }}
  default_backend app
backend nobody
  server s2 127.0.0.1:{nobody}
backend app
  http-reuse always
  server s1 127.0.0.1:{backend}
"""

APP = """
import asyncio, os
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await receive()
    if scope["path"] == "/die":
        await asyncio.sleep(1.5)
        scope["extensions"]["tls"]
    status = 500 if scope["path"] == "/500" else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


@contextmanager
def wire(port: int, delay: float = DELAY) -> Iterator[int]:
    """The port of a wire to *port*, on which all takes *delay* seconds each way."""
    ours, stop, ready = free_port(), asyncio.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    ends: set[asyncio.StreamWriter] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                data = b""
            loops[0].call_later(delay, deliver, writer, data)
            if not data:
                return

    def deliver(writer: asyncio.StreamWriter, data: bytes) -> None:
        if data:
            writer.write(data)
        else:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.add(writer)
        try:
            theirs = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        ends.add(theirs[1])
        await asyncio.gather(pass_on(reader, theirs[1]), pass_on(theirs[0], writer))

    async def served() -> None:
        loops.append(asyncio.get_running_loop())
        server = await asyncio.start_server(serve, "127.0.0.1", ours)
        ready.set()
        await stop.wait()
        server.close()
        for writer in ends:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # each is told that it is over

    thread = threading.Thread(target=asyncio.run, args=(served(),), daemon=True)
    thread.start()
    if not ready.wait(20):
        raise RuntimeError(f"the wire to {port} does not listen")
    try:
        yield ours
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


@contextmanager
def uvicorn(folder: Path, keep_alive: int) -> Iterator[int]:
    """The port of uvicorn. *keep_alive*: seconds, at least 1."""
    (folder / "raced.py").write_text(APP)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "raced:app", "--app-dir", str(folder)]
    command += ["--port", str(port), "--timeout-keep-alive", str(keep_alive), "--no-access-log"]
    with serving(command, folder / "uvicorn.log", port=port):
        yield port


def asked(
    port: int,
    rests: list[float],
    path: str = "/",
    *,
    afresh: bool = False,
    late: list[float] | None = None,
) -> int:
    """POST after each of *rests*, on one connection as long as it lasts, or each on a
    connection of its own (*afresh*). Returns how many were lost: answered by 502, or
    not at all. To *late* the seconds are added of those that took longer than a race
    does: the machine paused, and a log tells them from no server that died at work.
    """
    headers = {"Connection": "close"} if afresh else {}
    lost, client = 0, http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for rest in rests:
        time.sleep(rest)
        before, began = lost, time.monotonic()
        try:
            client.request("POST", path, b"x", headers)
            answer = client.getresponse()
            answer.read()
            lost += answer.status == 502
        except (OSError, http.client.HTTPException):
            client.close()
            lost += 1
        took = time.monotonic() - began
        if late is not None and lost > before and took > AT_ONCE_S:
            late.append(took)
    client.close()
    return lost


@contextmanager
def datagrams() -> Iterator[tuple[int, list[str]]]:
    """A port to which a proxy may send its log, and the lines that have come."""
    lines: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))

        def listen() -> None:
            while (data := heard.recv(1 << 16)) != b"end":
                lines.append(data.decode())

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        port = heard.getsockname()[1]
        try:
            yield port, lines
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as said:
                said.sendto(b"end", ("127.0.0.1", port))
            thread.join()


def until(what: Callable[[], bool], patience: float = 30.0) -> None:
    """Wait for *what*; no longer than *patience*, seconds."""
    end = time.monotonic() + patience
    while not what() and time.monotonic() < end:
        time.sleep(0.05)


Planted = tuple[Path, int, int]
"""The proxy's log, and how many requests its client made and lost."""


def by_nginx(folder: Path, backend: int, rests: Sequence[float], path: str) -> Planted:
    """The requests after *rests* to *path*, through nginx."""
    log, port = folder / "losses.log", free_port()
    form = KNOWN["nginx"].how.split(" losses ", 1)[1].split(";")[0]
    config = NGINX.format(form=form, backend=backend, port=port, log=log, nobody=free_port())
    with serving(nginx(folder, config), folder / "nginx.out", port=port):
        lost = asked(port, [*rests], path)
        until(lambda: log.exists() and log.read_text().count("\n") == len(rests))
    return log, len(rests), lost


def by_haproxy(folder: Path, backend: int, rests: Sequence[float], path: str) -> Planted:
    """The same through HAProxy, each on a client's connection of its own."""
    log, port = folder / "log", free_port()
    config, command = folder / "haproxy.cfg", tool("haproxy")
    with datagrams() as (heard, lines):
        config.write_text(HAPROXY.format(log=heard, backend=backend, port=port, nobody=free_port()))
        with serving([command, "-f", str(config), "-db"], folder / "haproxy.out", port=port):
            lost = asked(port, [*rests], path, afresh=True)
            until(lambda: sum("POST" in line for line in lines) == len(rests))
    log.write_text("".join(lines))
    return log, len(rests), lost


PROXIES = {"nginx": by_nginx, "haproxy": by_haproxy}
WORLDS = {
    f"a race: rests of {IN_A_RACE:g} s": ([0.0, *[IN_A_RACE] * (REQUESTS - 1)], "/"),
    f"none: rests of {IN_TIME:g} s": ([0.0, *[IN_TIME] * (REQUESTS - 1)], "/"),
    "none: nobody listens": ([0.0] * REQUESTS, "/gone"),
}


def version(name: str) -> str:
    """How the proxy *name* calls itself."""
    done = subprocess.run([tool(name), "-v"], capture_output=True, text=True, check=True)
    found = re.search(r"(nginx|HAProxy)[/ version]*([0-9]+\.[0-9]+)", done.stdout + done.stderr)
    return " ".join(found.groups()) if found else name


def row(proxy: str, world: str, failed: int, found: dict[str, Any]) -> str:
    """A line of the table. *failed*: at the client."""
    (entry,) = found["upstreams"].values()
    silences = entry["silence_s"]
    shown = f"{silences[0]:.2f} to {silences[1]:.2f} s" if silences else "-"
    advised = found["keep_alive_s"]
    cells = [proxy, world, failed, entry["lost"], entry["untold"]]
    cells += [entry["failed_otherwise"], shown, spoken(advised) if advised else "-"]
    return "| " + " | ".join(map(str, cells)) + " |"


def table(note: Callable[[str], None]) -> str:
    """Plant every world with every proxy, and say what became of it."""
    heads = ["proxy", "planted", "502 or none at the client", "lost to an idle close"]
    heads += ["untold", "failed in another way", "after silences of", "`keep_alive` that ends it"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = stack.enter_context(wire(stack.enter_context(uvicorn(folder, KEEP_ALIVE))))
        use("embedded")
        session: Any = stack.enter_context(embedded.open_session())
        for name, through in PROXIES.items():
            for number, (world, (rests, path)) in enumerate(WORLDS.items()):
                place = folder / f"{name}{number}"
                place.mkdir()
                log, requests, failed = through(place, backend, rests, path)
                assert requests == REQUESTS
                lines.append(row(version(name), world, failed, losses(session, name, [log])))
                note(lines[-1])
    said = (
        f"{REQUESTS} requests in each row. uvicorn closes idle connections after {KEEP_ALIVE} s,"
        f" behind a wire of {DELAY:g} s each way; columns from the fourth on are what `losses` says"
        " of the proxy's log."
    )
    return "\n".join([said, "", *lines])


def main(argv: list[str] | None = None) -> int:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(prog="python -m scripts.races", description=__doc__)
    parser.add_argument("--document", action="store_true", help=f"write it into {PAGE.name}")
    arguments = parser.parse_args(argv)
    found = table(lambda line: print(line, file=sys.stderr, flush=True))
    marked.show(PAGE, BEGIN, END, found, document=arguments.document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
