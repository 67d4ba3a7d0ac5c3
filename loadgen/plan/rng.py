"""Draws that depend on nothing but their key and number: the k-th draw of a connection needs no state at all.

A counter-based generator (the mixing function of SplitMix64), so an hour of sends for 100,000 connections is a function
and not a table: any step can be computed at any time, in any process, in any order, and is the same.

Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_TO_UNIT = 2.0**-53


def mix(value: int) -> int:
    """One 64-bit number from another, every bit depending on every bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def key_of(*parts: int) -> int:
    """A 64-bit key from a seed and the numbers that name a thing (its index, its incarnation, ...)."""
    key = 0
    for part in parts:
        key = mix((key + (part + 1) * _GAMMA) & _MASK)
    return key


def draw(key: int, number: int) -> float:
    """Draw *number* of *key*: a float in [0, 1). Cost: O(1), about a microsecond."""
    return (mix((key + (number + 1) * _GAMMA) & _MASK) >> 11) * _TO_UNIT
