"""Looks at a server before it is tried: what it speaks, which routes it has, and when
it closes.

One rule: *what was not seen, it has not*; what needs it is not judged then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ..clients import Speech
from ..drive.protocols import Paths
from ..drive.wire import Tls
from ..plan.acts import HELLO, Act, Begin, Kind, Send, Until, Want
from ..plan.requests import get, post
from ..playing.client import Seen
from ..playing.play import played
from ..probe import Finding, probe
from ..units import Target
from .judge import judged
from .kinds import OPENED, SWITCHED
from .subject import Limit, Subject

PATIENCE = 10.0
"""Seconds for an answer that nothing keeps waiting."""
AT_ONCE = 0.05
"""Seconds within which a close waited for nothing."""
TRIALS = 4
"""Connections that learn a limit."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\4\0\0\0\0\0"
"""Type, flags and stream of the frame with which a server of HTTP/2 begins."""
TRIED: Mapping[str, tuple[bytes, Want]] = {
    "/slow?": (get("/slow?0"), HELLO),
    "/pause?": (get("/pause?0"), Want(b"firstafter")),
    "/some?": (get("/some?10"), Want(10)),
    "/echo": (post("/echo"), HELLO),
    "/late?": (post("/late?0"), HELLO),
    "/early": (post("/early"), HELLO),
    "/events?": (get("/events?1"), Want(12)),
    "/drops?": (get("/drops?1"), Want(10)),
}
"""What is asked to see whether a route is there, and what has to come."""
ASKED = {
    "first_byte": "first_byte",
    "headers": "headers",
    "body": "body",
    "keep_alive": "keep_alive",
    "handshake": "handshake",
    "silent": "tunnel",
    "idle": "idle",
}
"""The questions of the probe, and the limits that they learn."""


class NoAnswer(Exception):
    """The server does not answer what is asked first; the message says how not."""


async def looked(subject: Subject) -> Subject:
    """*subject* with what it speaks, the routes that it has, and what `/` answers.

    Raises:
        NoAnswer: it does not answer.
        OSError: nobody listens.
    """
    if "lines" in subject.speaks:
        return subject
    speaks = "tls" if subject.tls else "http"
    path = subject.routes.get("/", "/")
    first = Want(None, status=0)
    kind = Kind(name="asks", speaks=speaks, acts=(Send(get(path)), Until(1)), answers=(first,))
    seen = await _played(subject, kind)
    if not seen.answers or not seen.answers[0][0]:
        raise NoAnswer(f"no answer to GET {path} within {PATIENCE:g} s, but {_heard(seen)}")
    home = Want(seen.answers[0][1], seen.answers[0][0])
    routes, spoken = {"/": path}, {speaks, "http"}
    there = await asyncio.gather(*(_has(subject, speaks, route) for route in TRIED))
    routes |= {route: subject.routes[route] for route, has in zip(TRIED, there, strict=True) if has}
    if await _opens(subject):
        routes["/ws"] = subject.routes["/ws"]
        spoken.add("websocket")
    if await _speaks_http2(subject):
        spoken |= {"http2", "websocket2"}
    return replace(subject, speaks=frozenset(spoken), routes=routes, home=home)


async def _played(subject: Subject, kind: Kind, patience: float = PATIENCE) -> Seen:
    return await played(kind, subject.address, patience, tls=subject.tls)


async def _has(subject: Subject, speaks: str, route: str) -> bool:
    if route not in subject.routes:
        return False
    data, want = TRIED[route]
    data = data.replace(b" " + route.encode(), b" " + subject.routes[route].encode(), 1)
    kind = Kind(name=route, speaks=speaks, acts=(Send(data),), answers=(want,))
    return bool(judged(kind, await _played(subject, kind)).kept)


async def _opens(subject: Subject) -> bool:
    """Whether it opens a WebSocket."""
    route = subject.routes.get("/ws")
    if route is None:
        return False
    opened = tuple(
        Send(act.data.replace(b" /ws ", f" {route} ".encode())) if isinstance(act, Send) else act
        for act in OPENED
    )
    kind = Kind(name="opens", speaks="websocket", acts=opened)
    return (await _played(subject, kind)).data.startswith(SWITCHED)


async def _speaks_http2(subject: Subject) -> bool:
    """Whether it speaks HTTP/2 at once, or agrees on it by ALPN; and this process
    can.
    """
    try:
        import hpack  # noqa: F401 - it is looked for here, and used where it is spoken
        import hyperframe  # noqa: F401
    except ImportError:
        return False
    if subject.tls is None:
        acts: tuple[Act, ...] = (Send(PREFACE), Until(text=SETTINGS))
        speaks = "lines"
    else:
        acts, speaks = (Begin(), Until(text=SETTINGS)), "http2"
    seen = await _played(
        subject, Kind(name="HTTP/2", speaks=speaks, acts=acts, gets=9), PATIENCE / 4
    )
    return seen.data[3:9] == SETTINGS


def _heard(seen: Seen) -> str:
    return repr(seen.data[:60].decode("latin-1")) if seen.data else seen.how or "nothing"


def learnt(
    target: Target, subject: Subject, wait: float, tls: Tls | None, known: Mapping[str, Limit]
) -> dict[str, Limit]:
    """The limits of the server that *known* lacks, by the probe: it closes, or does not
    within *wait* seconds. Blocks for about as long, and then for the sum of what was
    seen: of clients that come all at once, some may have waited for a thread of the
    server. So each limit that was seen is asked for once more, alone.
    """
    protocols = ["echo"] if "lines" in subject.speaks else ["http"]
    if "websocket" in subject.speaks:
        protocols.append("ws")
    names = {
        protocol: [name for name in QUESTIONS_OF[protocol] if ASKED[name] not in known]
        for protocol in protocols
    }

    def asked(protocol: str) -> list[Finding]:
        return _probed(target, subject, protocol, names[protocol], wait, tls)

    with ThreadPoolExecutor() as threads:
        first = _limits(each for found in threads.map(asked, protocols) for each in found)
    if sum(map(len, names.values())) == 1:
        return first
    for protocol in protocols:
        closed = [name for name in names[protocol] if ASKED[name] in first]
        first |= _limits(_probed(target, subject, protocol, closed, wait, tls, one_by_one=True))
    return first


def _probed(
    target: Target,
    subject: Subject,
    protocol: str,
    names: Sequence[str],
    wait: float,
    tls: Tls | None,
    one_by_one: bool = False,
) -> list[Finding]:
    path = subject.routes["/ws"] if protocol == "ws" else subject.routes.get("/", "/")
    paths = Paths(path, post=subject.routes.get("/echo", ""))
    speech = Speech(protocol, paths, tls)
    return probe(target, speech, wait, trials=TRIALS, only=names, one_by_one=one_by_one)


def _limits(findings: Iterable[Finding]) -> dict[str, Limit]:
    """What *findings* show, by the name of the limit."""
    found = {ASKED[each.name]: limit_of(each) for each in findings}
    return {name: limit for name, limit in found.items() if limit is not None}


QUESTIONS_OF = {
    "http": ("handshake", "first_byte", "headers", "body", "keep_alive"),
    "ws": ("silent",),
    "echo": ("idle",),
}


def limit_of(finding: Finding) -> Limit | None:
    """The limit that the closes show; None: there was none, or it closes at once, as
    who has no other request to wait for.
    """
    if finding.shortest is None or finding.longest is None or finding.longest < AT_ONCE:
        return None
    low = finding.shortest
    if finding.expected is not None and finding.expected <= low:
        low = finding.expected
    return Limit(low, finding.longest - low, given=False)
