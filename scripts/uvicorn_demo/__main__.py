"""`make uvicorn-demo`: a FastAPI application under uvicorn twice, stock and guarded;
`loadgen probe` of both.

*The two differ in one flag.* Exit status 0: the guarded server answered every question,
and closed none too early.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from loadgen.clients import Speech
from loadgen.drive.protocols import Paths
from loadgen.probe import Finding, aligned, probe
from loadgen.units import parse_target
from scripts.serving import free_port, serving

TIMEOUT = 3.0
"""Seconds: every limit of the demo, so that it is short."""
WAIT, TRIALS = 9.0, 3
"""Seconds that a close is waited for, and connections per question."""
LIMITS = ("FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "HALF_CLOSED", "TUNNEL", "LINGER")
SETTINGS = {f"REAPER_TIMEOUTS_{name}": f"{TIMEOUT:g}s" for name in LIMITS} | {
    "REAPER_TICK": "500ms",
    "REAPER_LIMITS_MIN_OUT_RATE": "1000000",  # no buffer hides a reader for long
}
SETTINGS["REAPER_TIMEOUTS_MAX_AGE"] = (
    "0s"  # an age that is drawn at random would end the longest questions
)
HTTP = {"stock": "auto", "guarded": "reaper.uvicorn:Auto"}
UVICORN = "uvicorn scripts.uvicorn_demo.app:app --no-access-log"
HANDSHAKE = Speech(protocol="ws", paths=Paths("/ws"))
TRAFFIC = "message_drip"
"""The question that no server has to answer with a close: a message that drips is
traffic.
"""


def probed() -> dict[str, list[Finding]]:
    """What both do with each question of HTTP and of WebSockets, asked at the same
    time.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as stack,
        ThreadPoolExecutor(4) as threads,
    ):
        asked = {}
        for who in HTTP:
            port = free_port()
            flags = f"--http {HTTP[who]} --timeout-keep-alive {TIMEOUT:g} --port {port}"
            started = [sys.executable, "-m", *UVICORN.split(), *flags.split()]
            log = Path(folder) / who
            server = stack.enter_context(
                serving(started, log, port=port, environment=os.environ | SETTINGS)
            )
            for speech in (Speech(paths=Paths("/echo")), HANDSHAKE):
                asked[who, speech] = threads.submit(
                    probe, parse_target(server.target), speech, WAIT, trials=TRIALS
                )
        found: dict[str, list[Finding]] = {who: [] for who in HTTP}
        for (who, _), task in asked.items():
            found[who] += task.result()
    return found


def main() -> int:
    found = probed()
    print(
        f"FastAPI under uvicorn, stock and with --http {HTTP['guarded']}: "
        f"every timeout {TIMEOUT:g} s, tick 0.5 s.\n"
    )
    both = list(zip(*found.values(), strict=True))
    rows = [[each[0].meaning, *(finding.observed() for finding in each)] for each in both]
    print("\n".join(aligned([["the client has...", *HTTP], *rows], markdown=True)))
    bad = [
        guarded
        for _, guarded in both
        if guarded.name != TRAFFIC and not (guarded.shortest or 0.0) >= TIMEOUT
    ]
    for finding in bad:
        print(f"guarded: {finding.name}: {finding.observed()}", file=sys.stderr)
    if not bad:
        (drip,) = (guarded.meaning for _, guarded in both if guarded.name == TRAFFIC)
        print(
            f"\nThe guarded server closed all clients but one, none before {TIMEOUT:g} s. "
            f"It keeps the one that has {drip}: a message that comes slowly is traffic."
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
