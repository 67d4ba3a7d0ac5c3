"""`python -m scripts.guests.lagging [--only COLUMN] [--stack NAME]`: real stacks of
HTTP/2 whose users lag, at each guest over TLS, stock and guarded.

One rule: *who pauses, and then takes everything, loses nothing*. Each stack asks for
ten downloads of 4 MB on one connection, beside a slow request; its user takes the first
byte after three seconds, in pieces of 4 KiB. Both servers are asked at once, by all
stacks.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from reaper.config.flags import Parser

from ...serving import DidNotStart
from ...tools import certificate
from ..columns import COLUMNS, LIMITS, PHASES, Column
from ..trial import pair

HERE = Path(__file__).parent
DOWNLOADS, BYTES, LATE, PIECE = 10, 4 << 20, 3, 4096
SETTINGS = LIMITS | {f"REAPER_TIMEOUTS_{phase}": "10s" for phase in PHASES}
"""No limit is as short as a user lags."""
PATIENCE = 90.0
"""Seconds for a stack: on a busy machine 40 MB in small pieces take long."""


class Stack(NamedTuple):
    """How it is started; `{folder}` is where what has to be compiled lies, `{port}`
    where the server listens.
    """

    command: str
    tool: str
    package: str
    build: str = ""


_HERE, _PYTHON = shlex.quote(str(HERE)), shlex.quote(sys.executable)
_LOAD = f"{{port}} {DOWNLOADS} {BYTES} {LATE} {PIECE}"
_LESS = f"{{port}} {DOWNLOADS} {BYTES // 4} {LATE} {PIECE}"
"""For those that are slow at it: more than enough updates at once, all the same."""
_GO = f"go build -o {{folder}}/stack {_HERE}/stack.go"
STACKS = {
    "Go, net/http": Stack(f"{{folder}}/stack client {_LOAD}", "go", "golang", _GO),
    "Go, reverse proxy": Stack(f"{{folder}}/stack proxy {_LOAD}", "go", "golang", _GO),
    "Java, HttpClient": Stack(
        f"java {_HERE}/Stack.java {_LESS}", "java", "openjdk-17-jdk-headless"
    ),
    "Node, http2": Stack(f"node {_HERE}/stack.mjs {_LESS}", "node", "nodejs"),
    "nghttp": Stack(f"{_PYTHON} -m {__package__}.by_nghttp {_LESS}", "nghttp", "nghttp2-client"),
}
"""The stacks, by name. gRPC is not among them: it needs an application that ends its
answers by trailers, which no guest's sends. That it sends a PING for each DATA that
comes is a kind of clients of the kit.
"""
_PEM = "--certfile {folder}/cert.pem --keyfile {folder}/key.pem"
_SSL = "--ssl-certfile {folder}/cert.pem --ssl-keyfile {folder}/key.pem"


def _over_tls(column: Column) -> Column:
    """*column* over TLS, where ALPN says HTTP/2."""
    words = _SSL if column.name.startswith("uvicorn") else _PEM
    return replace(column, stock=f"{column.stock} {words}", guarded=f"{column.guarded} {words}")


GUESTS = {name: _over_tls(each) for name, each in COLUMNS.items() if "http2" in each.speaks}
"""The guests that speak HTTP/2, by name."""


class Found(NamedTuple):
    """What a stack lost of the requests that it made, and what it said of them."""

    asked: int
    lost: int
    said: str


def _words(command: str, folder: Path) -> list[str]:
    """The words of *command*; `{folder}` is that."""
    return [word.replace("{folder}", str(folder)) for word in shlex.split(command)]


def built(names: Iterable[str], folder: Path) -> dict[str, list[str]]:
    """The commands of the stacks *names* whose tools are here; says which are not."""
    ready, done = {}, set()
    for name in names:
        stack = STACKS[name]
        if shutil.which(stack.tool) is None:
            print(f"{name}: {stack.tool} is not installed ({stack.package})", file=sys.stderr)
            continue
        if stack.build and stack.build not in done:
            done.add(stack.build)
            subprocess.run(_words(stack.build, folder), check=True)
        ready[name] = _words(stack.command, folder)
    return ready


def tried(column: Column, stacks: dict[str, list[str]]) -> dict[str, tuple[Found, Found]]:
    """What each of *stacks* lost at *column*, of the stock server and of the guarded
    one. Raises DidNotStart.
    """
    with tempfile.TemporaryDirectory() as name:
        certificate(Path(name))
        with pair(column, Path(name), SETTINGS) as servers:
            ports = [server.port for server in servers]
            return asyncio.run(_all(stacks, ports))


async def _all(stacks: dict[str, list[str]], ports: list[int]) -> dict[str, tuple[Found, Found]]:
    found = await asyncio.gather(*(_at_both(words, ports) for words in stacks.values()))
    return dict(zip(stacks, found, strict=True))


async def _at_both(command: list[str], ports: list[int]) -> tuple[Found, Found]:
    stock, guarded = await asyncio.gather(*(_played(command, port) for port in ports))
    return stock, guarded


async def _played(command: list[str], port: int) -> Found:
    pipe = asyncio.subprocess.PIPE
    words = [word.replace("{port}", str(port)) for word in command]
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(PATIENCE):
            out, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return Found(DOWNLOADS + 1, DOWNLOADS + 1, f"does not end within {PATIENCE:g} s")
    said = errors.decode(errors="replace").strip()
    try:
        counts = json.loads(out)
    except ValueError:
        return Found(DOWNLOADS + 1, DOWNLOADS + 1, said or "says nothing")
    return Found(counts["asked"], counts["lost"], said)


def main() -> int:
    """Try them. Exit status: 0 no stack lost more of a guarded server than of the stock
    one, 1 one did, 2 bad arguments or a server that does not start.
    """
    parser = Parser(prog="python -m scripts.guests.lagging", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="COLUMN", choices=tuple(GUESTS), help="this guest alone")
    parser.add_argument("--stack", metavar="NAME", choices=tuple(STACKS), help="this stack alone")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        stacks = built([options.stack] if options.stack else STACKS, Path(folder))
        for name in [options.only] if options.only else GUESTS:
            try:
                found = tried(GUESTS[name], stacks)
            except DidNotStart as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 2
            for stack, (stock, guarded) in found.items():
                lost = f"lost {stock.lost} / {guarded.lost} of {guarded.asked}, stock / guarded"
                print(f"{name}: {stack}: {lost}", flush=True)
                if guarded.lost > stock.lost:
                    wrong += 1
                    print(f"  {guarded.said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
