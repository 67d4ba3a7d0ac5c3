"""Proxies in front of a server, and servers over TLS, measured by the load generator's
own commands.

    python -m scripts.proxies pools|race|tls [SECONDS or PAIRS]

One rule: *the measured tables of docs/howto/proxies.md and docs/probe.md come from what
this program prints*. What is started and asked is in proxies.toml; what is not
installed is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadgen.probe import aligned

from .serving import ROOT, free_port, serving
from .tools import Missing, certificate, nginx, tool

LIMITS = {
    "HANDSHAKE": "3s",
    "FIRST_BYTE": "3s",
    "HEADERS": "3s",
    "BODY": "4s",
    "KEEP_ALIVE": "5s",
    "TUNNEL": "6s",
}


def started(
    stack: ExitStack, table: dict[str, Any], server: dict[str, Any], http: str | None
) -> dict[str, Any]:
    """Start *server* as it is described; what its texts are filled with. Raises
    Missing.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    given = {"port": free_port(), "backend": free_port(), "dir": folder}
    environment = os.environ | {
        f"REAPER_TIMEOUTS_{limit}": value for limit, value in LIMITS.items()
    }
    environment |= {
        "HOME": str(folder),
        "REAPER_TICK": "100ms",
        "REAPER_TIMEOUTS_MAX_AGE": "0s",
    }
    if http is not None:
        environment["REAPER_TIMEOUTS_KEEP_ALIVE"] = "3s"
        words = table["backend"].format(http=http, port=given["backend"]).split()
        command = [sys.executable, "-m", *words, "--no-access-log"]
        stack.enter_context(
            serving(command, folder / "backend", port=given["backend"], environment=environment)
        )
    if server["tables"] == ["tls"]:
        certificate(folder)
    command = command_of(server, given)
    if not command:
        return given | {"port": given["backend"]}
    stack.enter_context(
        serving(command, folder / "log", port=given["port"], environment=environment)
    )
    return given


def command_of(server: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """The words that start *server*, whose texts are filled with *given*; its files are
    in `given["dir"]`. Empty: nothing is to be started. Raises Missing.
    """
    folder = Path(given["dir"])
    given = {"idle": ""} | given
    (folder / "conf").write_text(server.get("conf", "").format(**given))
    if "nginx" in server:
        return nginx(folder, server["nginx"].format(**given))
    if "module" in server:
        return [sys.executable, "-m", *server["module"].format(**given).split()]
    if "command" in server:
        binary, *flags = server["command"].format(**given).split()
        return [tool(binary), *flags]
    return []


def asked(words: str, given: dict[str, Any]) -> str:
    """What a command of the load generator prints."""
    command = [sys.executable, "-m", "loadgen", *words.format(**given).split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-500:]}")
    return done.stdout


def in_rounds(
    table: dict[str, Any], lanes: dict[str, tuple[dict[str, Any], str]], pairs: int
) -> list[list[str]]:
    """The race in every lane, in turn, added up."""
    sums: dict[str, Counter[str]] = {name: Counter() for name in lanes}
    for turn in range(-(-pairs // 250)):
        for name, (given, more) in lanes.items():
            found = json.loads(asked(f"{table['ask'][0]} {more}", given))
            sums[name] += Counter({key: found[key] for key in ("reused", "fresh")}) + Counter(
                lost=sum(found["lost"].values())
            )
        print(f"{250 * (turn + 1):,} of {pairs:,}", file=sys.stderr, flush=True)
    rows = [["server", "pairs", "on a new connection", "lost", "of a million"]]
    for name, each in sums.items():
        total = each["reused"] + each["fresh"]
        rows.append(
            [
                name,
                *(
                    f"{n:,.0f}"
                    for n in (total, each["fresh"], each["lost"], 1e6 * each["lost"] / total)
                ),
            ]
        )
    return rows


def main() -> int:
    """Print what was measured."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    servers = tables.pop("server")
    parser = argparse.ArgumentParser(
        prog="python -m scripts.proxies", description="Measure proxies and pools."
    )
    parser.add_argument("table", choices=tables)
    parser.add_argument(
        "much", nargs="?", type=int, help="seconds to wait, or pairs; default 130, 10000, 12"
    )
    options = parser.parse_args()
    table = tables[options.table]
    much = options.much or table["much"]
    lanes: dict[str, tuple[dict[str, Any], str]] = {}
    with ExitStack() as stack:
        for backend, http in table.get("backends", {"": None}).items():
            for server in servers:
                name = f"{backend and backend + ', '}{server['name']}"
                if options.table in server["tables"]:
                    try:
                        given = started(stack, table, server, http) | {"much": much}
                    except Missing as missing:
                        print(missing, file=sys.stderr)
                        continue
                    if "rounds" in table:
                        lanes[name] = given, server.get("more", "")
                    else:
                        found = "\n".join(
                            asked(f"{words} --markdown", given) for words in table["ask"]
                        )
                        print(f"\n{name}:\n\n{found.rstrip()}", flush=True)
        if lanes:
            print("\n".join(aligned(in_rounds(table, lanes, much), markdown=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
