"""One connection of HTTP/2 and its streams, by the bytes that its client sends, in
virtual time.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("hyperframe")

from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from reaper.config import ReaperConfig
from reaper.policy import Phase
from reaper.policy.min_rate import NoSweep
from reaper.servers.http2.engine import Engine
from reaper.servers.http2.floods import BURST, STREAMS, WINDOWS
from reaper.servers.http2.frames import PREFACE
from reaper.servers.http2.waiting import Carrier
from tests.helpers.driver_loop import Loop

LIMIT = 50.0
"""Seconds: every timeout but `drain_idle`."""

DRAIN_IDLE = 10.0
"""Seconds: `drain_idle`."""

LIMITED = ("FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "TUNNEL")
ENDED = Phase.IN_FLIGHT


class Trial(Engine):
    """A connection whose server answers when the test says so.

    Attributes:
        windows: By stream, what the client takes on it; the connection takes nothing.
        owed: Whether the client has yet to take something that was sent.
        said: What the client was told: the streams that were reset, GOAWAY's last
            stream and code, and at last that the connection is closed.
    """

    def __init__(self, most: int = STREAMS) -> None:
        self.loop = Loop()
        self.ours, self.theirs = socket.socketpair()
        limits = {f"REAPER_TIMEOUTS_{each}": f"{LIMIT:g}s" for each in LIMITED}
        limits["REAPER_TIMEOUTS_DRAIN_IDLE"] = f"{DRAIN_IDLE:g}s"
        config = ReaperConfig.load(environ=limits)
        self.said: list[Any] = []
        self.windows: dict[int, int] = {}
        self.owed = False
        super().__init__(
            Carrier(self.loop.driver, config, NoSweep(), self.ours.fileno, self.close), most
        )
        self.open()

    def close(self) -> None:
        self.said.append("closed")
        self.ours.close()

    # ---- as an adapter
    def works(self) -> int:
        return 0

    def phase_of_stream(self, number: int) -> Phase:
        if number in self.windows:
            return Phase.WRITE
        return Phase.BODY if number in self.frames.unended else Phase.IN_FLIGHT

    def window_of(self, number: int) -> int:
        return self.windows[number]

    def owes(self) -> bool:
        return self.owed

    def send(self, data: bytes) -> None:
        self.said.append((int.from_bytes(data[9:13], "big"), int.from_bytes(data[13:], "big")))

    def end(self, number: int | None, goaway: bytes) -> None:
        if number is not None:
            self.said.append(number)
        if goaway:
            self.send(goaway)
            self.close()

    # ---- as a client, and a server that works it off at once
    def hears(self, *sent: Frame | bytes) -> None:
        """Bytes came; each HEADERS frame of a stream that is not open begins one."""
        for each in sent:
            data = each if isinstance(each, bytes) else each.serialize()
            if self.ended or not self.came(data):
                return
            for number in self.frames.brought:
                if not self.frames.in_block and number > self.highest:
                    self.begin(number)
                    self.look_at(number)
            self.worked()

    def until(self, instant: float) -> list[Any]:
        self.loop.run_until(instant)
        return self.said

    def every(self, seconds: float, until: float, *sent: Frame) -> list[Any]:
        """The client sends the same again and again."""
        while self.loop.time < until:
            self.until(min(self.loop.time + seconds, until))
            self.hears(*sent)
        return self.said


@pytest.fixture
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.over()
    made.ours.close()
    made.theirs.close()


@pytest.fixture
def begun(trial: Trial) -> Trial:
    """A connection whose client has sent its preface and its settings."""
    trial.hears(PREFACE, SettingsFrame(0))
    return trial


def asks(number: int, *flags: str, block: bytes = b"\x82") -> HeadersFrame:
    """HEADERS of a request without a body, unless other *flags* are given."""
    return HeadersFrame(number, block, flags=flags or ("END_HEADERS", "END_STREAM"))


def posts(number: int) -> HeadersFrame:
    return asks(number, "END_HEADERS")


def body(number: int, data: bytes, *flags: str, pad: int = 0) -> DataFrame:
    return DataFrame(number, data, pad_length=pad, flags=(*flags, "PADDED") if pad else flags)


# ---- between streams


def test_a_client_that_says_nothing_is_closed(trial: Trial) -> None:
    assert trial.until(LIMIT) == []
    assert trial.until(LIMIT + 1) == [(0, 0), "closed"]


def test_half_a_preface_is_half_a_head(trial: Trial) -> None:
    trial.until(LIMIT / 2)
    trial.hears(PREFACE[:10])
    assert (
        trial.every(
            5,
            1.5 * LIMIT - 1,
        )
        == []
    )
    assert trial.until(1.5 * LIMIT + 1) == [(0, 0), "closed"]


def test_a_client_that_never_asks_is_closed_whatever_else_it_sends(begun: Trial) -> None:
    idle = [PingFrame(0, b"are you?"), WindowUpdateFrame(0, 9), PriorityFrame(3)]
    assert begun.every(9, LIMIT - 1, *idle) == []
    assert begun.every(0.5, LIMIT + 1, *idle) == [(0, 0), "closed"]


def test_keep_alive_counts_from_the_end_of_the_last_stream(begun: Trial) -> None:
    begun.hears(asks(1), asks(3))
    begun.finish(1)
    begun.until(3 * LIMIT)
    begun.finish(3)
    assert begun.until(4 * LIMIT - 0.1) == []
    assert begun.until(4 * LIMIT + 1) == [(3, 0), "closed"]


@pytest.mark.parametrize("streams", [0, 1], ids=["alone", "beside a stream"])
def test_the_time_for_a_block_of_headers_is_absolute(begun: Trial, streams: int) -> None:
    begun.hears(*(asks(each) for each in range(1, 2 * streams, 2)))
    begun.until(LIMIT / 2)
    begun.hears(asks(5, "END_STREAM"))
    dripped = ContinuationFrame(5, b"")
    assert begun.every(1, 1.5 * LIMIT - 0.5, dripped) == []
    assert begun.every(0.5, 1.5 * LIMIT + 1, dripped) == [
        (2 * streams - 1 if streams else 0, 0),
        "closed",
    ]


def test_a_block_that_is_complete_is_waited_for_no_longer(begun: Trial) -> None:
    begun.hears(asks(1, "END_STREAM"), ContinuationFrame(1, b"\x82", flags=("END_HEADERS",)))
    assert begun.until(3 * LIMIT) == []


def test_a_frame_that_comes_apart_at_any_byte_is_the_same_frame(begun: Trial) -> None:
    for byte in posts(1).serialize() + body(1, b"all", "END_STREAM").serialize():
        begun.hears(bytes((byte,)))
    assert list(begun.streams) == [1]
    assert begun.until(3 * LIMIT) == []


# ---- streams


def test_a_request_in_flight_is_never_due_and_costs_no_lease(begun: Trial) -> None:
    leases = len(begun.carrier.driver.core)
    begun.hears(*(asks(number) for number in range(1, 200, 2)))
    assert len(begun.carrier.driver.core) == leases
    assert begun.until(9 * LIMIT) == []


def test_a_stream_whose_body_stays_away_is_reset_and_its_neighbour_stays(begun: Trial) -> None:
    begun.hears(posts(1), asks(3))
    assert begun.until(LIMIT - 0.1) == []
    assert begun.until(3 * LIMIT) == [1]


def test_with_the_last_stream_its_connection_goes(begun: Trial) -> None:
    begun.hears(posts(1))
    assert begun.until(LIMIT + 1) == [1, (1, 0), "closed"]


def test_bytes_of_a_body_restart_its_time(begun: Trial) -> None:
    begun.hears(posts(1), asks(3))
    assert begun.every(LIMIT - 1, 9 * LIMIT, body(1, b"more")) == []
    assert begun.until(10.1 * LIMIT) == [1]


def test_a_part_of_a_frame_restarts_the_time_of_its_body(begun: Trial) -> None:
    begun.hears(posts(1), asks(3), body(1, b"x" * 1000).serialize()[:9])
    for _ in range(5):
        begun.until(begun.loop.time + LIMIT - 1)
        begun.hears(b"x")
    assert begun.said == []


@pytest.mark.parametrize(
    "sent",
    [body(1, b""), body(1, b"", pad=20), body(3, b"more")],
    ids=["empty", "padding", "another's"],
)
def test_what_brings_no_byte_of_a_body_restarts_nothing(begun: Trial, sent: DataFrame) -> None:
    begun.hears(posts(1), posts(3), asks(5))
    assert 1 in begun.every(LIMIT / 5, LIMIT + 1, sent)


def test_the_end_of_a_body_ends_the_wait_for_it(begun: Trial) -> None:
    begun.hears(posts(1), posts(3), posts(5), asks(7))
    begun.hears(body(1, b"all", "END_STREAM"), body(3, b"", "END_STREAM"))
    begun.hears(asks(5))  # trailers
    assert begun.until(3 * LIMIT) == []


def test_a_stream_that_its_client_has_reset_is_waited_for_no_longer(begun: Trial) -> None:
    begun.hears(posts(1), asks(3), RstStreamFrame(1))
    begun.finish(1)
    assert begun.until(3 * LIMIT) == []


def test_what_comes_for_a_stream_that_was_refused_is_forgotten(begun: Trial) -> None:
    begun.hears(posts(1))
    begun.finish(1)
    begun.hears(body(1, b"late"))
    assert (begun.streams, begun.frames.unended) == ({}, set())


# ---- a window that is shared


def write(begun: Trial, windows: dict[int, int]) -> Trial:
    """Each of the streams of *windows* has an answer, which waits for its client."""
    begun.hears(*(asks(number) for number in windows))
    begun.windows = windows
    for number in windows:
        begun.look_at(number)
    return begun


def takes(trial: Trial, number: int, until: float) -> list[Any]:
    """What the client was told by *until*, while it takes bytes of *number* alone."""
    while trial.loop.time < until:
        trial.until(trial.loop.time + LIMIT / 2)
        trial.sent(number, 100)
    return trial.said


def test_bytes_of_one_stream_are_the_activity_of_all_that_share_its_window(begun: Trial) -> None:
    assert takes(write(begun, {1: 100, 3: 100, 5: 100}), 1, 4 * LIMIT) == []


def test_a_stream_whose_own_window_is_shut_waits_for_itself(begun: Trial) -> None:
    assert takes(write(begun, {1: 100, 3: 0, 5: 100}), 1, 4 * LIMIT) == [3]


def test_nobody_waits_for_a_shared_window_that_gives_no_byte(begun: Trial) -> None:
    write(begun, {1: 100, 3: 100}).sent(1, 0)
    assert begun.until(2 * LIMIT)[-1] == "closed"


@pytest.mark.parametrize("ended", [True, False], ids=["that has ended", "that was reset"])
def test_a_stream_is_forgotten_by_those_that_share_its_window(begun: Trial, ended: bool) -> None:
    write(begun, {1: 100, 3: 100})
    if ended:
        begun.finish(3)
    elif (waiting := begun.streams[3]) is not None:
        waiting.reap("write")
    begun.sent(1, 100)
    assert list(begun.streams) == [1]


# ---- floods

USELESS = {
    "ping": PingFrame(0),
    "ping ack": PingFrame(0, flags=("ACK",)),
    "settings": SettingsFrame(0),
    "settings ack": SettingsFrame(0, flags=("ACK",)),
    "priority": PriorityFrame(3),
    "reset": RstStreamFrame(1),
    "empty data": body(1, b""),
    "padding": body(1, b"", pad=9),
    "goaway": GoAwayFrame(0),
    "unknown": bytes((0, 0, 0, 99, 0, 0, 0, 0, 0)),
}


@pytest.mark.parametrize("frame", USELESS.values(), ids=USELESS)
def test_a_flood_of_frames_that_move_nothing_ends_its_connection(
    begun: Trial, frame: Frame | bytes
) -> None:
    begun.hears(posts(1))
    begun.hears(*[frame] * (BURST - 1))  # the settings at the start were one
    assert begun.said == []
    begun.hears(frame)
    assert begun.said == [(1, 11), "closed"]


def test_a_client_that_reads_may_send_a_ping_for_each_frame_that_it_takes(begun: Trial) -> None:
    begun.hears(asks(1))
    for _ in range(5 * BURST):
        begun.sent(1, 100)
        begun.hears(PingFrame(0))
    assert begun.said == []


def test_windows_that_are_opened_in_vain_end_their_connection(begun: Trial) -> None:
    begun.hears(posts(1), *[WindowUpdateFrame(0, 1)] * (WINDOWS + 1))
    assert begun.said == []
    begun.hears(WindowUpdateFrame(1, 1))
    assert begun.said == [(1, 11), "closed"]


@pytest.mark.parametrize(("size", "windows"), [(100, 2), (16_384, 8)], ids=["events", "a file"])
def test_a_client_that_reads_may_open_its_windows_as_often_as_any_does(
    begun: Trial, size: int, windows: int
) -> None:
    begun.hears(asks(1))
    for _ in range(2 * WINDOWS):
        begun.sent(1, size)
        begun.hears(*[WindowUpdateFrame(0, 1)] * windows)
    assert begun.said == []


def test_a_client_that_lags_may_give_its_windows_back_all_at_once(begun: Trial) -> None:
    """Go's does so for each piece that its user reads, also of streams that have
    ended.
    """
    begun.hears(asks(1), asks(3))
    begun.sent(1, 4 << 20)
    begun.sent(3, 4 << 20)
    begun.finish(3)
    begun.until(3.0)
    begun.hears(*[WindowUpdateFrame(number, 4096) for number in (0, 0, 1, 3)] * 1024)
    assert begun.said == []
    begun.hears(*[WindowUpdateFrame(0, 1)] * WINDOWS)
    assert begun.said == []
    begun.hears(*[WindowUpdateFrame(0, 1)] * 3)  # and two for what it has asked
    assert begun.said == [(3, 11), "closed"]


def test_each_request_pays_for_opening_a_window_wider(begun: Trial) -> None:
    for number in range(1, 8 * WINDOWS, 2):
        begun.hears(asks(number), WindowUpdateFrame(number, 12 << 20))
        begun.finish(number)
    assert begun.said == []


def test_windows_that_are_opened_by_nothing_end_their_connection(begun: Trial) -> None:
    begun.hears(asks(1))
    begun.sent(1, 1 << 20)
    nothing = bytes((0, 0, 4, 8, 0, 0, 0, 0, 1)) + bytes(4)
    begun.hears(*[nothing] * (WINDOWS + 1))
    assert begun.said == []
    begun.hears(nothing)
    assert begun.said == [(1, 11), "closed"]


def test_pieces_of_a_head_that_are_empty_end_their_connection(begun: Trial) -> None:
    begun.hears(asks(1, "END_STREAM"), *[ContinuationFrame(1, b"\x84")] * (2 * BURST))
    assert begun.said == []
    begun.hears(*[ContinuationFrame(1, b"")] * BURST)
    assert begun.said[-1] == "closed"


def test_who_may_have_many_streams_open_may_reset_them_all() -> None:
    many = Trial(most=5 * BURST)
    many.hears(PREFACE, SettingsFrame(0))
    many.hears(*[RstStreamFrame(number) for number in range(1, 10 * BURST, 2)])
    assert many.said == []
    many.over()
    many.ours.close()
    many.theirs.close()


def test_a_client_that_sends_may_send_a_ping_for_each_frame_of_its_body(begun: Trial) -> None:
    begun.hears(posts(1), *[body(1, b"more"), PingFrame(0)] * (5 * BURST))
    assert begun.said == []


def test_a_request_that_is_reset_by_the_same_bytes_is_named(begun: Trial) -> None:
    begun.came(b"".join(each.serialize() for each in (asks(1), asks(3), RstStreamFrame(1))))
    assert begun.frames.cancelled == {1}
    begun.came(RstStreamFrame(3).serialize())
    assert begun.frames.cancelled == set()  # it had begun before


def test_a_request_whose_body_has_to_be_acknowledged_is_not(begun: Trial) -> None:
    begun.came(b"".join(each.serialize() for each in (posts(1), body(1, b"x"), RstStreamFrame(1))))
    assert begun.frames.cancelled == set()


# ---- goodbye


def test_who_is_told_to_leave_hears_which_stream_was_the_last_and_hears_it_once(
    begun: Trial,
) -> None:
    begun.hears(asks(1), asks(3))
    begun.leave()
    begun.leave()
    assert begun.said == [(3, 0)]


def test_a_client_that_has_everything_is_given_the_time_to_close(begun: Trial) -> None:
    begun.see_off()
    assert begun.until(DRAIN_IDLE - 0.1) == []
    assert begun.until(DRAIN_IDLE + 1) == ["closed"]


def test_a_client_that_is_owed_something_is_waited_for(begun: Trial) -> None:
    begun.owed = True
    begun.see_off()
    assert begun.until(5 * DRAIN_IDLE) == []
    begun.owed = False
    assert begun.until(6 * DRAIN_IDLE - 0.5) == []
    assert begun.until(6 * DRAIN_IDLE + 1) == ["closed"]


def test_nobody_is_waited_for_beyond_the_end_of_the_stop(begun: Trial) -> None:
    begun.owed = True
    begun.see_off(until=3 * DRAIN_IDLE)
    assert begun.until(3 * DRAIN_IDLE - 1) == []
    assert begun.until(3 * DRAIN_IDLE + 1) == ["closed"]


def test_a_client_that_has_closed_is_waited_for_no_longer(begun: Trial) -> None:
    begun.see_off()
    begun.over()
    begun.ours.close()
    assert begun.until(9 * DRAIN_IDLE) == []


def test_a_connection_that_has_ended_leaves_no_lease(begun: Trial) -> None:
    begun.hears(posts(1), asks(3))
    begun.over()
    assert len(begun.carrier.driver.core) == 0
