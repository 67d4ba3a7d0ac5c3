"""What the server says of its life: lines for people, and to a service manager that it
is ready, alive or stopping.

Without a service manager (sd_notify) nothing is sent. Errors of sending are ignored:
they must not harm the server.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from reaper.logs import line


class _Format:
    json = False


def speak(log_format: str) -> None:
    """From now on say everything as "text", or as "json": one object per line, as
    `reaper.logs` has it.
    """
    _Format.json = log_format == "json"


def say(text: str, **fields: Any) -> None:
    """Print *text* at once, also into a pipe; in JSON with *fields*."""
    print(
        line("server_example", text, **fields) if _Format.json else text,
        flush=True,
        file=sys.stdout,
    )


class Notify:
    """The service manager that started this process, if one did (NOTIFY_SOCKET,
    WATCHDOG_USEC).

    Attributes:
        every: Seconds between two signs of life, half of what the manager allows; 0: it
            asks for none.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        allowed = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.every = int(allowed) / 2e6 if allowed.isdecimal() and mine else 0.0
        self._next = 0.0

    def alive(self) -> None:
        """Tell the manager that the supervisor and all workers are alive.

        Call it often: it sends something once per `every` seconds only.
        """
        now = time.monotonic()
        if self.every and now >= self._next:
            self._next = now + self.every
            self.send("WATCHDOG=1")

    def send(self, what: str) -> None:
        """Send one message of sd_notify(3): READY=1 when all workers listen, STOPPING=1
        when the drain begins, STATUS= and a line for `systemctl status`.
        """
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto(what.encode(), self._address)
