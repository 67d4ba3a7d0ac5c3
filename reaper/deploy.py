"""`reaper deploy`: prints the files by which reaper is run as a service and watched.

One rule: *what is printed is a file of `deploy/`*, so its tests hold for it. For
another server only the command at the end of the service's start is another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

FILES: Mapping[str, Mapping[str, str]] = {
    "systemd": {
        "server": "systemd/reaper-uvicorn.service",
        "attach": "systemd/reaper-attach@.service",
    },
    "docker": {"server": "docker/app.Dockerfile"},
    "prometheus": {"": "prometheus/alerts.yml"},
    "grafana": {"": "grafana/dashboard.json"},
}
"""The file of each kind: for a server that `reaper run` starts, for `reaper attach`, or
for all.
"""

SERVERS: Mapping[str, str] = {
    "uvicorn": "uvicorn app:app --host 0.0.0.0 --port 8000",
    "gunicorn": "gunicorn app:app --worker-class gthread --bind 0.0.0.0:8000",
    "hypercorn": "hypercorn app:app --bind 0.0.0.0:8000",
}
"""What is started for each server, behind `python -m`. The files have the first one's.
gunicorn's own default, `sync`, cannot be guarded from inside.
"""

ABOUT: Mapping[str, str] = {
    "systemd": "a service: reaper-app.service, or with --for attach reaper-attach@.service",
    "docker": "a Dockerfile",
    "prometheus": "the alert rules: alerts.yml",
    "grafana": "the dashboard: dashboard.json",
}


def add_commands(commands: Any) -> None:
    """Add `deploy` to *commands*, argparse's subparsers."""
    about = "print a service, a Dockerfile, alert rules or a dashboard, ready for use"
    deploy = commands.add_parser(
        "deploy", help=about, description=f"{about[0].upper()}{about[1:]}. Read it before you do."
    )
    kinds = deploy.add_subparsers(required=True, metavar="WHAT")
    for kind, files in FILES.items():
        sub = kinds.add_parser(kind, help=ABOUT[kind], description=f"Print {ABOUT[kind]}.")
        sub.set_defaults(run=_print, kind=kind, server="")
        if "server" in files:
            choices = [*SERVERS, *(["attach"] if "attach" in files else [])]
            sub.add_argument(
                "--for",
                dest="server",
                choices=choices,
                default=choices[0],
                help=f"the server that is guarded; {choices[0]}",
            )


def _print(parsed: argparse.Namespace) -> int:
    sys.stdout.write(text(parsed.kind, parsed.server))
    return 0


def text(kind: str, server: str = "") -> str:
    """The file of *kind*, one of `FILES`, for *server*: one of `SERVERS`, `attach`, or
    "" where there is one file for all. Raises KeyError: there is no such file.
    """
    files = FILES[kind]
    found = folder() / files["server" if server in SERVERS else server]
    said = found.read_text(encoding="utf-8")
    if server in SERVERS:
        first = SERVERS["uvicorn"]
        for old, new in ((first, SERVERS[server]), (_listed(first), _listed(SERVERS[server]))):
            said = said.replace(old, new)
        said = said.replace("uvicorn", server)  # in the comments
    return said


def _listed(command: str) -> str:
    """*command* as a Dockerfile has it."""
    return ", ".join(f'"{word}"' for word in command.split())


def folder() -> Traversable:
    """Where the files are: `deploy/` of the checkout, or of the wheel."""
    above = Path(__file__).resolve().parent.parent
    if (above / "pyproject.toml").is_file():
        return above / "deploy"
    return resources.files("reaper_deploy")
