"""What an idle TLS connection holds on asyncio's own loop, and giving it back.

The rule of this module: *a connection at rest holds no buffer, and a busy one is not
touched*. `asyncio.sslproto` keeps a read buffer of 256 KiB for each connection as long
as it lives, and OpenSSL keeps its two memory buffers as large as they have ever been. A
connection is at rest when nothing was read from it between two looks. The buffer itself
says so: the first look writes a byte into it that no TLS record begins with, and the
next read writes over it. At the next read the protocol makes itself another buffer, a
small one.

Nothing waits, and no connection has a timer or a task: the reaper looks at a share of
them when it wakes. Where one of the `NAMES` is missing, and on another loop than
asyncio's own, nothing is done.
"""

from __future__ import annotations

import asyncio.selector_events
import asyncio.sslproto
import ctypes
import ssl
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

NAMES: dict[str, tuple[str, ...]] = {
    "_SSLProtocolTransport": ("_ssl_protocol",),
    "SSLProtocol": (
        *("_incoming", "_outgoing", "_ssl_buffer", "_ssl_buffer_view", "_write_backlog"),
        *("get_buffer", "max_size"),
    ),
}
"""The private names of asyncio.sslproto that are used here, by the class they belong
to.
"""

ROUND = 4.0
"""Seconds between two looks at a connection, at the least."""

LOOKS_PER_WAKE = 1024
"""About a millisecond."""

RELEASED_PER_WAKE = 64
"""About a millisecond, too: the system takes back the pages of each."""

WORTH_TRIMMING = 16
"""Buffers released since the allocator was last told: 4 MiB."""

TRIM_PAUSE = 10.0
"""Seconds in which the allocator is told once at the most."""

TRIM_SHARE = 0.002
"""The share of time that is spent on telling it, at most."""

MARK = 0xFF

SMALL = 16384
"""Bytes of the buffer that a connection makes itself when it wakes: a TLS record. A new
one of 256 KiB costs 200 us, for the system has to find a page for each 4 KiB of it. Who
fills this one gets the large one back.
"""

UNFILLED = (0, MARK)
"""What the last byte of a buffer is that has not been filled since it was made, or
looked at.
"""

_SET_BUF_MEM, _CLOSE = 114, 1  # OpenSSL's BIO_C_SET_BUF_MEM and BIO_CLOSE


def missing() -> list[str]:
    """The `NAMES` that the running asyncio does not have, as `Class.name`; empty: it
    fits.
    """
    return [
        f"{kind}.{name}"
        for kind, names in NAMES.items()
        for name in names
        if name not in _names_of(getattr(asyncio.sslproto, kind, None))
    ]


def _names_of(kind: Any) -> set[str]:
    """The attributes of *kind*, those that its methods set included."""
    codes = [code for each in vars(kind).values() if (code := getattr(each, "__code__", None))]
    return set(dir(kind)).union(*(code.co_names for code in codes)) if kind else set()


def fits(loop: Any) -> bool:
    """Whether the TLS of *loop* makes itself a new read buffer when it finds one too
    small, and reads into it only while it runs.
    """
    if not isinstance(loop, asyncio.selector_events.BaseSelectorEventLoop) or missing():
        return False
    empty = bytearray()
    bare: Any = SimpleNamespace(max_size=64, _ssl_buffer=empty, _ssl_buffer_view=memoryview(empty))
    try:
        return len(asyncio.sslproto.SSLProtocol.get_buffer(bare, -1)) == 64
    except Exception:
        return False


class Resting:
    """The TLS connections of one loop. Those at rest hold no buffer.

    Args:
        trim: Tells the allocator to give back what is free; None: there is no way.
    Attributes:
        released: How many times a connection at rest has given back its buffer.
    """

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        self.released: int = 0
        self._trim = trim
        # A weak reference equals another to the same, so each is in there once.
        self._members: set[weakref.ref[Any]] = set()
        self._round: Iterator[weakref.ref[Any]] = iter(())
        self._next_round = self._next_trim = float("-inf")
        self._untrimmed = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, transport: Any) -> None:
        """Look at the connection of *transport* from now on, as long as it lives, if it
        has TLS.
        """
        protocol = getattr(transport, "_ssl_protocol", None)
        if isinstance(protocol, asyncio.sslproto.SSLProtocol):
            self._members.add(weakref.ref(protocol))

    def look(self, now: float) -> None:
        """Look at some connections, and have those give back what they hold that are at
        rest.
        """
        if not self._members:
            return
        before = self.released
        for _ in range(LOOKS_PER_WAKE):
            reference = next(self._round, None)
            if reference is None:
                if now < self._next_round:
                    break
                self._next_round = now + ROUND
                self._round = iter(list(self._members))
                continue
            protocol = reference()
            if protocol is None:
                self._members.discard(reference)
            elif buffer := protocol._ssl_buffer:
                quiet, last = buffer[0] == MARK, buffer[-1]
                buffer[0] = buffer[-1] = MARK
                if len(buffer) == SMALL and last not in UNFILLED:
                    protocol.__dict__.pop("max_size", None)
                if not quiet:
                    continue
                _release(protocol)
                self.released += 1
                if self.released - before >= RELEASED_PER_WAKE:
                    break
        self._untrimmed += self.released - before
        if self._trim is not None and self._untrimmed >= WORTH_TRIMMING and now >= self._next_trim:
            self._untrimmed = 0
            began = time.perf_counter()
            self._trim()
            spent = time.perf_counter() - began
            self._next_trim = now + max(TRIM_PAUSE, spent / TRIM_SHARE)


def _release(protocol: Any) -> None:
    protocol._ssl_buffer = empty = bytearray()
    protocol._ssl_buffer_view = memoryview(empty)
    protocol.max_size = min(SMALL, type(protocol).max_size)
    if not protocol._write_backlog:
        for bio in (protocol._incoming, protocol._outgoing):
            if not bio.pending:
                _shrink(bio)


def _shrinks() -> Callable[[ssl.MemoryBIO], object]:
    """A function that gives an empty `MemoryBIO` a new buffer; one that does nothing,
    where its layout or OpenSSL's functions are not as expected.
    """
    place = object.__basicsize__  # of the pointer to OpenSSL's own, the first field
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    known = (3, 11) <= sys.version_info[:2] <= (3, 14) and sys.implementation.name == "cpython"
    if not known or ssl.MemoryBIO.__basicsize__ != place + 2 * ctypes.sizeof(pointer):
        return lambda bio: None
    try:
        import _ssl

        library = ctypes.PyDLL(_ssl.__file__)
        control, make = library.BIO_ctrl, library.BUF_MEM_new
    except (ImportError, AttributeError, OSError):
        return lambda bio: None
    control.argtypes, control.restype = [pointer, integer, ctypes.c_long, pointer], ctypes.c_long
    make.argtypes, make.restype = [], pointer

    def shrink(bio: ssl.MemoryBIO) -> None:
        if fresh := make():
            control(pointer.from_address(id(bio) + place), _SET_BUF_MEM, _CLOSE, fresh)

    return shrink


_shrink = _shrinks()


def trimmer() -> Callable[[], object] | None:
    """The C library's own function that gives free memory back to the system; None: it
    has none.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)
