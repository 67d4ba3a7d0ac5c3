"""Clients of HTTP/2 that hold a connection, or make the server work, and give nothing
for it.

    ended = await play("unopened", target, Speech("http2"))     # how long was it borne?

One rule: *a wait ends when the server ends what the client does*: its stream by
RST_STREAM, or the connection by GOAWAY or a close, whichever comes first. Frames are
made by h2 (`pip install h2`); over TLS it is agreed by ALPN, otherwise spoken at once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from .clients import PATIENCE, Ended, Speech
from .drive.connecting import why
from .drive.protocols import BODY_BYTES
from .units import BadArgument, Target

if TYPE_CHECKING:
    from h2.connection import H2Connection

EVERY = 0.5
"""Seconds between two acts of a client that goes on."""
FLOOD = 200
"""Frames of a flood that are sent at once, every FLOOD_EVERY seconds."""
FLOOD_EVERY = 0.05
SMALL_WINDOW = 1000
"""Bytes of the window of a client that never opens it again."""
SLOW_WINDOW = 16_384
"""Bytes by which a client that reads slowly opens its window, once every EVERY
seconds.
"""


class Http2:
    """One client with one connection, which is up.

    Attributes:
        ended: What became of it.
        stream: The number of its stream; 0 before it has one.
        begun: Whether its preface was sent.
        answered: Set when its stream has been answered.
        settled: Set when the server's first frames, its settings, have been
            acknowledged.
        read: Bytes of bodies that came.
    """

    def __init__(self, target: Target, speech: Speech, kind: str) -> None:
        try:
            import h2.config
            import h2.connection
            import h2.events
            import h2.exceptions
        except ImportError:
            raise BadArgument("--http2 needs h2: pip install 'idle-reaper[http2]'") from None
        self._events, self._errors = h2.events, h2.exceptions
        self.target, self.speech = target, speech
        self.connection: H2Connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True)
        )
        self.ended = Ended(kind)
        self.stream = 0
        self.read = 0
        self.begun = False
        self.answered = asyncio.Event()
        self.settled = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None

    # ---- what behaviours do
    def act(self, *, counted: bool = True) -> None:
        """Send what h2 has made. *counted*: a correct server counts from here on."""
        if counted:
            self.ended.since = monotonic()
        if self._writer is not None:
            self._writer.write(self.connection.data_to_send())

    def raw(self, data: bytes) -> None:
        """Send *data*, which h2 would not make."""
        if self._writer is not None:
            self._writer.write(data)

    def begin(self, window: int | None = None) -> None:
        """Send the preface and the settings; *window* is that of each stream, in
        bytes.
        """
        if window is not None:
            import h2.settings

            code = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
            self.connection.local_settings = h2.settings.Settings(
                client=True, initial_values={code: window}
            )
        self.connection.initiate_connection()
        self.begun = True
        self.act()

    def head(self, method: str = "GET", path: str = "") -> list[tuple[str, str]]:
        """The headers of a request."""
        paths = self.speech.paths
        return [
            (":method", method),
            (":scheme", "https" if self.speech.tls else "http"),
            (":authority", paths.host or str(self.target)),
            (":path", path or paths.get),
        ]

    def ask(self, path: str = "") -> None:
        """Send a whole request, on a stream of its own."""
        self.stream = self.connection.get_next_available_stream_id()
        self.ended.asked += 1
        self.connection.send_headers(self.stream, self.head(path=path), end_stream=True)
        self.act()

    def upload(self) -> None:
        """Send the headers of a request with a long body."""
        paths = self.speech.paths
        self.stream = self.connection.get_next_available_stream_id()
        head = [*self.head(paths.method, paths.post or paths.get)]
        head.append(("content-length", str(BODY_BYTES)))
        self.connection.send_headers(self.stream, head)
        self.act()

    # ---- life
    async def play(self, behave: Callable[[Http2], Awaitable[None]], patience: float) -> Ended:
        """Connect, and do what *behave* does until the server ends it, or *patience* is
        over.
        """
        ended = self.ended
        ended.connected = ended.ready = ended.since = monotonic()
        try:
            async with asyncio.timeout(min(patience, PATIENCE)) as limit:
                reader = await self._connect()
        except OSError as error:  # a TimeoutError is one
            ended.failure = "timed out" if limit.expired() else why(error)
            ended.at = monotonic()
            return ended
        ended.ready = ended.since = monotonic()
        ended.how = "left"
        acting = asyncio.ensure_future(behave(self))
        try:
            async with asyncio.timeout(patience):
                await self._listen(reader)
        except TimeoutError:
            pass
        except OSError:
            ended.how = "reset"
        except self._errors.ProtocolError as error:
            ended.failure = _named(error)  # the server's
        finally:
            acting.cancel()
            (came_to,) = await asyncio.gather(acting, return_exceptions=True)
            self._acted(came_to)
            ended.at = ended.at or monotonic()
            if self._writer is not None:
                self._writer.transport.abort()
        return ended

    def _acted(self, came_to: BaseException | None) -> None:
        """What the client did has *came_to* that. h2 refuses to go on with a stream
        that the server has ended, which is no failure.
        """
        if came_to is None or isinstance(came_to, asyncio.CancelledError | OSError):
            return
        if not isinstance(came_to, self._errors.StreamClosedError):
            self.ended.failure = self.ended.failure or _named(came_to)

    async def _connect(self) -> asyncio.StreamReader:
        tls = self.speech.tls
        context: ssl.SSLContext | None = None
        if tls is not None:
            context = ssl.create_default_context(cafile=tls.ca)
            if tls.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
        reader, self._writer = await asyncio.open_connection(
            self.target.host,
            self.target.port,
            ssl=context,
            server_hostname=tls.name if tls else None,
        )
        spoken: Any = self._writer.get_extra_info("ssl_object")
        if spoken is not None and spoken.selected_alpn_protocol() != "h2":
            raise ConnectionError("the server does not offer h2 by ALPN")
        return reader

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Read until the server has ended what this client does."""
        while data := await reader.read(65536):
            for event in self.connection.receive_data(data):
                if self._heard(event):
                    return
            if self.begun:
                self.act(counted=False)  # h2 acknowledges settings and pings
            self.settled.set()
        self.ended.how = "closed"

    def _heard(self, event: Any) -> bool:
        """Take in *event*; returns whether it ends what this client does."""
        events, ended = self._events, self.ended
        if isinstance(event, events.ResponseReceived):
            status = dict(event.headers).get(b":status", b"").decode()
            ended.answer = status.encode()
            if not status.startswith("2"):
                ended.wrong[status] += 1
        elif isinstance(event, events.DataReceived):
            self.read += len(event.data)
        elif isinstance(event, events.StreamEnded) and event.stream_id == self.stream:
            ended.answered += 1
            ended.since = monotonic()  # the server has sent its last byte by now, not later
            self.answered.set()
        elif isinstance(event, events.StreamReset) and event.stream_id == self.stream:
            ended.said = f"RST_STREAM {int(event.error_code or 0)}".encode()
            ended.how = "closed"
            return True
        elif isinstance(event, events.ConnectionTerminated):
            ended.said = f"GOAWAY {int(event.error_code or 0)}".encode()
            ended.how = "closed"
            return True
        return False


def _named(error: BaseException) -> str:
    """What a failure is called in a table."""
    return f"{type(error).__name__}: {error}"


async def _mute(client: Http2) -> None:
    """Sends nothing at all."""


async def _no_stream(client: Http2) -> None:
    """Exchanges settings, and never asks."""
    client.begin()


async def _half_headers(client: Http2) -> None:
    """The beginning of a header block, and never its end."""
    client.begin()
    await client.settled.wait()  # nothing may come between: not the acknowledgement of settings
    block = client.connection.encoder.encode(client.head())
    head = len(block).to_bytes(3, "big") + b"\x01\x01" + (1).to_bytes(4, "big")
    client.ended.since = monotonic()  # before: a busy machine may let us wait after the write
    client.raw(head + block)  # END_STREAM, and no END_HEADERS


async def _dripped_headers(client: Http2) -> None:
    """A header block that is continued every half a second, without an end."""
    await _half_headers(client)
    while True:
        await asyncio.sleep(EVERY)
        client.raw(b"\x00\x00\x00\x09\x00" + (1).to_bytes(4, "big"))


async def _half_body(client: Http2) -> None:
    """A piece of a body, and no more."""
    client.begin()
    client.upload()
    client.connection.send_data(client.stream, b"x" * 1000)
    client.act()


async def _dripped_body(client: Http2) -> None:
    """A byte of a body every half a second."""
    client.begin()
    client.upload()
    while True:
        await asyncio.sleep(EVERY)
        client.connection.send_data(client.stream, b"x")
        client.act(counted=False)


async def _empty_body(client: Http2) -> None:
    """Empty DATA frames, one every half a second: they bring nothing."""
    client.begin()
    client.upload()
    while True:
        await asyncio.sleep(EVERY)
        client.connection.send_data(client.stream, b"")
        client.act(counted=False)


async def _unopened(client: Http2) -> None:
    """Asks for much, and never opens its window again."""
    client.begin(SMALL_WINDOW)
    client.ask(client.speech.paths.much)


async def _unopened_pings(client: Http2) -> None:
    """The same, with a PING, a PRIORITY and a WINDOW_UPDATE of another kind every half
    a second.
    """
    await _unopened(client)
    while True:
        await asyncio.sleep(EVERY)
        client.connection.ping(b"12345678")
        client.connection.prioritize(client.stream, weight=7)
        client.connection.increment_flow_control_window(1)  # the connection's, which is not shut
        client.act(counted=False)


async def _slow_reader(client: Http2) -> None:
    """Asks for much, and opens its window slowly: it is alive."""
    client.begin(SLOW_WINDOW)
    client.ask(client.speech.paths.much)
    while True:
        await asyncio.sleep(EVERY)
        with suppress(ValueError, KeyError):
            client.connection.increment_flow_control_window(SLOW_WINDOW, client.stream)
            client.connection.increment_flow_control_window(SLOW_WINDOW)
        client.act()


async def _silent(client: Http2) -> None:
    """One request, its answer, then nothing."""
    client.begin()
    client.ask()


async def _pings(client: Http2) -> None:
    """One request, its answer, then nothing but a PING every half a second."""
    client.begin()
    client.ask()
    await client.answered.wait()
    while True:
        await asyncio.sleep(EVERY)
        client.connection.ping(b"12345678")
        client.act(counted=False)


async def _rapid_reset(client: Http2) -> None:
    """Requests that are reset as soon as they have been sent, thousands a second."""
    client.begin()
    while True:
        for _ in range(FLOOD):
            stream = client.connection.get_next_available_stream_id()
            client.connection.send_headers(stream, client.head(), end_stream=True)
            client.connection.reset_stream(stream, 8)
        client.act(counted=False)
        await asyncio.sleep(FLOOD_EVERY)


async def _ping_flood(client: Http2) -> None:
    """Thousands of PINGs a second."""
    client.begin()
    while True:
        for _ in range(FLOOD):
            client.connection.ping(b"12345678")
        client.act(counted=False)
        await asyncio.sleep(FLOOD_EVERY)


async def _settings_flood(client: Http2) -> None:
    """Thousands of SETTINGS a second."""
    client.begin()
    while True:
        client.raw((b"\x00\x00\x06\x04\x00" + bytes(4) + b"\x00\x03\x00\x00\x00\x64") * FLOOD)
        await asyncio.sleep(FLOOD_EVERY)


KINDS: dict[str, Callable[[Http2], Awaitable[None]]] = {
    "mute": _mute,
    "no_stream": _no_stream,
    "half_headers": _half_headers,
    "dripped_headers": _dripped_headers,
    "half_body": _half_body,
    "dripped_body": _dripped_body,
    "empty_body": _empty_body,
    "unopened": _unopened,
    "unopened_pings": _unopened_pings,
    "slow_reader": _slow_reader,
    "silent": _silent,
    "pings": _pings,
    "rapid_reset": _rapid_reset,
    "ping_flood": _ping_flood,
    "settings_flood": _settings_flood,
}
"""What a client may do, by name."""


async def play(kind: str, target: Target, speech: Speech, patience: float = float("inf")) -> Ended:
    """Play one client; it leaves after *patience* seconds (`Ended.how` is "left" then).

    Raises BadArgument: h2 is not installed; KeyError: there is no such kind.
    """
    return await Http2(target, speech, kind).play(KINDS[kind], patience)
