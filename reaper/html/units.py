"""Numbers as an axis says them, and durations as a sentence says them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A duration as an axis says it: 20 ms, 5 s, 2 min, 1 h, 3 d."""
    if value == 0:
        return "0"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        many = abs(value) / size
        if many >= 1.9995 or (
            many >= 0.9995 and round(many, 3) == round(many, 1)
        ):  # 63 s, but 1.5 min
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def spoken(value: float) -> str:
    """A duration as a sentence says it: 5.5 days, 1 h, 57 s."""
    text = seconds(value)
    return text if not text.endswith(" d") else f"{text[:-2]} day{'' if text == '1 d' else 's'}"


def percent(value: float) -> str:
    """A share as an axis says it."""
    return f"{value * 100:.3g} %"


def count(value: float) -> str:
    """A number of things as an axis says it."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
