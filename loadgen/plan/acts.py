"""The acts of one client, as data: what it does, in order, and what it has to hear.

One rule: *an act says what is done, and not with which bytes of which server*. `Kind`
is a whole client: its acts, its answers, and the limit that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass


# ---- acts
@dataclass(frozen=True)
class Send:
    """Write *data*, all of it."""

    data: bytes


@dataclass(frozen=True)
class Rest:
    """Do nothing for so long."""

    seconds: float


@dataclass(frozen=True)
class Drip:
    """Write *data* in pieces of *size*, one *every* so many seconds."""

    data: bytes
    every: float
    size: int = 1


@dataclass(frozen=True)
class Until:
    """Wait until *count* whole answers are there, or *text* is."""

    count: int = 0
    text: bytes = b""


@dataclass(frozen=True)
class Shut:
    """Send the end of file, and go on reading."""


@dataclass(frozen=True)
class Reset:
    """Reset the connection when all has been heard."""


@dataclass(frozen=True)
class Deaf:
    """Read nothing from here on."""


@dataclass(frozen=True)
class Take:
    """Read *size* bytes *every* so many seconds, until *total* have come."""

    size: int
    every: float
    total: int


@dataclass(frozen=True)
class Hear:
    """Read again whatever comes."""


@dataclass(frozen=True)
class At:
    """Do nothing until so many seconds after the server is told to stop; before that,
    if it is less than nothing.
    """

    seconds: float


@dataclass(frozen=True)
class Leaves:
    """On so many connections of their own, all at once: do *acts*, say goodbye, and
    leave, whatever has come. The goodbye is the end of file, and `close_notify` before
    it over TLS. *whole*: over TLS all comes in one piece, from the end of the handshake
    to the goodbye.
    """

    acts: tuple[Act, ...]
    times: int
    whole: bool = False


@dataclass(frozen=True)
class Busy:
    """Ask again and again for so long, *every* so many seconds after an answer; no more
    once the server has said that it will close.
    """

    seconds: float
    every: float = 0.0


# ---- what HTTP/2 has besides
@dataclass(frozen=True)
class Begin:
    """Send the preface and SETTINGS. *window*: of each stream, in bytes; *opens*:
    whether windows are opened as bytes come; *pings*: whether a PING is sent for each
    DATA that comes. *lags*: seconds after which all that has come meanwhile is given
    back at once, in pieces of *piece* bytes, also of streams that have ended; 0: each
    byte as it comes.
    """

    window: int = 65535
    opens: bool = True
    pings: bool = False
    lags: float = 0.0
    piece: int = 4096


@dataclass(frozen=True)
class Settled:
    """Wait for the server's SETTINGS, which the client has then acknowledged."""


@dataclass(frozen=True)
class Ask:
    """A request on a stream of its own: its head, and whether that is all. *pieces*: in
    how many frames the head comes; *whole*: whether the last of them says that it is.
    *length*: the Content-Length that it names; None: none. *more*: headers besides, by
    name and value.
    """

    path: str = "/"
    method: str = "GET"
    end: bool = True
    pieces: int = 1
    whole: bool = True
    length: int | None = None
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Body:
    """DATA on the stream with that number, from 0 on; *padding*: bytes of it, None: no
    padding.
    """

    stream: int
    data: bytes
    end: bool = True
    padding: int | None = None


@dataclass(frozen=True)
class Trailers:
    """A second block of headers, which ends the stream."""

    stream: int


@dataclass(frozen=True)
class Cancel:
    """RST_STREAM of the stream; -1: of the last one."""

    stream: int


@dataclass(frozen=True)
class Again:
    """Do *acts* again and again, *every* so many seconds, without an end."""

    acts: tuple[Act, ...]
    every: float


@dataclass(frozen=True)
class Pings:
    """*count* PINGs, one *every* so many seconds."""

    count: int = 1
    every: float = 0.0


@dataclass(frozen=True)
class Settings:
    """SETTINGS that change nothing but the window of each stream."""

    window: int = 65535


@dataclass(frozen=True)
class Open:
    """WINDOW_UPDATE by *size* for the connection and each open stream, *count* times,
    one *every* so many seconds.
    """

    size: int
    every: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class Done:
    """Wait for the end of the stream with that number, from 0 on."""

    stream: int


@dataclass(frozen=True)
class Shake:
    """How the handshake of TLS is done, if not at once: its first bytes come in two
    halves, that long apart; None: the second half never comes.
    """

    apart: float | None


@dataclass(frozen=True)
class Up:
    """Wait until the stream with that number, from 0 on, has a status."""

    stream: int


Act = (
    Send
    | Shake
    | Up
    | Rest
    | At
    | Leaves
    | Busy
    | Drip
    | Until
    | Shut
    | Reset
    | Deaf
    | Take
    | Hear
    | Begin
    | Ask
    | Body
    | Trailers
) | (Settled | Cancel | Pings | Settings | Open | Done | Again)


@dataclass(frozen=True)
class Want:
    """An answer: its body, or the length of it; None: any. *head*: to HEAD, so it has
    no body; *ends*: what its body ends with.
    """

    body: bytes | int | None = b"hello"
    status: int = 200
    head: bool = False
    ends: bytes = b""


HELLO = Want()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of clients.

    Attributes:
        name: What it does, in words; the row of the table.
        speaks: `http`, `websocket`, `lines`, `http2`, `tls`, which is HTTP over TLS, or
            `websocket2`, which is a WebSocket over HTTP/2.
        acts: What it does, in order.
        answers: What it has to hear, in order, if it lives.
        hears: The same of bytes, of what does not speak HTTP.
        gets: How many bytes have to come at least.
        limit: The one that ends it, if it does not live.
        since: The act at whose end that begins to count, from 1 on; 0: the connect;
            None: the last.
        says: The status with which it is ended where HTTP allows one.
        lag: Seconds that everything travels in each direction.
        window: Bytes of its receive buffer; 0: the kernel's choice.
        quick: Whether `make test` has it.
        world: What it is tried in: `limits` of `LIMIT` seconds; `ends`, of what the
            server ends by itself, see `columns`; `own`, of what it ends by a limit of
            its own; `stop`, the server is told to stop.
        alone: Whether it comes after all others.
        crowd: How many of it come one upon the other; only those that live may. What is
            seen is what the one saw that had the least.
        done: Whether it can ask for nothing any more, and nothing is owed to it: to end
            it before its limit takes nothing from it.
        first: The first bytes have to come before the limit begins: a busy client is
            late itself.
    """

    name: str
    acts: tuple[Act, ...]
    speaks: str = "http"
    answers: tuple[Want, ...] = ()
    hears: tuple[bytes, ...] = ()
    gets: int = 0
    limit: str = ""
    since: int | None = None
    says: int = 0
    lag: float = 0.0
    window: int = 0
    quick: bool = False
    world: str = "limits"
    alone: bool = False
    crowd: int = 1
    done: bool = False

    @property
    def lives(self) -> bool:
        """Whether no limit ends it."""
        return not self.limit

    def heard(self, data: bytes | bytearray) -> bool:
        """Whether *data* has what has to come: `hears`, in this order, and `gets`."""
        place = 0
        for text in self.hears:
            place = data.find(text, place)
            if place < 0:
                return False
            place += len(text)
        return len(data) >= self.gets
