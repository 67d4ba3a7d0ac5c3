"""Single clients for programs: one plays a named behaviour, and tells how it ended and
when.

    ended = await play("slow_headers", target)     # how long is a connection borne?
    ended = await attack("unread", target, until)  # again, until until() is true
    await keep_asking(target, until, account)      # healthy: a connection a request
    await Client("chatty", target).play(until)     # healthy, and it stays

One rule: *only the client's side is looked at*. A wait runs from the instant from which
a correct server would count to the close as the client's own kernel saw it; what a
client does by itself is never held against the server.

They play a behaviour, and no acts, as `playing` does: acts are a row that is written
down, and a behaviour has no end, its steps are drawn one by one. So who asks, attacks
or vanishes here does to the byte what one of 17,000 clients of `run` does.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from select import EPOLLOUT
from time import monotonic
from typing import Any

from .drive.client import Player
from .drive.connecting import why
from .drive.protocols import READ_BYTES, ROOT, Paths, dialect_for
from .drive.wire import Tls, ended, prepare, receive, send
from .plan.behaviours import KINDS, Act, Attack, Behaviour
from .plan.scenario import ClientSpec
from .units import Target, parse_target

PATIENCE = 20.0
"""Seconds for a connection, and for an answer."""
LOOK = 0.02
"""Seconds between two looks at a connection that must not be read, or whose buffer is
full.
"""
SMALL_BUFFER = 4096
"""Bytes that the kernel may hold for a client that does not read, so that an answer
stops soon.
"""
SEND_BUFFER = 1 << 16
"""Bytes that the kernel may hold of what a client sends.

Megabytes would outlive the client: the server would read them long after it has gone.
"""
KEPT = 1000
"""Bytes that are kept of what the server sent last."""
FOREVER = float("inf")
OWN_LAG = 1.0
"""Seconds from connect(2) to the request from which on a client that asks once is not
judged.
"""
ATTACKS = tuple(kind for kind, cls in KINDS.items() if issubclass(cls, Attack))
"""Kinds of clients that hold a connection, or make the server work, and give nothing
for it.
"""

Until = Callable[[], bool]


def never() -> bool:
    """Says of a client that only the server ends it."""
    return False


@dataclass(frozen=True)
class Speech:
    """What clients speak and ask for; *timeout* is the T of their behaviours, in
    seconds.
    """

    protocol: str = "http"
    paths: Paths = ROOT
    tls: Tls | None = None
    timeout: float = 1.0


HTTP = Speech()


@dataclass
class Ended:
    """What became of one client.

    Attributes:
        how: "closed" or "reset" by the server, "left" (the client did, or `until` said
            so), or "refused" (the connection was never established).
        connected: The instant of the call to connect, on the monotonic clock.
        ready: The instant from which the server may take the connection for ready: TLS
            and the upgrade are through.
        since: The instant at which a correct server begins to count.
        at: The instant of the end.
        failure: Why a connection was refused: "ECONNREFUSED",
            "CERTIFICATE_VERIFY_FAILED", ...
        asked: Units of answer that the client asked for.
        answered: Units of answer that came.
        overslept: Whether the client was itself so late that the server may have closed
            before.
        slowest: Seconds that the slowest answer took.
        wrong: Unexpected statuses, and how often each came.
        answer: The beginning of what the server answered.
        said: What the server said last besides.
    """

    kind: str
    how: str = "refused"
    connected: float = 0.0
    ready: float = 0.0
    since: float = 0.0
    at: float = 0.0
    failure: str = ""
    asked: int = 0
    answered: int = 0
    overslept: bool = False
    slowest: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)
    answer: bytes = b""
    said: bytes = b""

    @property
    def borne(self) -> float | None:
        """Seconds for which the server bore it; None if the server did not close it."""
        return self.at - self.since if self.how in ("closed", "reset") else None

    @property
    def lost(self) -> str:
        """What a healthy client lost, in a word or two; empty if it lost nothing."""
        if self.how == "refused":
            return f"connect: {self.failure}"
        if self.how != "left" and not self.overslept:
            return self.how
        if self.answered < self.asked and not self.overslept:
            return "unanswered"
        return "".join(f"status {status}" for status in list(self.wrong)[:1])


@dataclass
class Account:
    """What healthy clients saw, all together.

    Attributes:
        asked: How many requests they made.
        late: How many clients are not judged because they were themselves too late.
        lost: Each loss, in a word or two.
        worst: Seconds that the slowest answer took.
    """

    asked: int = 0
    late: int = 0
    lost: list[str] = field(default_factory=list)
    worst: float = 0.0

    @property
    def losses(self) -> dict[str, int]:
        """Each kind of loss, and how often it happened."""
        return dict(Counter(self.lost))

    def add(self, ended: Ended) -> None:
        """Count one client's end."""
        self.asked += ended.asked
        self.worst = max(self.worst, ended.slowest)
        self.late += ended.overslept
        if ended.lost:
            self.lost.append(ended.lost)


def behaviour(kind: str, timeout: float = 1.0, **parameters: str) -> Behaviour:
    """Make the behaviour called *kind*, where T is *timeout* seconds.

    *parameters* are written as in a scenario: `every="200ms"`. Raises BadArgument: the
    kind has no such parameter; KeyError: there is no such kind.
    """
    return ClientSpec(KINDS[kind].kind, kind, 1.0, tuple(parameters.items())).behaviour(
        timeout, 1e9
    )


class Client(Player):
    """One client with one connection.

    `port` is the client's own, once it has connected. `ended` is filled while the
    client plays.
    """

    def __init__(
        self, kind: str | Behaviour, target: Target | tuple[str, int], speech: Speech = HTTP
    ) -> None:
        super().__init__(
            0, 0, 1, behaviour(kind, speech.timeout) if isinstance(kind, str) else kind
        )
        self.target = (
            target if isinstance(target, Target) else parse_target(f"{target[0]}:{target[1]}")
        )
        self.speech = speech
        spoken = self.behaviour.protocols
        protocol = speech.protocol if not spoken or speech.protocol in spoken else spoken[0]
        self.dialect = dialect_for(protocol, self.target, speech.paths)
        self.parser: Any = self.dialect.parser() if self.dialect.stateful else None
        self.ended = Ended(self.behaviour.kind, wrong=self.dialect.wrong)
        self.port = 0
        self.sock: socket.socket | None = None
        self.reads = self.behaviour.reads
        self.outbox = b""

    async def play(self, until: Until = never, patience: float = FOREVER, key: int = 1) -> Ended:
        """Connect, and play until the server or the plan ends it.

        The client leaves when *until()* is true, or after *patience* seconds.
        """
        self.key, ended = key, self.ended
        ended.connected = ended.since = ended.ready = monotonic()
        try:
            async with asyncio.timeout(min(patience, PATIENCE)) as limit:
                heard = await self._connect()
            self.established = monotonic()
            self._hear(heard)
            ended.how = await self._until_ended(until, ended.connected + patience)
        except OSError as error:  # a TimeoutError is one
            if self.established:
                ended.how = "reset"
            else:
                ended.failure = "timed out" if limit.expired() else why(error)
        finally:
            ended.at = monotonic()
            if self.sock is not None:
                self.sock.close()
        return ended

    async def _connect(self) -> bytes:
        sock = self.sock = socket.socket(self.target.family)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if not self.reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        await asyncio.get_running_loop().sock_connect(sock, (self.target.host, self.target.port))
        self.port = sock.getsockname()[1]
        if self.behaviour.before_tls:
            return b""
        fd = sock.fileno()  # it stays the same when TLS takes the socket over
        with closing(prepare(sock, self.ended.connected, self.speech.tls, self.dialect)) as opening:
            while True:
                try:
                    event = next(opening)
                except StopIteration as done:
                    self.sock, heard, self.ended.ready = done.value
                    self.ended.since = self.ended.ready
                    return bytes(heard)
                await readiness(fd, writing=event == EPOLLOUT)

    async def _until_ended(self, until: Until, give_up: float) -> str:
        due = self.next_step() or FOREVER
        while not until() and (now := monotonic()) < give_up:
            if not self.reads and ended(self._socket):
                return "closed"
            if self.outbox:
                self._send(b"")
            elif now >= due:
                # One that is late may have been closed meanwhile: speaking now would
                # hide for how long it was borne.
                if self.reads and self._read_the_end():
                    return "closed"
                if not self._act(self.act, now):
                    break
                due = self.next_step() or FOREVER
                continue
            if await self._listen(min(due, give_up), until):
                return "closed"
        return "left"

    async def _listen(self, due: float, until: Until) -> bool:
        """Wait for something to read, or for *due*; returns whether the stream has
        ended.
        """
        wait = min(due - monotonic(), FOREVER if until is never else 0.1)
        if not self.reads or self.outbox:
            await asyncio.sleep(min(max(wait, 0.0), LOOK))
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0.0) if wait != FOREVER else None):
                    await readiness(self._socket.fileno())
        return self.reads and self._read_the_end()

    def _read_the_end(self) -> bool:
        """Read what has come; returns whether the stream has ended."""
        with suppress(BlockingIOError):
            data = receive(self._socket)
            self._hear(data)
            return not data
        return False

    def _act(self, act: Act, now: float) -> bool:
        """Do the step that is due at *now*; returns whether the connection goes on."""
        sock, number = self._socket, self.number
        self.number += 1
        if act is Act.READ:
            with suppress(BlockingIOError):
                if not (data := receive(sock, READ_BYTES)):
                    raise ConnectionError
                self.ended.said = data[-KEPT:]
            return True
        if act is Act.RESET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if act in (Act.RESET, Act.CLOSE):
            return False
        if number <= self.behaviour.counted or self.behaviour.counted < 0:
            self.ended.overslept = number > 0 and now > self.sent + self.behaviour.timeout
            self.ended.since = now
        if act is not Act.SHUT:
            payload, owed = self.dialect.payload(act)
            if owed and self.parser is None:
                self.parser = self.dialect.parser()
            self.ended.asked += owed
            self.sent = now
            self._send(payload)
        if act in (Act.HALF_CLOSE, Act.SHUT):
            socket.socket.shutdown(sock, socket.SHUT_WR)  # an SSLSocket's own would end TLS with it
        if act in (Act.ASK_MUCH, Act.ASK_MUCH_OFTEN):
            self.reads = False
        return True

    def _send(self, payload: bytes) -> None:
        self.outbox += payload
        with suppress(BlockingIOError):
            self.outbox = self.outbox[send(self._socket, self.outbox) :]

    def _hear(self, data: bytes) -> None:
        if not data:
            return
        ended = self.ended
        if ended.answered < ended.asked:
            ended.answer = (ended.answer + data)[:KEPT]
        else:
            ended.said = (ended.said + data)[-KEPT:]
        done, reply = self.dialect.count(self.parser, data)
        if ended.answered < ended.asked:
            ended.answered += done
            if ended.answered >= ended.asked:
                ended.slowest = max(ended.slowest, monotonic() - self.sent)
                if not self.dialect.stateful:
                    self.parser = None
        if reply and self.behaviour.pongs:
            self._send(reply)

    @property
    def _socket(self) -> socket.socket:
        if self.sock is None:
            raise ConnectionError("not connected")
        return self.sock


async def readiness(fd: int, writing: bool = False) -> None:
    """Wait until *fd* can be read, or written."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    add, remove = (
        (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    )
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)


async def play(
    kind: str | Behaviour,
    target: Target | tuple[str, int],
    speech: Speech = HTTP,
    patience: float = FOREVER,
) -> Ended:
    """Play one client once; it leaves after *patience* seconds (`Ended.how` is "left"
    then).
    """
    return await Client(kind, target, speech).play(patience=patience)


async def attack(
    kind: str | Behaviour,
    target: Target | tuple[str, int],
    until: Until,
    speech: Speech = HTTP,
    pause: float = 0.2,
) -> list[Ended]:
    """Play a client that connects again *pause* seconds after each end, until *until()*
    is true.
    """
    ends: list[Ended] = []
    while not until():
        ends.append(await Client(kind, target, speech).play(until))
        await asyncio.sleep(pause)
    return ends


async def ask(
    target: Target | tuple[str, int], speech: Speech = HTTP, patience: float = PATIENCE
) -> Ended:
    """Ask once, on a new connection; `Ended.lost` is empty if the answer was as
    expected.
    """
    client = Client("silent", target, speech)
    client.ended.kind = "ask"
    begun = monotonic()
    await client.play(lambda: client.ended.answered > 0, patience)
    if client.ended.answered:
        client.ended.how = "left"
    # From connect(2) to the request this program itself may have been too slow for the
    # server's limit.
    client.ended.overslept = bool(client.established) and client.ended.since - begun > OWN_LAG
    return client.ended


async def keep_asking(
    target: Target | tuple[str, int],
    until: Until,
    account: Account,
    pause: float = 0.0,
    speech: Speech = HTTP,
) -> None:
    """Ask again and again, each time on a new connection, until *until()* is true."""
    while not until():
        account.add(await ask(target, speech))
        await asyncio.sleep(pause)
