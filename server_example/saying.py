"""What a server prints for you or for a service manager. One rule: *in the format that was asked for, and at once*."""

from __future__ import annotations

import sys
from typing import Any

from reaper.logs import line


class _Format:
    json = False


def speak(log_format: str) -> None:
    """From now on say everything as "text", or as "json": one object per line, as `reaper.logs` has it."""
    _Format.json = log_format == "json"


def say(text: str, **fields: Any) -> None:
    """Print *text* at once, also into a pipe; in JSON with *fields*."""
    print(line("server_example", text, **fields) if _Format.json else text, flush=True, file=sys.stdout)
