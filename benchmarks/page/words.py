"""Figures as the pages print them."""

from __future__ import annotations

from typing import Any


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


def times(ratio: dict[str, Any] | None, inverse: bool = False) -> str:
    """A ratio with its spread; *inverse* for one that is below 1: 1/20, not 0.05."""
    if ratio is None:
        return ""
    if inverse:
        return f"1/{quantity(1 / ratio['median'])} (1/{quantity(1 / ratio['p90'])} to 1/{quantity(1 / ratio['p10'])})"
    return f"{ratio['median']:.2f}x ({ratio['p10']:.2f}-{ratio['p90']:.2f})"
