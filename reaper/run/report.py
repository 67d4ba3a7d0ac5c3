"""What was guarded in this process: said to the watcher of `reaper run`, or on stderr where there
is none.

One rule: *one line per program*, however many workers it has. The watcher sees to that; without
one, the first process of the group that has something to say does.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..config.durations import format_duration
from ..config.settings import DEFAULT, ReaperConfig

REPORT = "REAPER_RUN_REPORT"
"""The variable that names the watcher's socket, in the abstract namespace."""

_spokesman: list[socket.socket] = []


def load() -> ReaperConfig:
    """What is in force for what `reaper run` guards.

    Raises:
        ConfigError: what REAPER_CONFIG and REAPER_* say cannot be used.
    """
    return ReaperConfig.load(os.environ.get("REAPER_CONFIG"))


def is_set(name: str) -> bool:
    """Whether the timeout *name* was set anywhere."""
    return load().origin(f"timeouts.{name}") != DEFAULT


def limits_text(values: Mapping[str, float]) -> str:
    """`first_byte 10s, keep_alive 95s`; `no limit` if all are off."""
    return (
        ", ".join(f"{name} {format_duration(value)}" for name, value in values.items() if value)
        or "no limit"
    )


def guarded(server: str, sockets: Iterable[Any], limits: Mapping[str, float]) -> None:
    """*server* listens on *sockets*, and its connections are guarded with *limits* (seconds; 0:
    off).
    """
    places, inodes = [], []
    for sock in sockets:
        with suppress(OSError):
            number = sock.fileno()
            # A program may hand over what is no socket: what then has a number is not a listener.
            if isinstance(number, int) and stat.S_ISSOCK((found := os.fstat(number)).st_mode):
                inodes.append(found.st_ino)
                places.append(address(sock.getsockname()))
    message = {"guarded": server, "inodes": inodes, "places": places, "limits": limits_text(limits)}
    _say(
        message, f"{server} on {', '.join(places) or 'its sockets'} is guarded: {message['limits']}"
    )


def begun() -> None:
    """This process is a Python that guards; the watcher then waits for what it has to say."""
    if os.environ.get(REPORT):
        _say({"begun": True}, "")


def left_alone(server: str, why: str) -> None:
    """*server* is not guarded from inside, because of *why*."""
    _say({"left": server, "why": why}, f"{server} is not guarded: {why}")


def address(name: Any) -> str:
    """What `getsockname` returned, as people write it."""
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return f"unix:{name.decode(errors='replace') if isinstance(name, bytes) else name}"


def _say(message: dict[str, Any], text: str) -> None:
    watcher = os.environ.get(REPORT)
    if watcher:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(json.dumps({"pid": os.getpid(), **message}).encode(), "\0" + watcher)
            return
    if _may_speak():
        print(f"reaper run: {text}", file=sys.stderr, flush=True)


def _may_speak() -> bool:
    """Whether no other process of this group has spoken: a name in the abstract namespace belongs
    to one of them.
    """
    if _spokesman:
        return True
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.bind(f"\0reaper-run-{os.getuid()}-{os.getpgrp()}")
    except OSError:
        sock.close()
        return False
    _spokesman.append(sock)
    return True
