"""On what ground a server is right or wrong with a kind of clients, and how people
group the kinds.

One rule: *each kind has one row*: the first whose words are in its name. What no RFC
says is called advice, with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ..plan.acts import Kind

MUST, SHOULD, ADVICE = "MUST", "SHOULD", "advice"


@dataclass(frozen=True)
class Ground:
    """Why a kind of clients is to be served, or ended, as it is.

    Attributes:
        group: What people call its subject.
        level: `MUST` or `SHOULD` of an RFC, or `advice`.
        source: The RFC and its section; empty: none says it.
        why: The same in a few words.
        by: The limits by which the rests of a kind are measured; of several, the
            shortest. Empty: the longest that the server has.
    """

    group: str
    level: str
    source: str
    why: str
    by: str = ""


_BORNE = "no RFC bounds it: whoever holds it pays for the connection"
_TOLD = "RFC 9110 15.5.9"
_OWED = "what has begun is owed, however long the server takes itself"
_EDGE = "a server sustains a persistent connection until its limit is over"
_REST = "a limit counts from the last byte of the client, not from its first"
_LAST = "a server says that it will close before it does; what came before that is answered"

ROWS: tuple[tuple[str, str, Ground], ...] = (
    (
        "",
        "leave at once",
        Ground("ends", ADVICE, "", "what was said before an end is heard", "one"),
    ),
    ("lines", "", Ground("lines", ADVICE, "", _REST, "idle")),
    # What a server ends by its own choice.
    (
        "",
        "at a stop: HTTP/2: asks",
        Ground("ends", MUST, "RFC 9113 6.8", "GOAWAY names the last stream that is served"),
    ),
    (
        "",
        "at a stop: HTTP/2: ",
        Ground("ends", SHOULD, "RFC 9113 6.8", "streams up to the one that GOAWAY names end"),
    ),
    ("", "at a stop: asks", Ground("ends", SHOULD, "RFC 9112 9.6", _LAST)),
    (
        "",
        "at a stop: listens",
        Ground("ends", ADVICE, "", "an event that is cut in two is lost, and its stream with it"),
    ),
    (
        "",
        "at a stop: ",
        Ground("ends", ADVICE, "", "who has begun is served, who has not is let go"),
    ),
    (
        "",
        "at `max_age`: HTTP/2",
        Ground(
            "ends", MUST, "RFC 9113 6.8", "GOAWAY names the last stream that is served", "max_age"
        ),
    ),
    ("", "at `max_age`: ", Ground("ends", SHOULD, "RFC 9112 9.6", _LAST, "max_age")),
    ("", "at `max_requests`", Ground("ends", SHOULD, "RFC 9112 9.6", _LAST, "max_age")),
    ("", "with `abandoned`", Ground("ends", ADVICE, "", _OWED, "max_age")),
    ("", "at the server's own limit", Ground("ends", SHOULD, "RFC 9112 9.6", _LAST, "one")),
    # TLS
    (
        "tls",
        "half-closes",
        Ground("TLS", MUST, "RFC 8446 6.1", "close_notify ends one direction alone", "keep_alive"),
    ),
    ("tls", "handshake", Ground("TLS", ADVICE, "", _BORNE, "handshake")),
    # WebSockets
    (
        "websocket",
        "pings",
        Ground("WebSocket", MUST, "RFC 6455 5.5.2", "a Ping is answered by a Pong", "tunnel"),
    ),
    (
        "websocket",
        "two frames",
        Ground("WebSocket", MUST, "RFC 6455 5.4", "a message may come in frames", "tunnel"),
    ),
    (
        "websocket",
        "goodbye",
        Ground("WebSocket", MUST, "RFC 6455 5.5.1", "a Close is answered by a Close", "tunnel"),
    ),
    ("websocket", "says nothing", Ground("WebSocket", ADVICE, "", _BORNE, "tunnel")),
    ("websocket", "half a frame", Ground("WebSocket", ADVICE, "", _BORNE, "tunnel")),
    ("websocket", "", Ground("WebSocket", ADVICE, "", _REST, "tunnel")),
    (
        "websocket2",
        "",
        Ground("WebSocket", SHOULD, "RFC 8441 5", "a stream may be a WebSocket", "tunnel"),
    ),
    # HTTP/2
    (
        "http2",
        "PING",
        Ground("HTTP/2", MUST, "RFC 9113 6.7", "a PING is answered, and is no request", "write"),
    ),
    (
        "http2",
        "window",
        Ground("HTTP/2", MUST, "RFC 9113 6.9", "each window opens as it is told", "write"),
    ),
    (
        "http2",
        "uploads",
        Ground("HTTP/2", MUST, "RFC 9113 6.9", "a window that was used is opened again", "body"),
    ),
    ("http2", "takes", Ground("HTTP/2", MUST, "RFC 9113 6.9", "each window counts", "write")),
    (
        "http2",
        "cancels",
        Ground("HTTP/2", MUST, "RFC 9113 6.4", "a stream ends alone, and no other with it", "body"),
    ),
    (
        "http2",
        "padded",
        Ground("HTTP/2", MUST, "RFC 9113 6.1, 8.1", "padding and trailers are allowed", "body"),
    ),
    (
        "http2",
        "preface",
        Ground("HTTP/2", MUST, "RFC 9113 3.4", "the preface is bytes of a stream", "first_byte"),
    ),
    ("http2", "`first_byte`", Ground("HTTP/2", ADVICE, "", _EDGE, "first_byte")),
    (
        "http2",
        "keep_alive",
        Ground(
            "HTTP/2",
            SHOULD,
            "RFC 9113 9.1",
            "connections persist until they are idle",
            "keep_alive",
        ),
    ),
    ("http2", "`headers`", Ground("HTTP/2", ADVICE, "", _REST, "headers")),
    ("http2", "begins a block", Ground("HTTP/2", ADVICE, "", _BORNE, "headers")),
    ("http2", "body", Ground("HTTP/2", ADVICE, "", _REST, "body")),
    ("http2", "last DATA", Ground("HTTP/2", ADVICE, "", _REST, "body")),
    ("http2", "at a distance", Ground("HTTP/2", ADVICE, "", _REST, "keep_alive body")),
    ("http2", "waits", Ground("HTTP/2", ADVICE, "", _OWED)),
    ("http2", "listens", Ground("HTTP/2", ADVICE, "", _OWED)),
    ("http2", "asks", Ground("HTTP/2", MUST, "RFC 9113 5.1", "a request has its answer")),
    ("http2", "", Ground("HTTP/2", ADVICE, "", _BORNE, "keep_alive")),
    # HTTP/1.1, and the same over TLS
    (
        "",
        "after a late `100 Continue`",
        Ground("100-continue", ADVICE, "", "who waits for the 100 owes nothing before it", "body"),
    ),
    (
        "",
        "100 Continue",
        Ground("100-continue", MUST, "RFC 9110 10.1.1", "100 or a final status comes at once"),
    ),
    (
        "",
        "told to continue",
        Ground("100-continue", ADVICE, "", _BORNE, "body"),
    ),
    (
        "",
        "half-closes in the middle",
        Ground("half-closed", ADVICE, "", "what it began can never be whole", "headers body"),
    ),
    (
        "",
        "half-closes",
        Ground(
            "half-closed",
            ADVICE,
            "RFC 9293 3.6",
            "who sends no more may still read; HTTP says nothing of it",
            "keep_alive",
        ),
    ),
    (
        "",
        "pipelines half",
        Ground(
            "pipelines", MUST, "RFC 9112 9.3.2", "answers come in the order of requests", "headers"
        ),
    ),
    (
        "",
        "pipelines two requests and half",
        Ground(
            "pipelines", MUST, "RFC 9112 9.3.2", "answers come in the order of requests", "headers"
        ),
    ),
    (
        "",
        "pipelines",
        Ground("pipelines", MUST, "RFC 9112 9.3.2", "answers come in the order of requests"),
    ),
    (
        "",
        "half of its second head in one segment",
        Ground("pipelines", ADVICE, "", _BORNE, "headers"),
    ),
    ("", "after three pipelined", Ground("pipelines", ADVICE, "", _BORNE, "keep_alive")),
    (
        "",
        "empty line",
        Ground(
            "heads",
            SHOULD,
            "RFC 9112 2.2",
            "an empty line before a request is ignored",
            "keep_alive",
        ),
    ),
    (
        "",
        "by HEAD",
        Ground("keep-alive", MUST, "RFC 9110 9.3.2", "HEAD has no content", "keep_alive"),
    ),
    (
        "",
        "says close",
        Ground(
            "keep-alive", MUST, "RFC 9112 9.6", "the answer comes whole, and then the end", "write"
        ),
    ),
    (
        "",
        "HTTP/1.0",
        Ground("keep-alive", MUST, "RFC 9112 9.3", "without keep-alive the answer is the last"),
    ),
    ("", "events", Ground("event streams", ADVICE, "", _OWED)),
    ("", "takes a little", Ground("answers", ADVICE, "", _REST, "one")),
    ("", "takes nothing", Ground("answers", ADVICE, "", _BORNE, "write")),
    ("", "takes 6 MB", Ground("answers", ADVICE, "", _REST, "write")),
    ("", "late route", Ground("answers", ADVICE, "", _OWED)),
    ("", "waits for", Ground("answers", ADVICE, "", _OWED)),
    (
        "",
        "asks again",
        Ground("keep-alive", SHOULD, "RFC 9112 9.5", _EDGE, "keep_alive"),
    ),
    ("", "posts", Ground("keep-alive", SHOULD, "RFC 9112 9.5", _EDGE, "keep_alive")),
    ("", "asks at a distance", Ground("keep-alive", SHOULD, "RFC 9112 9.5", _EDGE, "keep_alive")),
    (
        "",
        "asks five times",
        Ground("keep-alive", MUST, "RFC 9112 9.3, 9.6", "a connection persists, or says close"),
    ),
    (
        "",
        "trailers",
        Ground("bodies", MUST, "RFC 9112 7.1", "a body may come in chunks, with trailers", "body"),
    ),
    (
        "",
        "no chunk but",
        Ground("bodies", MUST, "RFC 9112 7.1", "a body may come in chunks", "body"),
    ),
    (
        "",
        "sends chunks",
        Ground("bodies", MUST, "RFC 9112 7.1", "a body may come in chunks", "body"),
    ),
    ("", "before its body is read", Ground("bodies", ADVICE, "", _OWED, "keep_alive")),
    ("", "before its body was read", Ground("bodies", ADVICE, "", _BORNE, "keep_alive")),
    ("", "says nothing after", Ground("keep-alive", ADVICE, "", _BORNE, "keep_alive")),
    ("", "head and body", Ground("bodies", ADVICE, "", _REST, "headers body")),
    (
        "",
        "half a body",
        Ground("bodies", ADVICE, "RFC 9110 15.5.9", "it is told 408, and ended", "body"),
    ),
    (
        "",
        "no body",
        Ground("bodies", ADVICE, "RFC 9110 15.5.9", "it is told 408, and ended", "body"),
    ),
    ("", "chunk", Ground("bodies", ADVICE, "RFC 9110 15.5.9", "it is told 408, and ended", "body")),
    ("", "body", Ground("bodies", ADVICE, "", _REST, "body")),
    ("", "uploads", Ground("bodies", ADVICE, "", _REST, "body")),
    (
        "",
        "connects, and sends nothing",
        Ground("heads", ADVICE, "", _BORNE, "first_byte"),
    ),
    ("", "`first_byte`", Ground("heads", ADVICE, "", _EDGE, "first_byte headers")),
    (
        "",
        "drips a head that never",
        Ground(
            "heads", ADVICE, "RFC 9110 15.5.9", "a head has an end, or its client has", "headers"
        ),
    ),
    (
        "",
        "second head",
        Ground("heads", ADVICE, "", "a limit holds for each head anew", "headers keep_alive"),
    ),
    ("", "half a head", Ground("heads", ADVICE, "RFC 9110 15.5.9", _BORNE, "headers")),
    ("", "one byte", Ground("heads", ADVICE, "RFC 9110 15.5.9", _BORNE, "headers")),
    ("", "head", Ground("heads", ADVICE, "", _EDGE, "headers")),
)
"""What a kind speaks (empty: anything), words of its name, and the ground: the
first match counts.
"""


@cache
def ground(kind: Kind) -> Ground:
    """The ground of *kind*; that of a dead one is advice. Raises LookupError: there is
    none.
    """
    name = kind.name.replace("at a reload: ", "at a stop: ")
    for speaks, words, found in ROWS:
        if speaks in ("", kind.speaks) and words in name:
            if kind.lives:
                return found
            source = _TOLD if kind.says else ""  # a status is all that an RFC has for it
            return replace(found, level=ADVICE, source=source, why=_BORNE, by=kind.limit)
    raise LookupError(f"no row of ROWS is about {kind.name!r}")


GROUPS = (
    *("keep-alive", "heads", "bodies", "answers", "pipelines", "half-closed", "100-continue"),
    *("WebSocket", "event streams", "TLS", "HTTP/2", "ends", "lines"),
)
"""All groups, in the order in which people read them."""
