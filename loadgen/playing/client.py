"""A client on one connection: it does its acts, and what it saw is kept.

One rule: *a client that was itself late proves nothing*. It measures by how much it
was.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..drive import wire
from ..drive.connecting import why
from ..plan import acts as does
from ..plan.acts import Kind, Want
from ..plan.requests import GOODBYE, get

OWN_LAG = 0.06
"""Seconds by which an act may be late; beyond it the client proves nothing."""
PATIENCE = 6.0
"""Seconds for what is not a matter of limits: an answer after the last act."""
PROMPT = 0.5
"""Seconds within which who leaves at once has left, handshake and all; one that takes
longer may have met a limit, and proves nothing.
"""
LOOK = 0.02
ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2 = 1, 4, 5
"""States of TCP, as Linux numbers them, in which the server has closed nothing."""
Address = tuple[str, int]


class Gone(Exception):
    """The connection ended before an act could be done."""


@dataclass
class Seen:
    """What a client saw.

    Attributes:
        marks: For the connect and for each act, when it began and when it was done.
        ended: When the server ended what the client does; None: not while it looked.
        how: `closed` or `reset`, or what HTTP/2 says.
        late: By how many seconds an act of the client's own was late at most.
        answers: Status and body of each answer that came whole, in order.
        data: What came.
        behind: Whether the server had closed when the client, which took nothing, read
            at last: the end stood behind bytes that its window had kept back.
        lost: Whether a request was on its way that the server neither answered nor
            refused, and it had not said that it would close.
        broke: The law that the server has broken while it answered; "": none was seen.
        refused: Why TLS was not agreed on; "": it was, or is not spoken.
        streams: Of HTTP/2: status, body and end of each stream, in order.
        trailers: Of HTTP/2: those of each stream, by name.
    """

    marks: list[tuple[float, float]] = field(default_factory=list)
    ended: float | None = None
    how: str = ""
    late: float = 0.0
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    data: bytes = b""
    behind: bool = False
    lost: bool = False
    broke: str = ""
    refused: str = ""
    streams: list[tuple[int, bytes, str]] = field(default_factory=list)
    trailers: list[dict[str, str]] = field(default_factory=list)


class Client:
    """One connection, which is up.

    Attributes:
        scheme: That of what it asks for.
        authority: The host of what it asks for in HTTP/2.
        alpn: The protocol that TLS has to agree on; empty: any.
    """

    scheme = "http"
    authority = "localhost"
    alpn = ""
    keeps = False
    """Over TLS: whether what it says after the server's part of the handshake is kept
    until its goodbye.
    """

    def __init__(self, kind: Kind, sock: socket.socket, stop: float = 0.0) -> None:
        self.kind, self.sock, self.seen, self.stop = kind, sock, Seen(), stop
        self.loop = asyncio.get_running_loop()
        self.came = asyncio.Event()
        self.over = asyncio.Event()
        self.data = bytearray()
        self._reading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._coming: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    # ---- bytes
    def hear(self) -> None:
        """Read whatever comes."""
        if self._watching is not None:
            self._watching.cancel()
        self._reading = asyncio.create_task(self._read())

    def deaf(self) -> None:
        """Read nothing, and notice the end all the same. One that lives reads on later,
        and the end of what came may be in its kernel before that: no loss.
        """
        if self._reading is not None:
            self._reading.cancel()
        if self.kind.lives:
            return
        self._watching = asyncio.create_task(self._watch())

    async def _read(self) -> None:
        while not self.over.is_set():
            try:
                data = await self.loop.sock_recv(self.sock, 1 << 18)
            except OSError:
                self._later(self._end, "reset")
                return
            if not data:
                self._later(self._end, "closed")
                return
            self._later(self._arrived, data)

    async def _watch(self) -> None:
        while not self.over.is_set():
            with suppress(OSError):
                state = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                if state not in (ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2):
                    self._end("reset" if state == 7 else "closed")
            await asyncio.sleep(LOOK)

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        if self.kind.lag:
            self._coming.append((call, arguments))
            self.loop.call_later(self.kind.lag, self._next)
        else:
            call(*arguments)

    def _next(self) -> None:
        """What comes at the same instant comes in order."""
        call, arguments = self._coming.popleft()
        call(*arguments)

    def _arrived(self, data: bytes) -> None:
        self.data += data
        self.took(data)
        self.came.set()

    def took(self, data: bytes) -> None:
        """Bytes have come. A WebSocket's goodbye ends what a dead client does, as
        GOAWAY does.
        """
        if self.kind.speaks == "websocket" and not self.kind.lives and goodbye(bytes(self.data)):
            self._end("goodbye")

    def _end(self, how: str) -> None:
        if self.seen.ended is None:
            self.seen.ended, self.seen.how = self.loop.time(), how
        self.over.set()
        self.came.set()

    async def send(self, data: bytes) -> None:
        """Write *data*; with a distance it is written later, in order."""
        if not self.kind.lag:
            await self._write(data)
            return
        before, self._sent = self._sent, self.loop.create_future()
        self.loop.call_later(self.kind.lag, self._begin, data, before, self._sent)

    def _begin(self, data: bytes, before: Any, done: Any) -> None:
        self._writing = asyncio.ensure_future(self._write_after(data, before, done))

    async def _write_after(self, data: bytes, before: Any, done: Any) -> None:
        if before is not None:
            await before
        with suppress(Gone):
            await self._write(data)
        if not done.done():
            done.set_result(None)

    async def _write(self, data: bytes) -> None:
        try:
            await self.loop.sock_sendall(self.sock, data)
        except OSError:
            with suppress(TimeoutError):  # what the server said before is read first
                async with asyncio.timeout(LOOK):
                    await self.over.wait()
            self._end("reset")
            raise Gone from None

    # ---- acts
    async def rest(self, seconds: float) -> None:
        """Do nothing for so long, unless the connection ends."""
        until = self.loop.time() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.over.wait()
            raise Gone
        self.seen.late = max(self.seen.late, self.loop.time() - until)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until *holds*. Raises Gone: the connection ended."""
        while not holds():
            if self.over.is_set():
                raise Gone
            self.came.clear()
            await self.came.wait()

    async def do(self, act: Any) -> None:
        """One act."""
        if isinstance(act, does.Send):
            await self.send(act.data)
        elif isinstance(act, does.Rest):
            await self.rest(act.seconds)
        elif isinstance(act, does.Drip):
            for place in range(0, len(act.data), act.size):
                if place:
                    await self.rest(act.every)
                await self.send(act.data[place : place + act.size])
        elif isinstance(act, does.Until):
            await self.until(lambda: len(self.whole()) >= act.count and act.text in self.data)
        elif isinstance(act, does.Shut):
            await self.shut()
        elif isinstance(act, does.Reset):
            reset_on_close(self.sock)
        elif isinstance(act, does.Deaf):
            self.deaf()
            await asyncio.sleep(0)
        elif isinstance(act, does.Hear):
            self.hear()
        elif isinstance(act, does.Take):
            await self._take(act)
        elif isinstance(act, does.Shake):
            pass  # it was done before anything was heard
        elif isinstance(act, does.At):
            await self.rest(max(0.0, self.stop + act.seconds - self.loop.time()))
        elif isinstance(act, does.Busy):
            await self._busy(act)
        elif isinstance(act, does.Leaves):
            await asyncio.gather(*(self._leaves(act) for _ in range(act.times)))
        elif isinstance(act, does.Again):
            while True:
                await self.rest(act.every)
                for each in act.acts:
                    await self.do(each)
        else:
            raise TypeError(f"{type(act).__name__} is no act of {self.kind.speaks}")

    async def _leaves(self, act: does.Leaves) -> None:
        """Be another client of this server, who speaks, and is gone."""
        kind = Kind(name="leaves", speaks=self.kind.speaks, acts=act.acts)
        try:
            address = self.sock.getpeername()
        except OSError:
            raise Gone from None
        with socket.socket(self.sock.family) as sock:
            sock.setblocking(False)
            await self.loop.sock_connect(sock, address)
            began = self.loop.time()
            other = self.like_this(kind, sock)
            other.keeps = act.whole
            with suppress(Gone, ssl.SSLError):
                await other.shake()
                other.hear()
                for each in act.acts:
                    await other.do(each)
            if other._reading is not None:
                other._reading.cancel()
                await asyncio.wait([other._reading])  # before its descriptor is another's
            with suppress(Gone):
                await other.shut()
            self.seen.late = max(self.seen.late, self.loop.time() - began - PROMPT)

    def like_this(self, kind: Kind, sock: socket.socket) -> Client:
        """A client of *kind* that speaks as this one does."""
        return type(self)(kind, sock, self.stop)

    async def shake(self) -> None:
        """Do what comes before the first byte. Raises Gone."""

    async def _take(self, act: does.Take) -> None:
        while len(self.data) < act.total:
            left = act.size
            while left > 0:
                try:
                    data = await self.loop.sock_recv(self.sock, min(left, 65536))
                except OSError:
                    data = b""
                if not data:
                    self._end("cut")
                    raise Gone
                left -= len(data)
                self._arrived(data)
            await self.rest(act.every)

    async def shut(self) -> None:
        """Send the end of file."""
        self._later(self._shut)

    def _shut(self) -> None:
        with suppress(OSError):  # the server has reset it meanwhile
            self.sock.shutdown(socket.SHUT_WR)

    async def _busy(self, act: does.Busy) -> None:
        until = self.loop.time() + act.seconds
        while self.loop.time() < until and not self.over.is_set():
            if not await self.asked():
                self.seen.lost = not self.told()
                break
            if self.told():
                break
            with suppress(Gone):  # nothing is on its way: a client of that kind comes again
                await self.rest(act.every)

    async def asked(self) -> bool:
        """Ask once more; whether it was answered."""
        before = len(self.all_answers())
        with suppress(Gone):
            await self.send(get())
            await self.until(lambda: len(self.all_answers()) > before)
        return len(self.all_answers()) > before

    def told(self) -> bool:
        """Whether the server has said that it will close the connection."""
        return says_the_last(self.data)

    def all_answers(self) -> list[tuple[int, bytes]]:
        """The answers of HTTP/1 that have come whole, however many are wanted."""
        return answers(self.data, (), self.over.is_set())

    # ---- what came
    def note(self) -> None:
        """Keep what is known of it besides."""

    def whole(self) -> list[tuple[int, bytes]]:
        """The answers that have come whole."""
        if self.kind.speaks not in ("http", "tls"):
            return []
        return answers(self.data, self.kind.answers, self.over.is_set())

    def content(self) -> bool:
        """Whether all that the kind has to hear has come."""
        return self.kind.heard(self.data) and len(self.whole()) >= len(self.kind.answers)

    async def _ends_behind(self) -> bool:
        """Read all that has waited; whether an end comes behind it."""
        self.hear()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE / 4):
                await self.over.wait()
        ended, self.seen.ended = self.seen.ended is not None, None
        return ended and not self.served()

    def served(self) -> bool:
        """Whether an answer has come whole."""
        return bool(self.whole())

    async def play(self, patience: float) -> Seen:
        """Do all acts, and wait until the kind has what it wants, or *patience* is
        over.
        """
        seen, acts = self.seen, self.kind.acts
        if not self.kind.lives and self.kind.since is not None:
            acts = acts[: max(0, self.kind.since - 1)]  # what comes then goes on until it is ended
        self.hear()
        try:
            ahead = [self.stop + act.seconds for act in acts if isinstance(act, does.At)]
            wait = max(0.0, max(ahead, default=0.0) - self.loop.time())
            async with asyncio.timeout(patience + wait + planned(acts)):
                for act in self.kind.acts:
                    began = self.loop.time()
                    await self.do(act)
                    seen.marks.append((began, self.loop.time()))
                if self.kind.lives:
                    await self.until(self.content)
                else:
                    await self.over.wait()
        except Gone:
            pass
        except TimeoutError:
            if self._watching is not None and not self.kind.lives:
                seen.behind = await self._ends_behind()
        finally:
            seen.answers, seen.data = self.whole(), bytes(self.data)
            self.note()
            tasks = [task for task in (self._reading, self._watching) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # before its descriptor is another's
            self.sock.close()
        return seen


ANY = wire.Tls("localhost", insecure=True)
"""How a client of TLS speaks if nobody says it."""


class Tls(Client):
    """The same over TLS. An end of file is `close_notify`."""

    scheme = "https"

    def __init__(
        self, kind: Kind, sock: socket.socket, stop: float = 0.0, tls: wire.Tls = ANY
    ) -> None:
        super().__init__(kind, sock, stop)
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.context().wrap_bio(self._came, self._goes, server_hostname=tls.name)
        self._spoken, self._up = tls, False
        self._kept = b""

    def like_this(self, kind: Kind, sock: socket.socket) -> Client:
        return type(self)(kind, sock, self.stop, self._spoken)

    async def shake(self) -> None:
        """Do the handshake in the way of the kind. Raises Gone."""
        act: does.Act | None = self.kind.acts[0] if self.kind.acts else None
        while not self._up:
            try:
                self._tls.do_handshake()
                self._up = True
            except ssl.SSLWantReadError:
                pass
            data = self._goes.read()
            if isinstance(act, does.Shake):
                await super()._write(data[: len(data) // 2])
                if act.apart is None:
                    return
                until = self.loop.time() + act.apart
                await asyncio.sleep(act.apart)
                self.seen.late = max(self.seen.late, self.loop.time() - until)
                data, act = data[len(data) // 2 :], None
            if self._up and self.keeps:
                self._kept = data
            else:
                await super()._write(data)
            if not self._up:
                try:
                    came = await self.loop.sock_recv(self.sock, 1 << 16)
                except OSError:
                    came = b""
                if not came:
                    raise Gone
                self._came.write(came)

    async def shake_or_end(self) -> None:
        """Do the handshake; if the server ends it, or agrees on another protocol than
        is spoken, that was the end.
        """
        try:
            await self.shake()
        except (Gone, ssl.SSLError) as error:
            self._end("closed in the handshake")
            self.seen.refused = why(error) if isinstance(error, OSError) else "TLS"
            return
        if self.alpn and self._up and self._tls.selected_alpn_protocol() != self.alpn:
            self.seen.refused = f"the server does not offer {self.alpn} by ALPN"
            self._end(self.seen.refused)

    def _arrived(self, data: bytes) -> None:
        self._came.write(data)
        plain, end = b"", ""
        try:
            while self._up and not end:
                piece = self._tls.read(1 << 16)
                plain += piece
                end = "" if piece else "close_notify"
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            end = "alert"
        if plain:
            super()._arrived(plain)  # before the end that stands behind it
        if end:
            self._end(end)

    async def _write(self, data: bytes) -> None:
        if not self._up:
            raise Gone
        self._tls.write(data)
        self._kept += self._goes.read()
        if not self.keeps:
            data, self._kept = self._kept, b""
            await super()._write(data)

    async def shut(self) -> None:
        with suppress(ssl.SSLError):  # it would wait for the server's
            self._tls.unwrap()
        data, self._kept = self._kept + self._goes.read(), b""
        await super()._write(data)


HEAD_END = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


def answers(
    data: bytes | bytearray, wanted: tuple[Want, ...], ended: bool
) -> list[tuple[int, bytes]]:
    """The answers of HTTP/1 in *data* that are whole; *ended*: no more will come.
    Copies nothing but their bodies: it is asked with each piece that comes.
    """
    found: list[tuple[int, bytes]] = []
    place = 0
    while (end := data.find(HEAD_END, place)) >= 0:
        head, place = bytes(data[place:end]), end + len(HEAD_END)
        if not head.startswith(b"HTTP/"):
            break  # what comes before it is of no answer
        words = head.split(None, 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status < 200 and status != 101:
            continue
        want = wanted[len(found)] if len(found) < len(wanted) else Want()
        length = LENGTH.search(head)
        if want.head or status in (101, 204, 304):
            body: bytes | None = b""
        elif CHUNKED.search(head):
            body, place = chunks(data, place)
        elif length is not None:
            behind = place + int(length[1])
            body = bytes(data[place:behind]) if len(data) >= behind else None
            place = behind
        else:
            body = bytes(data[place:]) if ended else None
            place = len(data)
        if body is None:
            break
        found.append((status, body))
    return found


def says_the_last(data: bytes | bytearray) -> bool:
    """Whether an answer of HTTP/1 in *data* says that it is the last of its connection:
    by a word, or by a version that knows no other way (RFC 9112 9.3).
    """
    said = bytes(data).lower()
    if b"\r\nconnection: close" in said:
        return True
    return said.startswith(b"http/1.0 ") and b"\r\nconnection: keep-alive" not in said


def goodbye(data: bytes) -> bool:
    """Whether a WebSocket's server has said goodbye in *data*, which begins with its
    answer.
    """
    frames = data.partition(HEAD_END)[2]
    while len(frames) >= 2:
        if frames[0] & 0x0F == GOODBYE:
            return True
        size, head = frames[1] & 0x7F, 2
        if size > 125:
            head += 2 if size == 126 else 8
            size = int.from_bytes(frames[2:head], "big")
        frames = frames[head + size :]
    return False


def chunks(data: bytes | bytearray, place: int) -> tuple[bytes | None, int]:
    """The body in chunks that begins at *place* of *data*, None if it is not whole; and
    where it ends.
    """
    body = bytearray()
    while (end := data.find(b"\r\n", place)) >= 0:
        size = int(bytes(data[place:end]).partition(b";")[0], 16)
        place = end + 2
        if len(data) < place + size + 2:
            break
        body += data[place : place + size]
        place += size + 2
        if not size:
            return bytes(body), place
    return None, place


def planned(acts: tuple[Any, ...]) -> float:
    """The seconds that *acts* take if nobody is late."""
    total = 0.0
    for act in acts:
        if isinstance(act, does.Rest | does.Busy):
            total += act.seconds
        elif isinstance(act, does.Drip):
            total += act.every * (len(act.data) // act.size)
        elif isinstance(act, does.Take):
            total += act.every * (act.total / act.size + 1)
        elif isinstance(act, does.Pings | does.Open):
            total += act.every * act.count
    return total


def reset_on_close(sock: socket.socket) -> None:
    """Have *sock* say RST when it is closed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
