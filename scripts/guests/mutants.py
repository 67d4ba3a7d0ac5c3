"""`python -m scripts.guests.mutants [--only COLUMN] [--quick]`: break each of some
guards by one line, and see whether the kit is red.

The rule of this module: *a kit that is never red proves nothing*. Each mutant is what a
maintainer might write by mistake. It is made in a clone of the last commit, and its
guest is tried there with every kind of client.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from reaper.config.flags import Parser

from ..serving import ROOT


@dataclass(frozen=True)
class Mutant:
    """One line of a guard that is another.

    Attributes:
        column: The guest that has to be red.
        path: The file, below `reaper/`.
        before, after: What stands there once, and what the mutant has instead.
        why: What is wrong then.
        by: Words of the kinds of clients that see it; empty: any may.
    """

    column: str
    path: str
    before: str
    after: str
    why: str
    by: str = ""


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "uvicorn, httptools",
        "servers/uvicorn/http.py",
        "return not self.flow.read_paused and not self.cycle.waiting_for_100_continue",
        "return not self.flow.read_paused",
        "a client that waits for `100 Continue` is charged for the waiting",
    ),
    Mutant(
        "uvicorn, HTTP/2",
        "servers/http2/engine.py",
        "        for other in self._shared:\n",
        "        for other in ():\n",
        "bytes taken on one stream are no activity of those that wait for the same window",
    ),
    Mutant(
        "hypercorn",
        "servers/hypercorn/phases.py",
        "return Phase.BODY if reads(server) else Phase.IN_FLIGHT",
        "return Phase.BODY",
        "a body that the application has yet to take is waited for",
    ),
    Mutant(
        "gunicorn, asgi",
        "servers/gunicorn/asgi.py",
        "return Phase.BODY if waits and not receiver.expect_continue else Phase.IN_FLIGHT",
        "return Phase.BODY if waits else Phase.IN_FLIGHT",
        "a client that waits for `100 Continue` is charged for the waiting",
    ),
    Mutant(
        "gunicorn, threads",
        "servers/gunicorn/threads.py",
        "return Phase.BODY if wire.receiving else Phase.IN_FLIGHT",
        "return Phase.BODY",
        "a request that is answered is waited for as if more of it had to come",
    ),
    Mutant(
        "aiohttp, `run_app`",
        "servers/aiohttp/server.py",
        "return Phase.IN_FLIGHT if read else Phase.BODY",
        "return Phase.IN_FLIGHT",
        "half a body is waited for without a limit",
    ),
    Mutant(
        "sanic",
        "servers/sanic/phases.py",
        "return Phase.HEADERS if http.recv_buffer else Phase.KEEP_ALIVE",
        "return Phase.KEEP_ALIVE",
        "half a head in one segment with a request is none",
    ),
    Mutant(
        "tornado",
        "servers/tornado/phases.py",
        "return Phase.IN_FLIGHT if conn._read_finished else Phase.BODY",
        "return Phase.IN_FLIGHT",
        "half a body is waited for without a limit",
    ),
    Mutant(
        "uvicorn, h11",
        "servers/uvicorn/http.py",
        "return Phase.HEADERS if conn.trailing_data[0] else self._between()",
        "return self._between()",
        "half a head in one segment with a request is none",
    ),
    Mutant(
        "hypercorn, trio",
        "servers/hypercorn/trio.py",
        "        self.reading = True\n",
        "        self.reading = False\n",
        "half a body is waited for without a limit",
    ),
    Mutant(
        "hypercorn, HTTP/2",
        "servers/hypercorn/http2.py",
        'return Phase.BODY if answering == "REQUEST" else Phase.TUNNEL',
        "return Phase.IN_FLIGHT",
        "half a body of a stream is waited for without a limit",
    ),
    Mutant(
        "aiohttp, `reaper run`",
        "servers/aiohttp/server.py",
        "_parser.feed_eof() is not None",
        "_parser.feed_eof() is None",
        "half of a second head is not told 408, and a client without one is",
    ),
    Mutant(
        "daphne",
        "servers/twisted/phases.py",
        "return Phase.HEADERS if channel._transferDecoder is None else Phase.BODY",
        "return Phase.HEADERS",
        "a body that comes slowly is bounded as a whole",
    ),
    Mutant(
        "daphne, TLS",
        "servers/twisted/phases.py",
        'return getattr(protocol, "wrappedProtocol", protocol)',
        "return protocol",
        "over TLS every client counts as one in use",
    ),
    Mutant(
        "websockets, `connection`",
        "servers/websockets/connection.py",
        "            idle,\n            reason",
        "            None,\n            reason",
        "the `idle` that is given is not in force",
    ),
    Mutant(
        "gunicorn, threads, TLS",
        "servers/gunicorn/threads.py",
        'self.says = data if self.receiving else b""',
        'self.says = b""',
        "over TLS half a request is closed without a word",
    ),
    Mutant(
        "anyio",
        "servers/anyio/phases.py",
        "return Phase.IDLE if stream._receive_guard._guarded else",
        "return Phase.IN_FLIGHT if stream._receive_guard._guarded else",
        "a client that is waited for counts as one in use",
    ),
    Mutant(
        "aiohttp, `reaper run`, TLS",
        "asyncio/tls.py",
        "            encrypting = handshakes.wrap(self._inner, shaken)\n",
        "            encrypting = handshakes.wrap(asyncio.Protocol(), shaken)\n"
        "            def late(_: Any) -> None:\n"
        "                encrypting._set_app_protocol(self._inner)\n"
        "                self._inner.connection_made(encrypting._get_app_transport())\n"
        "            shaken.add_done_callback(late)\n",
        "the server's protocol is connected a pass after the handshake, when an end may have come",
        by="in one piece, and leave at once",
    ),
    Mutant(
        "uvicorn, HTTP/2",
        "servers/http2/engine.py",
        "self.taken.bytes += 2 * count",
        "self.taken.bytes = min(self.taken.bytes + 2 * count, 1000)",
        "a client may give back less than it was sent",
        by="by bits",
    ),
    Mutant(
        "hypercorn",
        "driver/served.py",
        "limit = patience(limit, self._terms.out_rate, info.hidden)",
        "pass",
        "a shut window is judged at once, whatever its buffer hides",
        by="behind a buffer that hides it",
    ),
    Mutant(
        "gunicorn, asgi",
        "driver/served.py",
        "if self.invited():",
        "if False:",
        "the clock of a body begins before the `100 Continue` has left",
        by="after a late `100 Continue`",
    ),
    Mutant(
        "aiohttp, `run_app`",
        "servers/aiohttp/server.py",
        "return Phase.HEADERS if self._has_part() else Phase.KEEP_ALIVE",
        "return Phase.KEEP_ALIVE",
        "half a head in one segment with a request is held for `keep_alive`",
        by="in one segment with the first",
    ),
    Mutant(
        "hypercorn, trio, TLS",
        "servers/hypercorn/trio_application.py",
        "    end_handshakes(reaper, partial(is_of, context))\n",
        "    del context\n",
        "a stop waits for who is amid a handshake",
        by="half of the first bytes of its handshake",
    ),
    Mutant(
        "serve_tcp",
        "trio/streams.py",
        "        self.connection.touch()\n",
        "        self.connection\n",
        "bytes that have come are no activity",
        by="in the last 150 ms of `idle`",
    ),
)
"""The mutants, in the order of the table."""


KIT = (sys.executable, "-m", "scripts.guests", "--only")


def tried(mutant: Mutant, home: Path, *, quick: bool = False) -> list[str]:
    """What the kit finds in the clone *home*, once *mutant* is in it; [] if nothing.
    *quick*: by the half that the tests have.
    """
    file = home / "reaper" / mutant.path
    whole = file.read_text()
    file.write_text(whole.replace(mutant.before, mutant.after))
    try:
        done = subprocess.run(
            [*KIT, mutant.column, "--kinds", mutant.by, *(["--quick"] if quick else [])],
            cwd=home,
            capture_output=True,
            text=True,
        )
    finally:
        file.write_text(whole)
    found = [line.strip() for line in done.stdout.splitlines() if line.strip() and line[0] == " "]
    return [line for line in found if mutant.by in line] if done.returncode == 1 else []


def main() -> int:
    """Try them. Exit status: 0 all are caught, 1 one is not, 2 bad arguments."""
    parser = Parser(prog="python -m scripts.guests.mutants", description=__doc__.splitlines()[0])
    columns = tuple(mutant.column for mutant in MUTANTS)
    parser.add_argument("--only", metavar="COLUMN", choices=columns, help="this guest alone")
    parser.add_argument("--quick", action="store_true", help="with the half that the tests have")
    options = parser.parse_args()
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, home], check=True)
        for mutant in MUTANTS:
            if options.only in (None, mutant.column):
                found = tried(mutant, home, quick=options.quick)
                alive += not found
                print(f"{mutant.column}: {mutant.why}: {'caught' if found else 'ALIVE'}")
                print(*(f"  {each}" for each in found[:3]), sep="\n", flush=True)
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
