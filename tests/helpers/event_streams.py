"""Event streams for tests: a parser by the letter of the HTML standard, and random
streams.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hypothesis import strategies as st


class Event(NamedTuple):
    """What a reader of a stream is given."""

    kind: str
    data: str
    identity: str


def events(stream: bytes) -> list[Event]:
    """The events of *stream*: "Parsing an event stream" and "Interpreting an event
    stream".
    """
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    found: list[Event] = []
    kind, data, identity = "", "", ""
    lines = re.split("\r\n|\r|\n", text)
    for line in lines[:-1]:  # the rest has no end: it is dropped
        if not line:
            if data:
                found.append(Event(kind or "message", data.removesuffix("\n"), identity))
            kind = data = ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data += value + "\n"
        elif name == "id" and "\0" not in value:
            identity = value
    return found


ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXTS = st.text(alphabet="ab: \u00e9\u20ac\ufeff{}", max_size=8)
LINES = st.one_of(
    st.builds("data: {}".format, TEXTS),
    st.builds("data:{}".format, TEXTS),
    st.builds("event: {}".format, TEXTS),
    st.builds("id: {}".format, TEXTS),
    st.builds(":{}".format, TEXTS),
    st.just("data"),
    st.just("retry: 10"),
    st.just(""),
    TEXTS.filter(lambda text: "\ufeff" not in text),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A random event stream: lines with ends of one kind, or of any; it may begin with
    a mark.
    """
    one = draw(st.none() | ENDS)
    lines = draw(st.lists(st.tuples(LINES, ENDS), max_size=12))
    text = "".join(line + (one or end) for line, end in lines)
    mark = draw(st.sampled_from(["", "", "\ufeff"]))
    rest = draw(st.sampled_from(["", "", "data: cut"]))
    return (mark + text + rest).encode()


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes]:
    """A random event stream, cut anywhere; pieces may be empty."""
    stream = draw(streams())
    cuts = draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
