"""How often this process was told a number: the server's own word on who was heard."""

from __future__ import annotations

from collections import Counter

_told: Counter[int] = Counter()


def tell(number: float = 0) -> bytes:
    """Count that *number* was told."""
    _told[int(number)] += 1
    return b"hello"


def told(number: float = 0) -> bytes:
    """How often it was, since that was asked last."""
    return str(_told.pop(int(number), 0)).encode()
