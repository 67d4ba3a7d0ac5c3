"""What a guarded server reports about itself, as an ASGI application to mount: Prometheus' text format.

The rule of this module: *text is made when it is asked for*. It needs no other package.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from ..metrics import Family, Histogram, LoopStatistics, families

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def text(servers: Iterable[LoopStatistics]) -> str:
    """The metrics of *servers*, each under its number if there are several."""
    known = list(servers)
    lines: list[str] = []
    told = [list(families(statistics)) for statistics in known]
    for alike in zip(*told, strict=True):
        first = alike[0]
        total = "_total" if first.kind == "counter" else ""
        lines.append(f"# HELP {first.name}{total} {first.doc}")
        lines.append(f"# TYPE {first.name}{total} {first.kind}")
        for number, family in enumerate(alike):
            server = {} if len(known) == 1 else {"server": str(number)}
            lines += _samples(family, total, server)
    return "\n".join(lines) + "\n"


def _samples(family: Family, total: str, labels: Mapping[str, str]) -> Iterator[str]:
    values = family.values
    if isinstance(values, Histogram):
        for bound, count in values.cumulative():
            edge = "+Inf" if bound == float("inf") else repr(bound)
            yield _sample(f"{family.name}_bucket", {**labels, "le": edge}, count)
        yield _sample(f"{family.name}_sum", labels, values.total)
        yield _sample(f"{family.name}_count", labels, sum(values.counts))
    elif isinstance(values, Mapping):
        for label, value in sorted(values.items()):
            yield _sample(family.name + total, {**labels, family.label: label}, value)
    else:
        yield _sample(family.name + total, labels, values)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    named = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{named}}} {value}" if named else f"{name} {value}"


def application(servers: Callable[[], Iterable[LoopStatistics]]) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """An ASGI application that answers every GET with the metrics of *servers*.

    It says what this process knows: with several workers each answers for itself.
    """

    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        """The metrics of this process."""
        if scope["type"] != "http":
            raise RuntimeError(f"metrics are asked for by HTTP, not by {scope['type']}")
        found = scope["method"] in ("GET", "HEAD")
        body = text(servers()).encode() if found else b"405 Method Not Allowed\n"
        headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if found else 405, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return metrics
