"""The inet_diag protocol: requests become bytes, and answers become records.

This module is pure, small, and fuzzed: it does no I/O.

One rule: *a length that does not add up ends the parse with an error*, never with a
wrong record. What the kernel adds in later versions (attributes, longer structures) is
skipped.

Source: include/uapi/linux/{netlink,sock_diag,inet_diag}.h. pyroute2 does the same 25
times slower.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..errors import ReaperError
from .tcpinfo import CLOSE_WAIT

SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
INET_DIAG_INFO = 2
IDENT_BYTES = 48
"""The size of `struct inet_diag_sockid`: ports, addresses, interface and cookie. A
socket keeps its cookie for ever, and shares it with none: one that takes the same
addresses later has another.
"""

AF_INET, AF_INET6 = int(socket.AF_INET), int(socket.AF_INET6)  # as plain ints: enums compare slowly

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQUEST = struct.Struct("=BBBBI")  # family, protocol, wanted attributes, padding, states
# family, state, timer, retrans, ident, expires, rqueue, wqueue, uid, inode
_MESSAGE = struct.Struct("=BBBB48sIIIII")
_ATTRIBUTE = struct.Struct("=HH")
# A step of a filter: what to do, and how far to go on if it holds, and if it does not.
_STEP = struct.Struct("=BBH")
_PLACE = struct.Struct("=BB2xi")  # its operand: family, bits of the address that follows, port
_BYTECODE, _AT, _JUMP = 1, 7, 1  # the attribute; "the local address is"; "go on there"
MOST_PLACES = 1024
"""The most places in one filter: the kernel counts a filter's bytes in sixteen bits."""
_ERROR = struct.Struct("=i")
_COOKIE = struct.Struct("=Q")
_PORTS = struct.Struct("!HH")


class BadAnswer(ReaperError):
    """The kernel's answer does not have the form of inet_diag."""


class Address(NamedTuple):
    """A numeric address and a port. An IPv4 peer of an IPv6 socket is written as
    IPv4.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer(NamedTuple):
    """One message of the kernel: a socket, the end of a dump, or an error."""

    sequence: int
    error: int = 0
    """An errno; 0: none."""
    done: bool = False
    """Whether the dump is complete; with `error` 0 and no ident, a request was
    acknowledged.
    """
    family: int = 0
    state: int = 0
    ident: bytes = b""
    unread: int = 0
    queued: int = 0
    inode: int = 0
    """0: no process has accepted the connection yet, or none holds it any more."""
    info: bytes = b""
    """A `struct tcp_info`; empty: it was not asked for."""
    owner: int = 0
    """The user id that made the socket."""


def dump_request(
    sequence: int,
    family: int,
    states: int,
    places: Sequence[tuple[int, bytes]] = (),
    info: bool = False,
) -> bytes:
    """The request for every TCP socket of *family* in one of *states* (a mask, bit n
    for state n).

    Args:
        places: Local ports and packed addresses (empty: any address), at most
            `MOST_PLACES`. The kernel lists only sockets with one of them, and walks its
            table once for all. Empty: every socket.
        info: Whether each answer has `tcp_info`, which triples the cost.
    """
    flags, ident = NLM_F_REQUEST | NLM_F_DUMP, bytes(IDENT_BYTES)
    return _request(
        SOCK_DIAG_BY_FAMILY, flags, sequence, family, info, states, ident, _filter(family, places)
    )


def look_request(sequence: int, ident: bytes) -> bytes:
    """The request for the one socket with *ident*, cookie included, and its
    `tcp_info`.
    """
    return _request(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, sequence, family_of(ident), True, 0, ident)


def destroy_request(sequence: int, ident: bytes) -> bytes:
    """The request to abort the one socket with *ident*, cookie included."""
    return _request(
        SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, sequence, family_of(ident), False, 0, ident
    )


def _filter(family: int, places: Sequence[tuple[int, bytes]]) -> bytes:
    """The attribute with a program, run by the kernel, that lets the sockets of
    *places* pass.

    It has a condition for each place, joined by "or".
    """
    code = b""
    for port, host in reversed(places):
        length = _STEP.size + _PLACE.size + len(host)
        # If the condition is met, the kernel goes on to the jump, which leads to the
        # end. If not, it goes past the jump, to the next condition.
        if code:
            code = _STEP.pack(_JUMP, _STEP.size, len(code) + _STEP.size) + code
        place = _PLACE.pack(family if host else socket.AF_UNSPEC, len(host) * 8, port) + host
        code = _STEP.pack(_AT, length, length + _STEP.size) + place + code
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(code), _BYTECODE) + code if code else b""


def _request(
    kind: int,
    flags: int,
    sequence: int,
    family: int,
    info: bool,
    states: int,
    ident: bytes,
    attribute: bytes = b"",
) -> bytes:
    wanted = 1 << (INET_DIAG_INFO - 1) if info else 0
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, wanted, 0, states) + ident + attribute
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def parse(data: bytes | memoryview) -> Iterator[Answer]:
    """The messages in one datagram of the kernel, in order.

    Raises:
        BadAnswer: a length does not fit. What was yielded before is whole.
    Cost: 1 to 2 us each.
    """
    view = memoryview(data)
    at, end = 0, len(view)
    while at < end:
        if end - at < _HEADER.size:
            raise BadAnswer(f"{end - at} bytes are left at {at}: too few for a netlink header")
        length, kind, _, sequence, _ = _HEADER.unpack_from(view, at)
        if length < _HEADER.size or length > end - at:
            raise BadAnswer(f"a netlink message at {at} says it has {length} bytes of {end - at}")
        yield _parse_one(view[at + _HEADER.size : at + length], kind, sequence)
        at += (length + 3) & ~3


_SEEN = struct.Struct("=IHHI4xBB2x48sIIIII")  # a header and a message, as one
# of tcp_info: state, retransmits, probes, received ago, received
_MOVED = struct.Struct("=BxBB48xI72xQ")


Sight = tuple[int, int, int, bytes, int, int]
"""Where one message of a dump lies in its datagram, and the least that is said of its
socket: start, end, sequence, ident, queued, start of its `tcp_info`. An empty ident: it
is no socket, but the end of the dump or an error. No start of `tcp_info`, 0: the
message has none.
"""


def scan(data: bytes) -> Iterator[Sight]:
    """The messages in one datagram of a dump, in order. `parse` reads one from start to
    end.

    Raises:
        BadAnswer: a length does not fit. What was yielded before is whole.
    Cost: about 1 us each.
    """
    at, end = 0, len(data)
    usual = place = 0
    while end - at >= _SEEN.size:
        length, kind, _, sequence, _, _, ident, _, _, queued, _, _ = _SEEN.unpack_from(data, at)
        if length < _SEEN.size or length > end - at or kind != SOCK_DIAG_BY_FAMILY:
            break
        # The kernel writes the same attributes for nearly all sockets of a dump.
        if length != usual or (place and data[at + place - 2] != INET_DIAG_INFO):
            usual, place = length, _place_of_info(data, at, at + length)
        yield at, at + length, sequence, ident, queued, place and at + place
        at += (length + 3) & ~3
    while at < end:  # the end of the dump, an error, or a damaged rest
        if end - at < _HEADER.size:
            raise BadAnswer(f"{end - at} bytes are left at {at}: too few for a netlink header")
        length, _, _, sequence, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or length > end - at:
            raise BadAnswer(f"a netlink message at {at} says it has {length} bytes of {end - at}")
        yield at, at + length, sequence, b"", 0, 0
        at += (length + 3) & ~3


def _place_of_info(data: bytes, start: int, end: int) -> int:
    """How many bytes after *start* the `tcp_info` of a message begins; 0: it has none
    to read.
    """
    at = start + _SEEN.size
    while at + 4 <= end:
        length, name = _ATTRIBUTE.unpack_from(data, at)
        if length < 4 or length > end - at:
            raise BadAnswer(f"attribute {name} says it has {length} bytes of {end - at}")
        if name == INET_DIAG_INFO:
            return at + 4 - start if length >= 4 + _MOVED.size else 0
        at += (length + 3) & ~3
    return 0


def movement(data: bytes, at: int) -> tuple[int, int, int, int]:
    """(state, questions in vain, milliseconds since the peer sent data, bytes received)
    at *at*.

    *at* is the start of a `struct tcp_info` in *data*. Questions are retransmissions
    and probes that the peer's kernel has not answered. The byte that the kernel counts
    for the peer's end of file is not among the bytes received.
    """
    state, retransmits, probes, received_ago, received = _MOVED.unpack_from(data, at)
    if state == CLOSE_WAIT and received:
        received -= 1
    return state, retransmits + probes, received_ago, received


def _parse_one(body: memoryview, kind: int, sequence: int) -> Answer:
    if kind in (NLMSG_ERROR, NLMSG_DONE):
        code = _ERROR.unpack_from(body)[0] if len(body) >= _ERROR.size else 0
        return Answer(sequence, error=-code if code < 0 else 0, done=True)
    if kind != SOCK_DIAG_BY_FAMILY:
        raise BadAnswer(f"netlink message of type {kind}: expected {SOCK_DIAG_BY_FAMILY}")
    if len(body) < _MESSAGE.size:
        raise BadAnswer(
            f"an inet_diag message of {len(body)} bytes: expected at least {_MESSAGE.size}"
        )
    family, state, _, _, ident, _, unread, queued, owner, inode = _MESSAGE.unpack_from(body)
    if family not in (AF_INET, AF_INET6):
        raise BadAnswer(f"an inet_diag message of address family {family}")
    at, end, info = _MESSAGE.size, len(body), b""
    while at + 4 <= end:
        length, name = _ATTRIBUTE.unpack_from(body, at)
        if length < 4 or length > end - at:
            raise BadAnswer(f"attribute {name} says it has {length} bytes of {end - at}")
        if name == INET_DIAG_INFO:
            info = bytes(body[at + 4 : at + length])
            break
        at += (length + 3) & ~3
    return Answer(sequence, 0, False, family, state, ident, unread, queued, inode, info, owner)


def cookie_of(ident: bytes | memoryview) -> int:
    """The cookie in *ident*: the kernel's number for the socket, unique while the
    machine runs.
    """
    return int(_COOKIE.unpack_from(ident, 40)[0])


_NO_BYTES = bytes(12)


def family_of(ident: bytes) -> int:
    """AF_INET if both addresses of *ident* fill one word of four, otherwise AF_INET6.

    A dual-stack socket's addresses are ::ffff:a.b.c.d and so remain AF_INET6. An IPv6
    address whose last twelve bytes are zero, in both places at once, cannot belong to a
    connection.
    """
    v4 = ident[8:20] == _NO_BYTES and ident[24:36] == _NO_BYTES
    return AF_INET if v4 else AF_INET6


def addresses_of(ident: bytes, family: int = 0) -> tuple[Address, Address]:
    """(local, remote) of the socket with *ident*.

    Args:
        family: AF_INET or AF_INET6, for a listening socket: its ident does not tell
            `::` from 0.0.0.0.
    """
    local_port, remote_port = _PORTS.unpack_from(ident)
    size = 4 if (family or family_of(ident)) == AF_INET else 16
    return Address(host_of(ident[4 : 4 + size]), local_port), Address(
        host_of(ident[20 : 20 + size]), remote_port
    )


def host_of(packed: bytes) -> str:
    """The address of 4 or 16 bytes as text."""
    host = ipaddress.ip_address(bytes(packed))
    return str(getattr(host, "ipv4_mapped", None) or host)
