"""What is read from the heads of frames: which come apart, at any byte."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.servers.http2 import frames as frames_of
from reaper.servers.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PREFACE,
    WINDOW_UPDATE,
    Frames,
)

PING, SETTINGS, PRIORITY, UNKNOWN = 6, 4, 2, 99


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    def sent(self) -> bytes:
        head = len(self.payload).to_bytes(3, "big") + bytes((self.kind, self.flags))
        return head + self.stream.to_bytes(4, "big") + self.payload


def data(stream: int, body: bytes, pad: int | None, ends: bool) -> Frame:
    flags = END_STREAM if ends else 0
    if pad is None:
        return Frame(DATA, flags, stream, body)
    return Frame(DATA, flags | PADDED, stream, bytes((pad,)) + body + bytes(pad))


STREAMS = st.sampled_from([1, 3, 2**31 - 1])
DATA_FRAMES = st.builds(
    data, STREAMS, st.binary(max_size=20), st.none() | st.integers(0, 20), st.booleans()
)
OTHERS = st.builds(
    Frame,
    st.sampled_from([PING, SETTINGS, PRIORITY, UNKNOWN, GOAWAY, WINDOW_UPDATE]),
    st.just(0),
    st.just(0),
    st.binary(max_size=12),
)


def opens(frame: Frame) -> int:
    """By how many bytes it opens a window; 0: it is none that may be."""
    return int.from_bytes(frame.payload, "big") & 0x7FFFFFFF if len(frame.payload) == 4 else 0


def body_of(frame: Frame) -> bytes:
    if not frame.flags & PADDED:
        return frame.payload
    return frame.payload[1 : len(frame.payload) - frame.payload[0]]


@given(st.lists(DATA_FRAMES | OTHERS, max_size=8), st.data())
def test_however_bytes_are_split_a_body_is_counted_once(
    sent: list[Frame], draw: st.DataObject
) -> None:
    stream = PREFACE + b"".join(frame.sent() for frame in sent)
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(stream)), max_size=10)))
    frames, useless, moved, bodies = Frames(), 0, 0, dict.fromkeys([1, 3, 2**31 - 1], 0)
    windows: list[int] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        useless += frames.came(stream[start:end])
        moved += frames.moved
        windows += frames.windows
        for number, count in frames.brought.items():
            bodies[number] += count
    assert windows == [opens(each) for each in sent if each.kind == WINDOW_UPDATE]
    for number, count in bodies.items():
        assert count == sum(
            len(body_of(each)) for each in sent if each.kind == DATA and each.stream == number
        )
    assert moved == sum(each.kind == DATA and bool(body_of(each)) for each in sent)
    assert useless == sum(
        not body_of(each) and not each.flags & END_STREAM
        if each.kind == DATA
        else each.kind != WINDOW_UPDATE
        for each in sent
    )


HEADER_FRAMES = st.builds(
    Frame,
    st.just(HEADERS),
    st.sampled_from([0, END_HEADERS, END_STREAM, END_HEADERS | END_STREAM]),
    st.sampled_from([1, 3, 5, 7]),
    st.binary(max_size=20),
)
CONTINUATIONS = st.builds(
    Frame, st.just(CONTINUATION), st.sampled_from([0, END_HEADERS]), STREAMS, st.binary(max_size=9)
)


@given(st.lists(HEADER_FRAMES | CONTINUATIONS | DATA_FRAMES | OTHERS, max_size=8))
def test_frames_that_come_whole_are_noted_as_those_that_come_byte_by_byte(
    sent: list[Frame],
) -> None:
    """Whole ones are taken together, for each request has one."""
    stream = b"".join(frame.sent() for frame in sent)
    whole, apart = Frames(), Frames()
    whole.came(PREFACE)
    apart.came(PREFACE)
    useless, bodies = 0, Counter[int]()
    for at in range(len(stream)):
        useless += apart.came(stream[at : at + 1])
        bodies.update(apart.brought)
    assert whole.came(stream) == useless
    assert whole.brought == bodies
    assert (whole.blocks, whole.unended) == (apart.blocks, apart.unended)
    assert whole.in_block == apart.in_block


def test_a_preface_that_has_begun_is_no_silence() -> None:
    frames = Frames()
    assert not frames.in_block
    frames.came(PREFACE[:3])
    assert (frames.in_block, frames.heard) == (True, False)
    frames.came(PREFACE[3:])
    assert (frames.in_block, frames.heard) == (False, True)


@pytest.mark.parametrize("size", [0, 9, 11])
def test_a_header_block_is_open_until_its_last_frame_is_complete(size: int) -> None:
    frames = Frames()
    frames.came(PREFACE)
    frames.came(Frame(HEADERS, END_STREAM, 1, b"abc").sent())
    assert frames.in_block
    last = Frame(CONTINUATION, END_HEADERS, 1, b"def").sent()
    frames.came(last[:size])
    assert frames.in_block
    frames.came(last[size:])
    assert not frames.in_block


def test_padding_alone_is_no_body() -> None:
    frames = Frames()
    frames.came(PREFACE)
    assert frames.came(data(1, b"", 20, ends=False).sent()) == 1
    assert frames.brought == {1: 0}


def test_a_body_in_frames_of_a_byte_costs_no_call_for_each() -> None:
    """A read has 26,000 of them, and every other client of the loop waits for that."""
    frames, calls = Frames(), 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        # Not what the collector calls for the garbage of other tests meanwhile.
        calls += event == "call" and frame.f_code.co_filename == frames_of.__file__

    frames.came(PREFACE + Frame(SETTINGS, 0, 0, b"").sent())
    sent = data(1, b"x", None, ends=False).sent() * 1000 + data(1, b"x", None, ends=True).sent()
    frames.unended.add(1)
    sys.setprofile(count)
    try:
        frames.came(sent)
    finally:
        sys.setprofile(None)
    assert (frames.brought, frames.moved, frames.unended) == ({1: 1001}, 1001, set())
    assert calls < 10
