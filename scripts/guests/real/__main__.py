"""`python -m scripts.guests.real [--only COLUMN] [--posts 20] [--document]`: real
clients that post near the keep-alive edge, 20 ms from the server, stock and guarded.

One rule: *both servers close after two seconds*, so that a client meets the same edge.
Each client posts, rests between 1.7 and 3.2 seconds, and posts again; the rests of both
are the same. What it lost it could not have sent twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from reaper.config.flags import Parser

from ... import marked
from ...provenance import machine
from ...serving import ROOT, DidNotStart
from ..columns import COLUMNS, LIMITS, Column
from ..trial import pair

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "guests.md"
KEPT = ROOT / "out" / "guests" / "clients.json"
BEGIN = "<!-- clients: written by `python -m scripts.guests.real --document`, do not edit -->"
END = "<!-- end of clients -->"
KEEP_ALIVE = 2
SHORTEST, LONGEST = 1.7, 3.2
DISTANCE = 0.02
"""Seconds in each direction."""
OWN = {
    "uvicorn, httptools": "--timeout-keep-alive 2",
    "uvicorn, h11": "--timeout-keep-alive 2",
    "hypercorn": "--keep-alive 2",
    "gunicorn, asgi": "--keep-alive 2",
    "gunicorn, threads": "--keep-alive 2",
}
"""The guests, and how the stock one is told to close after two seconds."""
SETTINGS = (
    LIMITS
    | {f"REAPER_TIMEOUTS_{name}": "30s" for name in ("FIRST_BYTE", "HEADERS", "BODY", "WRITE")}
    | {"REAPER_TIMEOUTS_KEEP_ALIVE": f"{KEEP_ALIVE}s"}
)
_PYTHON = (sys.executable, "-m", "scripts.guests.real.clients")
CLIENTS: dict[str, tuple[str, ...]] = {
    "http.client": (*_PYTHON, "http_client"),
    "requests": (*_PYTHON, "requests"),
    "httpx": (*_PYTHON, "httpx"),
    "aiohttp": (*_PYTHON, "aiohttp"),
    "curl": (*_PYTHON, "curl"),
    "Node, http.Agent": ("node", str(HERE / "client.mjs"), "agent"),
    "Node, fetch (undici)": ("node", str(HERE / "client.mjs"), "fetch"),
    "Java, HttpClient": (
        "java",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "{folder}/Client.java",
    ),
    "Go, http.Client": ("{folder}/client",),
}
"""The commands; `{folder}` is where what has to be compiled lies."""
OPTIONAL = ("curl",)
"""Those that need a package which nothing else here needs: pycurl."""
HONOURS = ("Node, http.Agent", "Node, fetch (undici)")
"""Those that read `Keep-Alive: timeout=`."""


def main() -> int:
    """Measure. Exit status: 0 no client lost more of the guarded servers in all than of
    the stock ones, 1 one did, 2 bad arguments or a server that does not start.
    """
    parser = Parser(prog="python -m scripts.guests.real", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="COLUMN", choices=tuple(OWN), help="this guest alone")
    parser.add_argument("--posts", type=int, default=20, help="of each client; default 20")
    parser.add_argument("--document", action="store_true", help=f"keep it, and write {PAGE.name}")
    options = parser.parse_args()
    if options.posts < 1:
        parser.error(f"--posts {options.posts}: must be 1 or more")
    if options.document and options.only:
        parser.error("--document: needs every guest; leave out --only")
    report: dict[str, Any] = {"about": machine(), "posts": options.posts, "lost": {}}
    with tempfile.TemporaryDirectory() as folder:
        clients = compiled(Path(folder))
        for name in [options.only] if options.only else OWN:
            try:
                found = tried(COLUMNS[name], OWN[name], clients, options.posts)
            except DidNotStart as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 2
            report["lost"][name] = found
            print(f"{name}: {json.dumps(found)}", flush=True)
    report["about"]["load_after"] = os.getloadavg()[0]
    if options.document:
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(json.dumps(report, indent=1) + "\n")
        document(report)
    stock, guarded = summed(report)
    print(f"lost of the stock servers {stock}, of the guarded ones {guarded}")
    return 1 if guarded > stock else 0


def compiled(folder: Path) -> dict[str, tuple[str, ...]]:
    """The commands of the clients whose tools are here; says which are not."""
    ready = {}
    for name, command in CLIENTS.items():
        tool = {"Go, http.Client": "go", "Java, HttpClient": "java"}.get(name, command[0])
        if shutil.which(tool) is None:
            print(f"{name}: {tool} is not installed", file=sys.stderr)
            continue
        if name == "curl" and find_spec("pycurl") is None:
            print(f"{name}: pycurl is not installed", file=sys.stderr)
            continue
        ready[name] = tuple(word.format(folder=folder) for word in command)
    shutil.copy(HERE / "Client.java", folder)
    if "Go, http.Client" in ready:
        build = ["go", "build", "-o", str(folder / "client"), str(HERE / "client.go")]
        if os.spawnvp(os.P_WAIT, "go", build):
            del ready["Go, http.Client"]
    return ready


def tried(
    column: Column, own: str, clients: dict[str, tuple[str, ...]], posts: int
) -> dict[str, dict[str, list[int]]]:
    """Of each client: asked and lost, of the stock server and of the guarded one."""
    told = Column(column.name, f"{column.stock} {own}", column.guarded, column.speaks)
    with tempfile.TemporaryDirectory() as folder, pair(told, Path(folder), SETTINGS) as servers:
        return asyncio.run(_played([server.port for server in servers], clients, posts))


async def _played(
    ports: list[int], clients: dict[str, tuple[str, ...]], posts: int
) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {name: {} for name in clients}

    async def play(name: str, how: str, port: int) -> None:
        random = Random(name)  # both servers get the same rests
        rests = ",".join(f"{random.uniform(SHORTEST, LONGEST):.3f}" for _ in range(posts))
        async with distant(port) as far:
            process = await asyncio.create_subprocess_exec(
                *clients[name], str(far), rests, stdout=asyncio.subprocess.PIPE
            )
            said, _ = await process.communicate()
        one = json.loads(said)
        found[name][how] = [one["asked"], one["lost"]]

    async with asyncio.TaskGroup() as tasks:
        for name in clients:
            for how, port in zip(("stock", "guarded"), ports, strict=True):
                tasks.create_task(play(name, how, port))
    return found


@asynccontextmanager
async def distant(port: int) -> AsyncIterator[int]:
    """A port at which the server of *port* is `DISTANCE` seconds away in each
    direction.
    """
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await reader.read(65536):
                loop.call_later(DISTANCE, writer.write, data)
        await asyncio.sleep(DISTANCE)
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, back))
        for pair_of in ((reader, back), (there, writer)):
            task = asyncio.create_task(carry(*pair_of))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in writers:
            each.transport.abort()
        await asyncio.sleep(DISTANCE)  # for what they have yet to say of their end


def summed(report: dict[str, Any]) -> tuple[int, int]:
    """How many were lost in all, of the stock servers and of the guarded ones."""
    each = [one for found in report["lost"].values() for one in found.values()]
    return sum(one["stock"][1] for one in each), sum(one["guarded"][1] for one in each)


def table(report: dict[str, Any]) -> str:
    """What the page shows of *report*: lost of the stock server, and of the guarded
    one.
    """
    about, lost = report["about"], report["lost"]
    lines = [
        f"Commit {about['commit'][:12]}, {about['date']}, {about['cpus']} cores, {about['python']},"
    ]
    lines[0] += f" load {about['load_before']:.0f} to {about['load_after']:.0f}."
    lines[0] += f" {report['posts'] + 1} posts of each client; a cell says lost, stock / guarded."
    lines += ["", f"| client | {' | '.join(lost)} |", "|---|" + "---|" * len(lost)]
    for name in next(iter(lost.values())):
        cells = [
            f"{found[name]['stock'][1]} / {found[name]['guarded'][1]}" for found in lost.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    posts = sum(one["stock"][0] for found in lost.values() for one in found.values())
    stock, guarded = summed(report)
    kinder = {
        name: {client: one for client, one in found.items() if client in HONOURS}
        for name, found in lost.items()
    }
    theirs, mine = summed({"lost": kinder})
    lines.append("")
    lines.append(
        f"Of {posts:,} posts to each, the stock servers lost {stock} and the guarded ones {guarded};"
        f" of those, the clients that read the hint lost {theirs} and {mine}."
    )
    return "\n".join(lines)


def document(report: dict[str, Any]) -> None:
    """Write the table between the marks of the page. Raises SystemExit: it lacks
    one.
    """
    marked.write(PAGE, BEGIN, END, table(report))


if __name__ == "__main__":
    sys.exit(main())
