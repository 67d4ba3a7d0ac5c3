"""Clients of HTTP/2 that hold a connection, or make the server work, and give nothing
for it.

    ended = await play("unopened", target, Speech("http2"))     # how long was it borne?

One rule: *a wait ends when the server ends what the client does*: its stream by
RST_STREAM, or the connection by GOAWAY or a close, whichever comes first. They are acts
like those of every other client, made by hpack and hyperframe (`pip install h2`); over
TLS, HTTP/2 is agreed by ALPN, otherwise spoken at once.
"""

from __future__ import annotations

from time import monotonic

from .clients import Ended, Speech
from .drive.connecting import why
from .drive.protocols import BODY_BYTES
from .plan.acts import Again, Ask, Begin, Body, Cancel, Done, Kind, Open, Pings, Send, Settled
from .playing.client import Seen
from .playing.play import played
from .units import BadArgument, Target

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
CONTINUATION = b"\0\0\0\x09\0\0\0\0\1"
EMPTY_DATA = b"\0\0\0\0\0\0\0\0\1"
PING = b"\0\0\x08\x06\0\0\0\0\0" + b"12345678"
PRIORITY = b"\0\0\5\2\0\0\0\0\1" + bytes(4) + b"\6"
OPENS_CONNECTION = b"\0\0\4\x08\0\0\0\0\0" + b"\0\0\0\1"
SETTINGS = b"\0\0\6\4\0\0\0\0\0" + b"\0\3\0\0\0\x64"
"""Frames, of the first stream where one is named."""


def kinds(speech: Speech) -> dict[str, Kind]:
    """What a client may do, by name, with the paths of *speech*. In each, the act
    `since` is the last from which a correct server counts; what comes then goes on.
    """
    paths = speech.paths
    asks, much = Ask(paths.get), Ask(paths.much or paths.get)
    upload = Ask(paths.post or paths.get, paths.method, end=False, length=BODY_BYTES)
    half = (Begin(), Settled(), Ask(paths.get, whole=False))
    unopened = (Begin(SMALL_WINDOW, opens=False), much)
    opens = Open(SLOW_WINDOW)
    reset = (asks, Cancel(-1))
    answered = (Begin(), asks, Done(0))
    byte = Body(0, b"x", end=False)
    acts = {
        "mute": (0, ()),
        "no_stream": (1, (Begin(),)),
        "half_headers": (3, half),
        "dripped_headers": (3, (*half, Again((Send(CONTINUATION),), EVERY))),
        "half_body": (3, (Begin(), upload, Body(0, b"x" * 1000, end=False))),
        "dripped_body": (2, (Begin(), upload, Again((byte,), EVERY))),
        "empty_body": (2, (Begin(), upload, Again((Send(EMPTY_DATA),), EVERY))),
        "unopened": (2, unopened),
        "unopened_pings": (
            2,
            (*unopened, Again((Send(PING + PRIORITY + OPENS_CONNECTION),), EVERY)),
        ),
        "slow_reader": (2, (Begin(SLOW_WINDOW, opens=False), much, Again((opens,), EVERY))),
        "silent": (3, answered),
        "pings": (3, (*answered, Again((Pings(),), EVERY))),
        "rapid_reset": (1, (Begin(), Again(reset * FLOOD, FLOOD_EVERY))),
        "ping_flood": (1, (Begin(), Again((Send(PING * FLOOD),), FLOOD_EVERY))),
        "settings_flood": (1, (Begin(), Again((Send(SETTINGS * FLOOD),), FLOOD_EVERY))),
    }
    return {
        name: Kind(name=name, speaks="http2", acts=what, limit="any", since=since)
        for name, (since, what) in acts.items()
    }


KINDS = tuple(kinds(Speech("http2")))
"""The names of what a client may do."""


async def play(kind: str, target: Target, speech: Speech, patience: float = float("inf")) -> Ended:
    """Play one client; it leaves after *patience* seconds (`Ended.how` is "left" then).

    Raises BadArgument: hpack or hyperframe is not installed; KeyError: there is no such
    kind.
    """
    plays, ended = kinds(speech)[kind], Ended(kind)
    ended.connected = ended.ready = ended.since = monotonic()
    where, authority = (target.host, target.port), speech.paths.host or str(target)
    # The loop's clock is the monotonic one: instants of `seen` are those of `ended`.
    try:
        seen = await played(plays, where, patience, tls=speech.tls, authority=authority)
    except ImportError:
        raise BadArgument("--http2 needs h2: pip install 'idle-reaper[http2]'") from None
    except OSError as error:  # a TimeoutError is one
        ended.failure, ended.at = why(error) or "timed out", monotonic()
        return ended
    ended.at = monotonic() if seen.ended is None else seen.ended
    if seen.refused:
        ended.failure = seen.refused
        return ended
    _tell(ended, plays, seen, over_tls=speech.tls is not None)
    return ended


def _tell(ended: Ended, kind: Kind, seen: Seen, *, over_tls: bool) -> None:
    """What a client of *kind* saw, in the words of all clients."""
    ended.how = "left" if seen.ended is None else "reset" if seen.how == "reset" else "closed"
    ended.said = seen.how.encode() if seen.how.startswith(("GOAWAY", "RST_STREAM")) else b""
    ended.failure = seen.broke
    ended.ready = seen.marks[0][1]
    since = min(kind.since or 0, len(seen.marks) - 1)
    if since and isinstance(kind.acts[since - 1], Done):
        since -= 1  # from its question: the answer may have waited for us
    # An act counts from its beginning: a busy machine may let us wait after the write.
    # So does the connect, which the server may know of first, but for the handshake.
    ended.since = seen.marks[since][1 if over_tls and not since else 0]
    for status, _, end in seen.streams:
        ended.asked += 1
        ended.answered += end == "whole"
        if status:
            ended.answer = str(status).encode()
            if not 200 <= status < 300:
                ended.wrong[str(status)] += 1
