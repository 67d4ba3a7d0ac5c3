"""`python -m scripts.holds [--document]`: what each hostile client of HTTP/2 has to do
to hold a connection or a stream, of guarded servers beside stock ones.

One rule: *the tables on the page are what this command measured*; its figures, one by
one, are left in `out/holds.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.clients import Ended, Speech
from loadgen.drive.protocols import Paths
from loadgen.http2 import KINDS, play
from loadgen.units import parse_target
from reaper.config.flags import Parser

from . import marked
from .provenance import machine
from .serving import ROOT, DidNotStart, free_port, serving

LIMIT = 3.0
"""Seconds of every timeout of the guarded servers."""
PATIENCE = 9.0
"""Seconds after which a client leaves that was borne for so long."""
PHASES = ("FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "TUNNEL")
SPEECH = Speech("http2", Paths("/", post="/echo", much="/big"))

PAGE = ROOT / "docs" / "timeouts.md"
KEPT = ROOT / "out" / "holds.json"
BEGIN = "<!-- holds: written by `python -m scripts.holds --document`, do not edit -->"
END = "<!-- end of holds -->"


class Hold(NamedTuple):
    """What a client does, and which limit is there for it."""

    words: str
    limit: str


HOLDS = {
    "mute": Hold("connects, and sends nothing", "`first_byte`"),
    "no_stream": Hold("exchanges settings, and never asks", "`keep_alive`"),
    "half_headers": Hold("begins a header block", "`headers`"),
    "dripped_headers": Hold("continues a header block with empty frames", "`headers`"),
    "half_body": Hold("stops in the middle of a body", "`body`"),
    "empty_body": Hold("sends empty DATA frames", "`body`"),
    "dripped_body": Hold("drips a body, a byte every 500 ms", "`min_in_rate`"),
    "unopened": Hold("never opens its window again", "`write`"),
    "unopened_pings": Hold("the same, with PING, PRIORITY, WINDOW_UPDATE", "`write`"),
    "slow_reader": Hold("opens its window by 16 KiB every 500 ms", "none: it lives"),
    "silent": Hold("says nothing after an answer", "`keep_alive`"),
    "pings": Hold("sends PING every 500 ms after an answer", "`keep_alive`"),
    "rapid_reset": Hold("resets 4,000 requests a second", "`flood`"),
    "ping_flood": Hold("sends 4,000 PINGs a second", "`flood`"),
    "settings_flood": Hold("sends 4,000 SETTINGS a second", "`flood`"),
}
FLOODS = ("rapid_reset", "ping_flood", "settings_flood")

_ASGI, _WSGI = "tests.helpers.asgi:application", "tests.helpers.wsgi:application"
_CLEAR = "--http-protocols h1,h2 --http2-cleartext prior-knowledge --no-control-socket"
SERVERS = {
    "hypercorn": (
        f"reaper run -- python -m hypercorn {_ASGI} -b 127.0.0.1:PORT",
        f"hypercorn {_ASGI} -b 127.0.0.1:PORT",
    ),
    "gunicorn, asgi": (
        f"gunicorn {_ASGI} {_CLEAR} -k reaper.gunicorn.ASGIWorker -b 127.0.0.1:PORT",
        f"gunicorn {_ASGI} {_CLEAR} -k asgi -b 127.0.0.1:PORT",
    ),
    "gunicorn, threads": (
        f"gunicorn {_WSGI} {_CLEAR} -k reaper.gunicorn.ThreadWorker --threads 100 -b 127.0.0.1:PORT",
        f"gunicorn {_WSGI} {_CLEAR} -k gthread --threads 100 -b 127.0.0.1:PORT",
    ),
    "uvicorn": (
        f"uvicorn {_ASGI} --http reaper.uvicorn:Http2 --port PORT",
        f"uvicorn {_ASGI} --http zttp --http2 --port PORT",
    ),
}
"""The commands of each server, guarded and stock, each with its own defaults
besides.
"""


def main() -> int:
    """Measure. Exit status: 0 measured, 2 bad arguments or a server that does not
    start.
    """
    parser = Parser(prog="python -m scripts.holds", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="SERVER", choices=tuple(SERVERS), help="this one alone")
    parser.add_argument("--trials", type=int, default=5, help="clients of each kind; default 5")
    parser.add_argument(
        "--document", action="store_true", help="write the page, and the figures to out/"
    )
    options = parser.parse_args()
    if options.trials < 1:
        parser.error(f"--trials {options.trials}: must be 1 or more")
    if options.document and options.only:
        parser.error("--document: needs every server, so --only must not be given")
    report: dict[str, Any] = {"about": machine(), "trials": options.trials, "holds": []}
    for server in [options.only] if options.only else SERVERS:
        for guarded in (True, False):
            try:
                found = measured(server, guarded=guarded, trials=options.trials)
            except DidNotStart as error:
                print(f"{server}: {error}", file=sys.stderr)
                return 2
            report["holds"] += found
            for one in found:
                print(json.dumps(one), flush=True)
    report["about"]["load_after"] = os.getloadavg()[0]
    if options.document:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(report, indent=1) + "\n")
        document(report)
    return 0


def measured(server: str, *, guarded: bool, trials: int) -> list[dict[str, Any]]:
    """What became of *trials* clients of each kind: the floods one kind after the
    other, the rest at the same time.
    """
    port = free_port()
    words = SERVERS[server][not guarded].replace("PORT", str(port)).split()
    words = [sys.executable if word == "python" else word for word in words]
    limits = {f"REAPER_TIMEOUTS_{phase}": f"{LIMIT:g}s" for phase in PHASES}
    # A full buffer then hides no reader for long, and this rate cuts nobody.
    limits |= {"REAPER_LIMITS_MIN_OUT_RATE": "1000000", "REAPER_LIMITS_MIN_OUT_GRACE": "1m"}
    environment = os.environ | limits | {"REAPER_TICK": "250ms"}
    quiet = [kind for kind in KINDS if kind not in FLOODS]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", *words]
        log = Path(folder) / "log"
        with serving(command, log, port=port, environment=environment) as running:
            ends = []
            for kinds in (quiet, *([flood] for flood in FLOODS)):  # a flood would delay the others
                ends += asyncio.run(_played(running.target, kinds, trials))
    about = {"server": server, "guarded": guarded}
    return [
        {**about, "kind": kind, "ends": [_end(one) for one in ends if one.kind == kind]}
        for kind in HOLDS
    ]


async def _played(target: str, kinds: Iterable[str], trials: int) -> list[Ended]:
    each = [
        play(kind, parse_target(target), SPEECH, PATIENCE) for kind in kinds for _ in range(trials)
    ]
    return await asyncio.gather(*each)


def _end(one: Ended) -> dict[str, Any]:
    return {
        "how": one.how,
        "borne": None if one.borne is None else round(one.borne, 2),
        "said": one.said.decode("ascii", "replace"),
    }


def table(report: dict[str, Any]) -> str:
    """What the page shows of *report*: a table of guarded servers, and one of stock."""
    known = report["about"]
    found = {
        (each["kind"], each["server"], each["guarded"]): each["ends"] for each in report["holds"]
    }
    load = f"load {known['load_before']:.0f} to {known['load_after']:.0f}"
    taken = f"{known['date']}, {known['cpus']} cores, {load}, {known['python']}"
    lines = [
        f"{report['trials']} clients of each kind; held: borne for {PATIENCE:g} s. Commit",
        f"{known['commit'][:12]}, {taken}.",
    ]
    for guarded, how in ((True, "Guarded"), (False, "Stock")):
        lines += [
            *("", f"{how}:", ""),
            f"| the client | limit | {' | '.join(SERVERS)} |",
            "|---|---|" + "---|" * len(SERVERS),
        ]
        for kind, hold in HOLDS.items():
            cells = [said(found[kind, server, guarded]) for server in SERVERS]
            lines.append(f"| {hold.words} | {hold.limit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def said(ends: list[dict[str, Any]]) -> str:
    """What became of the clients of one kind, for people."""
    ways = Counter(_way(each) for each in ends)
    words = []
    for way, count in ways.most_common():
        times = [each["borne"] for each in ends if _way(each) == way and each["borne"] is not None]
        word = way
        if way != "held" and times:
            least, most = min(times), max(times)
            word += f", {least:.1f} s" if most - least < 0.05 else f", {least:.1f} to {most:.1f} s"
        words.append(word if len(ways) == 1 else f"{count}: {word}")
    return "; ".join(words)


def _way(end: dict[str, Any]) -> str:
    """How a client was ended: by its stream, after a GOAWAY, or by a bare close."""
    if end["how"] == "left":
        return "held"
    frame = end["said"].partition(" ")[0]
    return str(frame or {"closed": "close"}.get(end["how"], end["how"]))


def document(report: dict[str, Any]) -> None:
    """Write the table between the marks of the page. Raises SystemExit: it lacks
    one.
    """
    marked.write(PAGE, BEGIN, END, table(report))


if __name__ == "__main__":
    sys.exit(main())
