"""What was guarded in this process: said to the watcher of `reaper run`, or on stderr
where there is none.

One rule: *one line per server*, however many workers it has. The watcher sees to that.
Without one, the first process of the group that has something to say prints.
"""

from __future__ import annotations

import functools
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from socket import AF_UNIX, SOCK_SEQPACKET, socket
from typing import Any, NoReturn

from ..config.durations import format_duration
from ..config.settings import DEFAULT, ReaperConfig, vain_variables
from ..errors import ConfigError
from . import channel
from .channel import ADDRESS

RUN = "REAPER_RUN"
"""The variable that turns the hook on; it holds one of:"""
LENIENT, STRICT, STRICT_INSIDE = "1", "strict", "strict-inside"

MOST_OF_A_GROUP = 4096
"""Processes of a group that find their spokesman; one more speaks for itself."""

_spokesman: list[socket] = []


def how(*, strict: bool, inside: bool) -> str:
    """What becomes of a server that cannot be guarded from inside, as `RUN` has it.

    Returns:
        `LENIENT`: it is left alone. `STRICT`: it is refused if it does not fit, or was
        not tested. `STRICT_INSIDE`: it is refused, whatever the reason, because nothing
        guards it from outside.
    """
    if not strict:
        return LENIENT
    return STRICT_INSIDE if inside else STRICT


def refuse(why: str) -> NoReturn:
    """Print *why*, and end this process with status 2.

    Raises:
        SystemExit: always.
    """
    print(f"reaper run: {why}", file=sys.stderr, flush=True)
    raise SystemExit(2)


@functools.cache
def judge() -> None:
    """Judge the settings before a server of this process starts, once.

    A variable that sets nothing is named, unless `reaper run` has named it.

    Raises:
        SystemExit: a setting, or the file of settings, cannot be used. A server would
            find out with its first client, and some go on and serve nobody.
    """
    try:
        load()
    except ConfigError as error:
        refuse("; ".join(str(error).splitlines()))
    vain = {} if os.environ.get(ADDRESS) else vain_variables(os.environ)
    if vain and _may_speak():
        for name, text in vain.items():
            print(f"reaper run: {name}: {text}", file=sys.stderr, flush=True)


def load() -> ReaperConfig:
    """The configuration of what `reaper run` guards.

    Raises:
        ConfigError: what REAPER_CONFIG and REAPER_* say cannot be used.
    """
    return ReaperConfig.load(os.environ.get("REAPER_CONFIG"))


def is_set(name: str) -> bool:
    """Whether the timeout *name* was set anywhere."""
    return load().origin(f"timeouts.{name}") != DEFAULT


def alone() -> bool:
    """Whether nobody watches from outside what is left alone here, or that would not be
    enough.
    """
    return os.environ.get(RUN) == STRICT_INSIDE or not os.environ.get(ADDRESS)


def limits_text(values: Mapping[str, float]) -> str:
    """`first_byte 10s, keep_alive 95s` for *values* in seconds; `no limit` if all
    are 0.
    """
    return (
        ", ".join(f"{name} {format_duration(value)}" for name, value in values.items() if value)
        or "no limit"
    )


def guarded(
    server: str, sockets: Iterable[Any], limits: Mapping[str, float], vain: str = ""
) -> None:
    """Say that *server* listens on *sockets* and is guarded with *limits*, in seconds;
    0 is off.

    *vain* says which settings do nothing in it; empty: all that are set act.
    """
    places, inodes = [], []
    for sock in sockets:
        with suppress(OSError):
            number = sock.fileno()
            # A program may hand over what is no socket: what then has a number is not a
            # listener.
            if isinstance(number, int) and stat.S_ISSOCK((found := os.fstat(number)).st_mode):
                inodes.append(found.st_ino)
                places.append(address(sock.getsockname()))
    text = limits_text(limits) + (f"; {vain}" if vain else "")
    message = {"guarded": server, "inodes": inodes, "places": places, "limits": text}
    _say(
        message, f"{server} on {', '.join(places) or 'its sockets'} is guarded: {message['limits']}"
    )


def left_alone(server: str, why: str) -> None:
    """Say that *server* is not guarded from inside, because of *why*.

    Raises:
        SystemExit: nothing guards it from outside, and that is refused.
    """
    if os.environ.get(RUN) == STRICT_INSIDE:
        refuse(f"{server} cannot be guarded from inside: {why}")
    _say({"left": server, "why": why}, f"{server} is not guarded: {why}")


def address(name: Any) -> str:
    """What `getsockname` returned, as people write it."""
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return f"unix:{name.decode(errors='replace') if isinstance(name, bytes) else name}"


def _say(message: dict[str, Any], text: str) -> None:
    """Tell the watcher *message*; print *text* if it cannot be told."""
    if os.environ.get(ADDRESS) and channel.say(json.dumps(message).encode()):
        return
    if _may_speak():
        print(f"reaper run: {text}", file=sys.stderr, flush=True)


def _may_speak() -> bool:
    """Whether this process prints for its group: a name in the abstract namespace has
    one owner.

    Anybody on this machine can guess the name and bind it first. So a process that
    finds it taken asks the kernel who listens there, and is silent for a process of the
    same user alone.
    """
    if _spokesman:
        return True
    # A test of the program may have put another in the place of `socket.socket`.
    sock = socket(AF_UNIX, SOCK_SEQPACKET)
    name = f"\0reaper-run-{os.getuid()}-{os.getpgrp()}"
    try:
        sock.bind(name)
        sock.listen(MOST_OF_A_GROUP)  # nobody is accepted: to be found is enough
    except OSError:
        spoken_for = _listens(name)
        sock.close()
        return not spoken_for
    _spokesman.append(sock)
    return True


def _listens(name: str) -> bool:
    """Whether a process of this user listens at *name*; False if that cannot be found
    out.
    """
    with suppress(OSError), socket(AF_UNIX, SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        sock.connect(name)
        return channel.peer(sock)[1] == os.geteuid()
    return False
