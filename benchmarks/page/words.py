"""Figures as the pages print them."""

from __future__ import annotations


def quantity(value: float) -> str:
    """A figure with three digits that mean something."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def people(n: int) -> str:
    """A number of connections: 1k, 100k, 1M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if n >= size:
            return f"{n / size:g}{unit}"
    return str(n)
