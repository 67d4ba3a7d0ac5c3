"""The footer of a Parquet file, by which it is known: where each page lies, how large it is, what it spans.

The rule of this module: *no byte of a row is read*. Whether the pages are those that were written is for their own
checksums to say.
"""

from __future__ import annotations

import hashlib

from ..places import Place, open_file

_TAIL = 1 << 16
"""Bytes at the end of a file that are fetched at once: most footers fit."""


def fingerprint(path: Place, size: int) -> str:
    """SHA-256 of the footer of the file at *path*, of *size* bytes, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with open_file(path) as file:
        file.seek(max(size - _TAIL, 0))
        tail = file.read()
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            file.seek(max(size - length, 0))
            tail = file.read()
    return hashlib.sha256(tail[-length:]).hexdigest()
