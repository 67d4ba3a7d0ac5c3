"""Spark's `xxhash64` of a text, for the engine that has none: XXH64 with the seed 42, as a signed number.

Source: the algorithm of Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
"""

from __future__ import annotations

SEED = 42
"""Spark's; also what it says of null."""

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxhash64(data: bytes) -> int:
    """XXH64 of *data*. Cost: a microsecond for each few bytes."""
    at, size = 0, len(data)
    if size >= 32:
        lanes = [(SEED + _P1 + _P2) & _MASK, (SEED + _P2) & _MASK, SEED, (SEED - _P1) & _MASK]
        while at + 32 <= size:
            lanes = [_round(lane, _word(data, at + 8 * i)) for i, lane in enumerate(lanes)]
            at += 32
        found = sum(_left(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = (SEED + _P5) & _MASK
    found = (found + size) & _MASK
    while at + 8 <= size:
        found = (_left(found ^ _round(0, _word(data, at)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        found = (_left(found ^ (int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _left(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    found ^= found >> 32
    return found - (1 << 64) if found >> 63 else found


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _left(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _round(lane: int, word: int) -> int:
    return _left((lane + word * _P2) & _MASK, 31) * _P1 & _MASK
