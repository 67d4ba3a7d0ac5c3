"""The kernel's answers to looks, each taken apart in one call.

One rule: *a shortcut changes nothing*. An answer that has the form of one that `netlink.parse` and `tcpinfo.parse` have
understood (its length, its family and every attribute's length and number up to `tcp_info`) is read by a structure made
for that form; any other goes the long way, and is refused there if it makes no sense.
"""

from __future__ import annotations

import struct

from . import netlink
from .tcpinfo import FIELDS, LEAST_BYTES

MOST_FORMS = 16
"""A kernel has one or two for each address family."""

_BEFORE = "=IH2xI4xBB54xII8x"  # length, kind, sequence; family, state; unread and queued bytes
_ATTRIBUTES = struct.calcsize(_BEFORE)
_HEAD = struct.Struct("=HH")

Fields = tuple[int, int, int, int, int, int, int, int]


class Looks:
    """The forms that are known."""

    def __init__(self) -> None:
        self._forms: dict[int, tuple[struct.Struct, int, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._forms)

    def read(self, data: bytearray, size: int) -> Fields | None:
        """Read the answer in the first *size* bytes of *data*.

        Returns:
            Its sequence number, then what `tcpinfo.snapshot` takes, instants excluded; None: of no known form.
        Cost: about 0.7 us.
        """
        known = self._forms.get(size)
        if known is None:
            return None
        form, family, heads = known
        length, kind, sequence, its, state, unread, queued, *rest = form.unpack_from(data)
        if (length, kind, its) != (size, netlink.SOCK_DIAG_BY_FAMILY, family) or tuple(rest[:-4]) != heads:
            return None
        return sequence, state, unread, queued, *rest[-4:]

    def learn(self, data: bytearray, size: int) -> None:
        """Know the form of the answer in the first *size* bytes of *data* from now on, if it is one whole answer with
        `tcp_info`. `netlink.parse` has read it."""
        if len(self._forms) >= MOST_FORMS or size < _ATTRIBUTES:
            return
        length, kind, _, family, *_ = struct.unpack_from(_BEFORE, data)
        if length != size or kind != netlink.SOCK_DIAG_BY_FAMILY:
            return
        text, heads, at = _BEFORE, list[int](), _ATTRIBUTES
        while at + _HEAD.size <= size:
            length, name = _HEAD.unpack_from(data, at)
            heads += length, name
            if name == netlink.INET_DIAG_INFO:
                if length - _HEAD.size >= LEAST_BYTES:
                    self._forms[size] = (struct.Struct(f"{text}HH{FIELDS}"), family, tuple(heads))
                return
            padded = (length + 3) & ~3
            text += f"HH{padded - _HEAD.size}x"
            at += padded
