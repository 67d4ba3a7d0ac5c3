"""What a step looks like on the wire, and when it has been answered.

One rule: an answer proves that the server has read what was asked, and is used for nothing else.
"""

from __future__ import annotations

from typing import Any, Protocol

from .behaviours import Act
from .units import BadArgument, Target

PROTOCOLS = ("echo", "raw")


class Dialect(Protocol):
    """One protocol. `answers` says whether the server answers what it reads."""

    answers: bool

    def payload(self, act: Act) -> tuple[bytes, int]:
        """The bytes of *act* and how many units of answer they ask for."""

    def parser(self) -> Any:
        """State for one connection's answers; None when none is needed."""

    def count(self, parser: Any, data: bytes) -> int:
        """How many units of answer *data* completes."""


class Echo:
    """The server sends back every byte; a unit of answer is a byte."""

    answers = True

    def payload(self, act: Act) -> tuple[bytes, int]:
        return b"x", 1

    def parser(self) -> None:
        return None

    def count(self, parser: Any, data: bytes) -> int:
        return len(data)


class Raw(Echo):
    """Nothing is known of the answers: they are read and thrown away."""

    answers = False


def dialect_for(protocol: str, target: Target) -> Dialect:
    """The dialect named *protocol*."""
    if protocol == "echo":
        return Echo()
    if protocol == "raw":
        return Raw()
    raise BadArgument(f"--protocol {protocol!r} is not known: choose from {', '.join(PROTOCOLS)}")
