"""Where a stream may be pinged: only between two events, however its bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reaper.policy.boundaries import (
    EVENTS,
    INSIDE,
    LINES,
    MARK,
    NEW,
    Kind,
    after_events,
    kind_of,
    may_ping,
    without_mark,
)
from tests.helpers.event_streams import events, pieces, streams

AT_THE_END = (b"\n\n", b"\r\r", b"\n\r\n", b"\r\r\n")
SSE = (b"content-type", b"text/event-stream; charset=utf-8")
NDJSON = (b"content-type", b"application/x-ndjson")


def model(written: bytes) -> bool:
    """Whether all that was *written* ends with an event, by looking at all of it."""
    begins = b"\n\n" + written.removeprefix(MARK)
    return begins.endswith(AT_THE_END)


def stands_after(kind: Kind, parts: list[bytes]) -> int:
    stands = NEW
    for part in parts:
        stands = kind.after(stands, part)
    return stands


@settings(max_examples=200, deadline=None)
@given(pieces())
def test_a_boundary_is_where_all_that_was_written_ends_with_an_event(parts: list[bytes]) -> None:
    written, stands = b"", NEW
    stream = b"".join(parts)
    cut = stream.startswith(MARK) and len(next(part for part in parts if part)) < len(MARK)
    for part in parts:
        written += part
        stands = after_events(stands, part)
        if cut or (stream.startswith(MARK) and len(written) < len(MARK)):
            # A mark that comes in two pieces is not recognised: then the first event is
            # waited for.
            assert not may_ping(stands) or model(written)
        else:
            assert may_ping(stands) == model(written), written


@settings(max_examples=60, deadline=None)
@given(streams())
@example(b"\r\r\n\r\n\n\r\r")
def test_the_last_three_bytes_are_enough(stream: bytes) -> None:
    for end in range(len(stream) + 1):
        single = [stream[at : at + 1] for at in range(end)]
        if not stream.startswith(MARK):
            assert stands_after(EVENTS, [stream[:end]]) == stands_after(EVENTS, single)


@settings(max_examples=200, deadline=None)
@given(pieces(), st.data())
def test_a_reader_sees_the_same_events_with_pings_and_without(
    parts: list[bytes], data: st.DataObject
) -> None:
    written, stands, held, early = b"", NEW, b"", False
    for part in parts:
        while may_ping(stands) and not held and data.draw(st.booleans()):
            written += EVENTS.ping
            early = early or stands == NEW
        stands = after_events(stands, part)
        if early:
            part, held, over = without_mark(held, part)
            early = not over
        written += part
    written += held
    stream = b"".join(parts)
    assert events(written) == events(stream)
    less = written.replace(EVENTS.ping, b"") if b":\n\n" not in stream else None
    assert less in (None, stream, stream.removeprefix(MARK))


@given(st.lists(st.sampled_from([b'{"a":', b"1}", b"\n", b"2\n", b""]), max_size=8))
def test_a_stream_of_lines_is_at_a_boundary_after_each_line(parts: list[bytes]) -> None:
    written = b"".join(parts)
    assert may_ping(stands_after(LINES, parts)) == (not written or written.endswith(b"\n"))


@pytest.mark.parametrize(
    ("method", "status", "headers", "expected"),
    [
        ("GET", 200, [SSE], EVENTS),
        ("POST", 200, [(b"Content-Type", b"TEXT/Event-Stream")], EVENTS),
        ("GET", 200, [SSE, (b"content-encoding", b"identity")], EVENTS),
        ("GET", 200, [SSE, (b"Content-Length", b"9")], None),
        ("GET", 200, [(b"content-encoding", b"gzip"), SSE], None),
        ("GET", 206, [SSE, (b"content-range", b"bytes 0-9/9")], None),
        ("HEAD", 200, [SSE], None),
        ("GET", 204, [SSE], None),
        ("GET", 200, [(b"content-type", b"text/html")], None),
        ("GET", 200, [], None),
        ("GET", 200, [NDJSON], None),
    ],
)
def test_a_response_is_pinged_only_where_that_changes_nothing(
    method: str, status: int, headers: list[tuple[bytes, bytes]], expected: Kind | None
) -> None:
    assert kind_of(method, status, headers) is expected


def test_lines_are_pinged_where_they_are_wanted_and_any_type_that_is_declared() -> None:
    assert kind_of("GET", 200, [NDJSON], lines=True) is LINES
    assert kind_of("GET", 200, [NDJSON], declared=True) is LINES
    assert kind_of("GET", 200, [(b"content-type", b"text/plain")], declared=True) is EVENTS
    gzip = (b"content-encoding", b"br")
    assert kind_of("GET", 200, [gzip], declared=True, lines=True) is None


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ([MARK + b"data"], b"data"),
        ([b"\xef", b"\xbb", b"\xbf", b"data"], b"data"),
        ([b"\xef\xbb", b"\xbcdata"], b"\xef\xbb\xbcdata"),
        ([b"", b"data"], b"data"),
    ],
)
def test_a_mark_that_comes_after_a_ping_is_taken_away(parts: list[bytes], written: bytes) -> None:
    held, over, said = b"", False, b""
    for part in parts:
        if not over:
            part, held, over = without_mark(held, part)
        said += part
    assert said + held == written


def test_nothing_but_the_end_of_a_long_piece_is_looked_at() -> None:
    class Piece(bytes):
        looked = 0

        def __getitem__(self, key: object) -> bytes:  # type: ignore[override]
            found = bytes.__getitem__(self, key)  # type: ignore[call-overload]
            Piece.looked = max(Piece.looked, len(found))
            return bytes(found)

    assert after_events(INSIDE, Piece(b"x" * 100_000 + b"\n\n")) != INSIDE
    assert Piece.looked == 3
