"""What an idle TLS connection holds on asyncio's own loop, and giving it back.

The rule of this module: *a connection at rest holds no buffer, and a busy one is not
touched*. `asyncio.sslproto` keeps a read buffer of 256 KiB for each connection as long
as it lives, and OpenSSL keeps its two memory buffers as large as they have ever been. A
connection is at rest when nothing was read from it between two looks. The buffer itself
says so: the first look writes a mark at its beginning, and the next read writes over
it. A read may begin amid a record, with any byte; none begins with the whole mark.

On Linux a connection gets a buffer of the same size outside the heap as soon as it is
known, and keeps it: at rest the system takes the pages back, and the next read brings
back as many as it fills. The buffers of asyncio lie in the heap, one between what any
two connections keep. Small things then share a page with what was given back, and the
page stays: 5 KB a connection when a thousand come at once, and nothing when they come
so slowly that each fills the gap another has left.

Where no such buffer is to be had, the pages of asyncio's own go back to the system and
the buffer is freed; at the next read the protocol makes itself another, a small one. In
both ways no allocator has to be told of it, which for thousands of connections would
hold the loop for a tenth of a second. What the large messages themselves have left in
the heap, the allocator is told to give back now and then.

Nothing waits, and no connection has a timer or a task: the reaper looks at a share of
them when it wakes. Where one of the `NAMES` is missing, and on another loop than
asyncio's own, nothing is done.
"""

from __future__ import annotations

import asyncio.selector_events
import asyncio.sslproto
import ctypes
import mmap
import ssl
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from ..foreign import RESTING

NAMES: dict[str, tuple[str, ...]] = {
    place.partition(":")[2]: tuple(names.split()) for place, names in RESTING.names.items()
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
"""Connections that have come to rest since the allocator was last told."""

TRIM_PAUSE = 10.0
"""Seconds in which the allocator is told once at the most."""

TRIM_SHARE = 0.002
"""The share of time that is spent on telling it, at most."""

LENT = 16_384
"""Connections of the process that are lent a buffer, in all its loops. Each may be a
mapping of its own, and the system allows a process 65,530.
"""

_BORROWERS: set[weakref.ref[Any]] = set()
"""Those that are. Loops of several threads share it: each step is one of the set's."""

MARK = b"\xff" * 8
NOTHING = bytes(len(MARK))
"""What a buffer begins with that was not read into since it was given back."""

SMALL = 16384
"""Bytes of a TLS record, and of the buffer that a connection which was lent none makes
itself when it wakes. A new one of 256 KiB costs 200 us, for the system has to find a
page for each 4 KiB of it. Who fills this one gets the large one back.
"""

WORTH_SPLITTING = 4096
"""Bytes that a read of a loop may leave in a variable of it."""

LITTLE = 256

UNFILLED = (NOTHING, MARK)
"""What a buffer ends with that has not been filled since it was made, or looked at."""

# OpenSSL's BIO_C_SET_BUF_MEM, BIO_C_GET_BUF_MEM_PTR and BIO_CLOSE
_SET_BUF_MEM, _GET_BUF_MEM, _CLOSE = 114, 115, 1
_DONTNEED = 4  # Linux: the pages are zeros from now on, and taken anew when written


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


class Allocator:
    """Tells the C library now and then to give back what is free.

    Args:
        trim: Tells it; None: there is no way.
        worth: Connections that have come to rest since it was last told.
    """

    def __init__(self, trim: Callable[[], object] | None, worth: int) -> None:
        self._trim, self._worth = trim, worth
        self._untrimmed = 0
        self._next = float("-inf")

    def freed(self, count: int) -> None:
        """So many more connections have come to rest."""
        self._untrimmed += count

    def wait(self, now: float) -> float | None:
        """Seconds until it may be told; None: that is not worth while."""
        if self._trim is None or self._untrimmed < self._worth:
            return None
        return max(self._next - now, 0.0)

    def give_back(self, now: float) -> None:
        """Tell it if that is worth while, and not too soon."""
        if self._trim is None or self.wait(now) != 0.0:
            return
        self._untrimmed = 0
        began = time.thread_time()
        self._trim()
        self._next = now + max(TRIM_PAUSE, (time.thread_time() - began) / TRIM_SHARE)


class Resting:
    """The TLS connections of one loop. Those at rest hold no buffer.

    Args:
        trim: Tells the allocator to give back what is free; None: there is no way.
    Attributes:
        released: How many times a connection at rest has given back its buffer.
    """

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        self.released: int = 0
        self._allocator = Allocator(trim, WORTH_TRIMMING)
        # A weak reference equals another to the same, so each is in there once. With
        # it: whether the buffer it was lent has been given back.
        self._members: dict[weakref.ref[Any], bool] = {}
        self._forget: Callable[[weakref.ref[Any]], None] = _forgetting(self._members)
        self._round: Iterator[weakref.ref[Any]] = iter(())
        self._next_round = float("-inf")

    def __len__(self) -> int:
        return len(self._members)

    def add(self, transport: Any) -> None:
        """Look at the connection of *transport* from now on, as long as it lives, if it
        has TLS.
        """
        protocol = getattr(transport, "_ssl_protocol", None)
        if not isinstance(protocol, asyncio.sslproto.SSLProtocol):
            return
        reference = weakref.ref(protocol, self._forget)
        if reference not in self._members:
            if len(_BORROWERS) < LENT and _lend(protocol):
                _BORROWERS.add(reference)
            _pack(protocol)
            self._members[reference] = False

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
            if protocol is not None and (buffer := protocol._ssl_buffer):
                first = buffer[: len(MARK)]
                if self._members[reference] and first == NOTHING:
                    continue  # nothing was read since; a mark would take a page
                buffer[: len(MARK)] = MARK
                if len(buffer) == SMALL:
                    last, buffer[-len(MARK) :] = buffer[-len(MARK) :], MARK
                    if last not in UNFILLED:
                        protocol.__dict__.pop("max_size", None)
                if first != MARK:
                    self._members[reference] = False
                    continue
                self._members[reference] = isinstance(buffer, mmap.mmap)
                _release(protocol)
                self.released += 1
                if self.released - before >= RELEASED_PER_WAKE:
                    break
        released = self.released - before
        self._allocator.freed(released)
        if released < RELEASED_PER_WAKE:  # or others come to rest in the next wake
            self._allocator.give_back(now)


def _forgetting(members: dict[weakref.ref[Any], bool]) -> Callable[[weakref.ref[Any]], None]:
    """A function that forgets a connection which has been freed.

    No look would do: it takes some at a time, and others can end faster.
    """

    def forget(reference: weakref.ref[Any]) -> None:
        members.pop(reference, None)
        _BORROWERS.discard(reference)

    return forget


def _lend(protocol: Any) -> bool:
    """Give *protocol* a buffer outside the heap instead of its own, if it has one of
    the full size, and the system has the pages. Returns whether it did.

    It then reads what it has decrypted into objects of a record, not of 256 KiB: it
    gets no more than a record at a time in any case.
    """
    buffer = protocol._ssl_buffer
    if len(buffer) != protocol.max_size or not (fresh := _map(len(buffer))):
        return False
    protocol._ssl_buffer, protocol._ssl_buffer_view = fresh, memoryview(fresh)
    protocol.max_size = min(SMALL, len(buffer))
    return True


def _pack(protocol: Any) -> None:
    """Give *protocol* a dictionary of its attributes that fits. Its own has grown by
    one at a time, to 1,520 bytes, and half of that is empty.
    """
    protocol.__dict__ = dict(vars(protocol).items())


def _map(length: int) -> mmap.mmap | None:
    """Zeros that take no memory until they are written; None: not on this system, or
    it has no more.
    """
    if sys.platform != "linux":
        return None
    try:
        fresh = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            # Neighbours become one mapping, which the system may give a huge page.
            fresh.madvise(mmap.MADV_NOHUGEPAGE)
    except OSError:
        return None
    return fresh


def _release(protocol: Any) -> None:
    buffer = protocol._ssl_buffer
    if isinstance(buffer, mmap.mmap):
        buffer.madvise(mmap.MADV_DONTNEED)
    else:
        _give_back(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), len(buffer))
        protocol._ssl_buffer = empty = bytearray()
        protocol._ssl_buffer_view = memoryview(empty)
        protocol.max_size = min(SMALL, type(protocol).max_size)
    if not protocol._write_backlog:
        for bio in (protocol._incoming, protocol._outgoing):
            if not bio.pending:
                _shrink(bio)


def leave_little(reader: asyncio.StreamReader) -> None:
    """Have a long read of *reader* that takes all that has come leave the last `LITTLE`
    bytes to the next read, until `take_all`.

    For servers that read in a loop: what was read last lies in a variable of the loop
    for as long as the client is silent, and may be 64 KiB.
    """
    read = reader.read

    async def in_two(n: int = -1) -> bytes:
        data = await read(n)
        if WORTH_SPLITTING < len(data) < n and not reader.at_eof():
            reader.feed_data(data[-LITTLE:])
            data = data[:-LITTLE]
        return data

    reader.read = in_two  # type: ignore[method-assign]


def take_all(reader: asyncio.StreamReader) -> None:
    """End what `leave_little` began, if it did. Reader and function hold each other."""
    vars(reader).pop("read", None)


class _BufMem(ctypes.Structure):
    """OpenSSL's BUF_MEM: it owns *max* bytes at *data*."""

    _fields_ = (
        ("length", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("max", ctypes.c_size_t),
        ("flags", ctypes.c_ulong),
    )


def _gives_back() -> Callable[[int, int], object]:
    """A function that is given an address and a length, and makes the whole pages in
    between zeros that take no memory; one that does nothing where that is no call of
    the system.
    """
    try:
        advise = ctypes.PyDLL(None).madvise  # it is short: keep the interpreter's lock
    except (AttributeError, OSError, TypeError):
        return lambda address, length: None
    if not sys.platform.startswith("linux"):
        return lambda address, length: None
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = mmap.PAGESIZE

    def give_back(address: int, length: int) -> None:
        begin, end = -(-address // page) * page, (address + length) // page * page
        if end > begin:
            advise(begin, end - begin, _DONTNEED)

    return give_back


_give_back = _gives_back()


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
        here = pointer.from_address(id(bio) + place)
        if fresh := make():
            old = ctypes.POINTER(_BufMem)()
            if control(here, _GET_BUF_MEM, 0, ctypes.byref(old)) > 0 and old:
                _give_back(old.contents.data or 0, old.contents.max)
            control(here, _SET_BUF_MEM, _CLOSE, fresh)

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
