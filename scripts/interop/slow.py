"""slowhttptest against the server: 1,000 attackers each with slow headers, slow bodies and slow reading.

One rule: *the kernel counts*. From the last connection opened, it may hold them for the timeout and a tick, and what
the loop was stalled for on a busy machine, and by how much a look of ours was late (where another program has a million
sockets, the table of them takes seconds to read); a healthy client must have been answered all the time. What
slowhttptest says itself is reported too. (Its slow reader notices a reset only when it has read what its own kernel
holds, 32 bytes at a time: its count of open connections is of no use there.)
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time

from loadgen.clients import Account, keep_asking

from .tools import OUT, Established, metrics, server, tool

CONNECTIONS = 1000
RATE = 500  # connections per second
TICK = 1.0
LONGEST = 20  # seconds a run may take
FEW = 5  # connections of the healthy client and of slowhttptest's own probe
RESOLUTION = 1.0  # seconds: slowhttptest opens in batches, and we look five times per second, if the machine lets us

SMALLEST_BUFFER = 2304  # bytes that Linux takes for a peer that reads nothing; at 240 B/s they pay for 9.6 s

RUNS = {
    # name: flags of slowhttptest, path, the limit that must end an attacker, its seconds
    "headers": (["-H", "-i", "3", "-x", "24", "-p", "5"], "/", "headers", 5.0),
    "body": (["-B", "-i", "3", "-s", "8192", "-x", "10", "-p", "5"], "/upload", "min_in_rate", 5.0),
    "read": (
        ["-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "1", "-p", "5"],
        "/download?bytes=20000000",
        "min_out_rate",
        5.0 + SMALLEST_BUFFER / 240,
    ),
}
FLAGS = [
    "--tick",
    "1s",
    "--first-byte",
    "5s",
    "--headers",
    "5s",
    "--body",
    "30s",
    "--write",
    "30s",
    "--keep-alive",
    "5s",
]


def run(connections: int = CONNECTIONS) -> dict[str, object]:
    """All three attacks, one after the other, with so many connections each. Raises Missing."""
    command = tool("slowhttptest", "slowhttptest")
    found = {name: _attack(command, name, connections) for name in RUNS}
    return {"runs": found, "passed": all(attack["passed"] for attack in found.values())}


def _attack(command: str, name: str, connections: int) -> dict[str, object]:
    flags, path, reason, timeout = RUNS[name]
    prefix = OUT / f"slow-{name}"
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with server(*FLAGS, log=f"slow-{name}.log") as address:
        url = f"http://{address[0]}:{address[1]}{path}"
        attack = [command, *flags, "-c", str(connections), "-r", str(RATE), "-l", str(LONGEST), "-u", url, "-g"]
        with Established(address[1]) as established:
            done, healthy = asyncio.run(_beside_a_healthy_client([*attack, "-o", str(prefix)], address))
            time.sleep(RESOLUTION)
        after = metrics(address)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    prefix.with_suffix(".txt").write_text(plain)
    said = re.search(r"Test ended on .*\s+Exit status:.*", plain)
    peak, held = established.held(FEW)
    late = max(established.delay(), 0.0)
    allowed = timeout + TICK + after["reaper_loop_lag_max_seconds"] + RESOLUTION + late
    reaped = {key.split('"')[1]: int(count) for key, count in after.items() if key.startswith("reaper_reaped_total")}
    return {
        "slowhttptest": " ".join(said[0].split()) if said else None,
        "peak_open": peak,
        "held_after_the_last_was_opened_s": held,
        "allowed_s": round(allowed, 2),
        "of_that_for_late_looks_s": round(late, 2),
        "reaped": reaped,
        "mean_lateness_s": after["reaper_lateness_seconds_sum"] / max(1, after["reaper_lateness_seconds_count"]),
        "max_lag_s": after["reaper_loop_lag_max_seconds"],
        "healthy": {"asked": healthy.asked, "lost": healthy.losses, "slowest_s": round(healthy.worst, 2)},
        "passed": held is not None
        and held <= allowed
        and reaped.get(reason, 0) >= connections
        and healthy.asked > 0
        and not healthy.lost,
    }


async def _beside_a_healthy_client(
    command: list[str], address: tuple[str, int]
) -> tuple[subprocess.CompletedProcess[str], Account]:
    """Run *command* while a client asks for `/` again and again, on a new connection each time."""
    account, over = Account(), asyncio.Event()
    asking = asyncio.create_task(keep_asking(address, over.is_set, account, 0.1))
    try:
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=3 * LONGEST)
    finally:
        over.set()
        await asking
    return done, account
