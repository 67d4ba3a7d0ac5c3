"""Clients that this machine holds up.

One rule: *a client that was itself late proves nothing, and another comes*. How late it
was it says by its own clock; nothing else grants another try, and ten late ones are an
error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from loadgen.playing.client import Gone

Found = TypeVar("Found")

TRIES = 10


class Lagged(Exception):
    """The machine held a client up for so long that its server may end it."""


def in_time(act: Callable[[], Found]) -> Found:
    """What *act* returns, which begins anew when it raises `Lagged`."""
    for _ in range(TRIES):
        with suppress(Lagged):
            return act()
    raise AssertionError(f"the machine held the client up, {TRIES} times")


def speaking_in_time(act: Callable[[Callable[[], None]], None], seconds: float) -> None:
    """Have *act*, which calls what it is given when its client has spoken. It begins
    anew if it fails, and the client was silent for *seconds* before it spoke, or could
    not any more.
    """

    def once() -> None:
        spoke, silence = time.monotonic(), 0.0

        def speaks() -> None:
            nonlocal spoke, silence
            before, spoke = spoke, time.monotonic()
            silence = max(silence, spoke - before)

        try:
            act(speaks)
        except (AssertionError, OSError, Gone) as error:
            if not isinstance(error, AssertionError):
                speaks()  # it tried to
            if silence >= seconds:
                raise Lagged from error
            raise

    in_time(once)
