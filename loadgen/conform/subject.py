"""The server that is tried: where it is, what it has, and how a kind of clients is cut
to its measure.

One rule: *the kinds are written for limits of one second*. What they rest is a share of
the server's limit; the last 150 ms of a limit stay so many, however long it is. No rest
is longer than its share of the limit that holds while it lasts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..drive.wire import Tls
from ..plan.acts import (
    HELLO,
    Act,
    Ask,
    Begin,
    Busy,
    Cancel,
    Deaf,
    Done,
    Drip,
    Kind,
    Rest,
    Send,
    Until,
    Want,
)
from ..units import seconds
from .grounds import ground

LIMITS = {
    "handshake": "the handshake of TLS",
    "first_byte": "connected, and nothing sent",
    "headers": "a head that has begun, until it is whole",
    "body": "a body, since its last byte",
    "keep_alive": "after an answer",
    "write": "an answer of which nothing is taken",
    "tunnel": "a WebSocket that says nothing",
    "idle": "a server of lines",
    "max_age": "of a connection, from its connect",
}
"""The limits that kinds are about, by the names of `probe --expect`."""
ROUTES = {
    "/": "what is asked for where nothing else is",
    "/slow?": "the same after so many seconds",
    "/pause?": "`first`, and after so many seconds `after`",
    "/some?": "so many bytes",
    "/echo": "answers a POST with its body",
    "/late?": "the same, and reads the body after so many seconds",
    "/early": "answers `hello` to a POST before it reads the body",
    "/events?": "so many events, `data: tick`, 0.4 s apart",
    "/drops?": "so many pieces of ten bytes",
    "/ws": "a WebSocket that answers with what it is sent, and `big` with a million bytes",
}
"""What a kind may ask for, and what has to come; `conform --app` prints such a
server.
"""
_SECONDS = re.compile(rb"/(slow|pause|late)\?([\d.]+)")
_ASKED = re.compile(rb"(?<= )/(?:\w+\??)?(?=[\d.]* HTTP/)")
STOP = "a stop"


@dataclass(frozen=True)
class Limit:
    """A limit of the server: seconds, and by how many more it may be; *given*: by who
    asks, and not learnt.
    """

    seconds: float
    spread: float = 0.0
    given: bool = True


@dataclass(frozen=True)
class Subject:
    """The server that is tried.

    Attributes:
        address: Host and port.
        speaks: What of it clients may speak: `http`, `tls`, `websocket`, `http2`, ...
        limits: Its limits, by name, as far as they are known.
        tick: Seconds by which a close may be late.
        drain: Seconds after which a server that was told to stop has to be gone.
        wait: Seconds for which a client is borne by us at most.
        routes: Where it has what a kind asks for; a route that is missing, it has not.
        home: Status and body of `/`.
        tls: How TLS is spoken; None: it is not.
    """

    address: tuple[str, int]
    speaks: frozenset[str] = frozenset({"http"})
    limits: Mapping[str, Limit] = field(default_factory=dict)
    tick: float = 1.0
    drain: float = 10.0
    wait: float = 30.0
    routes: Mapping[str, str] = field(default_factory=lambda: {name: name for name in ROUTES})
    home: Want = HELLO
    tls: Tls | None = None

    @property
    def longest(self) -> float:
        """The longest limit that fits into what is waited."""
        known = [each.seconds for each in self.limits.values() if each.seconds <= self.wait]
        return max(known, default=1.0)

    def measure(self, kind: Kind) -> float:
        """The seconds that stand for one second of *kind*."""
        names = ground(kind).by.split()
        if names == ["one"] or kind.world == "stop":
            return min(1.0, self.longest)
        known = [self.limits[name].seconds for name in names if name in self.limits]
        if known:
            return min(known)
        return self.longest if not names else 1.0

    def measures(self, kind: Kind) -> list[float]:
        """The same for each act of *kind*: while one rests, a limit may hold that is
        shorter.
        """
        one = self.measure(kind)
        return [
            min(one, self.limits[phase].seconds)
            if isinstance(act, Rest | Busy) and phase in self.limits
            else one
            for act, phase in zip(kind.acts, phases(kind), strict=False)
        ]


class NotJudged(Exception):
    """A kind cannot be tried at a server; the message says why."""


def fitted(kind: Kind, subject: Subject) -> Kind:
    """*kind*, cut to the measure of *subject*. Raises NotJudged."""
    if kind.speaks not in subject.speaks:
        raise NotJudged(f"the server speaks no {SPOKEN.get(kind.speaks, kind.speaks)}")
    if kind.limit and kind.limit != STOP and kind.limit not in subject.limits:
        raise NotJudged(
            f"no limit is known of {seconds(subject.wait)} or less:"
            f" --{kind.limit.replace('_', '-')}"
        )
    if kind.world == "ends" and "max_age" not in subject.limits:
        raise NotJudged("no age is given: --max-age")
    kind, one = at_home(kind, subject), subject.measure(kind)
    if one > subject.wait:
        raise NotJudged(f"its limit, {seconds(one)}, is longer than --wait {seconds(subject.wait)}")
    if kind.world == "ends":
        _outlives(kind, one, subject)
    measures = zip(kind.acts, subject.measures(kind), strict=True)
    acts = tuple(_act(act, one, subject, rest) for act, rest in measures)
    answers = tuple(_want(want, subject) for want in kind.answers)
    lag = kind.lag * min(1.0, one)
    return replace(kind, acts=acts, answers=answers, lag=lag)


SPOKEN = {
    "websocket": "WebSocket",
    "websocket2": "WebSocket over HTTP/2",
    "http2": "HTTP/2",
    "tls": "TLS",
    "http": "plain HTTP",
    "lines": "plain lines",
}


_BEGUN = re.compile(rb"[A-Z]+ (/\S*) HTTP/")
_BODY = re.compile(rb"\r\n(?:Content-Length|Transfer-Encoding):")


def phases(kind: Kind) -> list[str]:
    """The limit that holds when each act of *kind* begins, and after the last; "": none
    that is told by the acts.
    """
    if kind.speaks not in ("http", "tls", "http2"):
        return [""] * (len(kind.acts) + 1)
    found, sent, asked = ["first_byte"], b"", 0
    streams: set[int] = set()
    for act in kind.acts:
        phase = found[-1]
        match act:
            case Send() | Drip() if kind.speaks != "http2":
                sent += act.data
                phase = _inside(sent)
            case Until(count=count) if count >= len(_BEGUN.findall(sent)) > 0:
                phase = "keep_alive"
            case Deaf() if phase == "keep_alive":
                phase = ""
            case Busy():
                phase = found[-1] = "keep_alive"
            case Ask():
                streams.add(asked)
                phase, asked = "", asked + 1
            case Done() | Cancel():
                streams.discard(act.stream if act.stream >= 0 else asked - 1)
                phase = "" if streams else "keep_alive"
            case Begin() | Send() | Drip():
                phase = ""
            case _:
                pass
        found.append(phase)
    return found


def _inside(sent: bytes) -> str:
    """The limit that holds where *sent* ends, in a request or behind it."""
    begun = list(_BEGUN.finditer(sent))
    head, whole, _ = sent[begun[-1].start() if begun else 0 :].partition(b"\r\n\r\n")
    if not whole:
        return "headers"
    return "body" if _BODY.search(head) else ""


def _outlives(kind: Kind, one: float, subject: Subject) -> None:
    """Raises NotJudged: a limit of silence ends *kind* before the connection is old."""
    for act, phase in zip((*kind.acts, None), phases(kind), strict=True):
        rests = stretched(act.seconds, one) if isinstance(act, Rest) else 0.0
        if act is None and not kind.lives:
            rests = one
        if rests and phase in subject.limits and subject.limits[phase].seconds <= rests:
            raise NotJudged(f"`{phase}` is over before its connection is old enough")


def stretched(share: float, one: float) -> float:
    """Seconds for *share* of a limit of *one* second."""
    if 0.8 <= share < 1.0:
        return one - (1.0 - share) * min(1.0, one)
    return share * one


TIMES = ("seconds", "every", "apart")


def _act(act: Act, one: float, subject: Subject, rest: float) -> Act:
    """*act*, where *one* stands for a second, and *rest* for one in which nothing is
    sent.
    """
    changed: dict[str, Any] = {}
    for each in fields(act):
        value = getattr(act, each.name)
        if each.name in TIMES and value is not None:
            lasts = isinstance(act, Busy) and each.name == "seconds"
            changed[each.name] = stretched(value, one if lasts else rest)
        elif each.name == "data":
            changed["data"] = _routed(value, one, subject)
        elif each.name == "acts":
            changed["acts"] = tuple(_act(inner, one, subject, rest) for inner in value)
        elif each.name == "path":
            head = _routed(b" " + value.encode() + b" HTTP/", one, subject)
            changed["path"] = head[1:-6].decode()
    return replace(act, **changed)


def _routed(data: bytes, one: float, subject: Subject) -> bytes:
    """*data* with the routes of *subject*. Raises NotJudged: it has not all."""

    def longer(found: re.Match[bytes]) -> bytes:
        return b"/%s?%.2f" % (found[1], stretched(float(found[2]), one))

    def placed(found: re.Match[bytes]) -> bytes:
        route = subject.routes.get(found[0].decode())
        if route is None:
            raise NotJudged(f"the server has no {found[0].decode()}: --route, or conform --app")
        return route.encode()

    if len(data) > 100_000 and b" HTTP/" not in data[:200]:
        return data
    return _ASKED.sub(placed, _SECONDS.sub(longer, data))


def _want(want: Want, subject: Subject) -> Want:
    """What `/` answers is what it has answered before."""
    if want.head:
        return replace(want, status=subject.home.status)
    return want


def at_home(kind: Kind, subject: Subject) -> Kind:
    """*kind* with what `/` of *subject* answers, wherever it asks for it."""
    if subject.home == HELLO:
        return kind
    asked = requests(kind)
    if len(asked) < len(kind.answers):
        asked += ["/"] * (len(kind.answers) - len(asked))
    answers = tuple(
        subject.home if path == "/" and want == HELLO else want
        for path, want in zip(asked, kind.answers, strict=False)
    )
    return replace(kind, answers=answers)


def requests(kind: Kind) -> list[str]:
    """The paths that *kind* asks for, in order."""
    data = b"".join(getattr(act, "data", b"") for act in kind.acts)
    of_http1 = [each.decode() for each in re.findall(rb"[A-Z]+ (/\S*) HTTP/", data)]
    return of_http1 or [act.path for act in kind.acts if hasattr(act, "path")]
