"""What the kernel is asked about sockets."""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reaper.driver.sockets import (
    TcpInfo,
    is_over,
    listen_as,
    peer_has_shut,
    peer_name,
    queued,
    shut_by_peer,
    silence_of,
    silence_of_paths,
    tcp_info_of,
    unread,
)


@contextmanager
def connected(
    address: tuple[str, int] | bytes = ("127.0.0.1", 0), family: int = socket.AF_INET
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's socket and its server's."""
    with socket.socket(family) as listening, socket.socket(family) as client:
        listening.bind(address)
        listening.listen()
        client.connect(listening.getsockname())
        served, _ = listening.accept()
        with served:
            yield client, served


def test_bytes_are_unread_also_behind_an_urgent_one_and_an_end_of_file_is_none() -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    pairs[1][1].send(b"x")
    pairs[2][1].close()
    pairs[3][1].send(b"y")
    pairs[3][1].close()
    ours = [left.fileno() for left, _ in pairs]
    assert (unread(ours), unread([])) == ([ours[1], ours[3]], [])
    for left, right in pairs:
        left.close()
        right.close()
    with connected() as (client, served):
        client.send(b"!", socket.MSG_OOB)
        assert unread([served.fileno()]) == []
        client.send(b"request")
        assert unread([served.fileno()]) == [served.fileno()]
        descriptor = served.fileno()
    assert (tcp_info_of(descriptor), peer_has_shut(served)) == (None, False)  # it is closed


def test_a_peer_is_named_by_its_address_whatever_that_is_and_one_that_is_gone_is_not(
    tmp_path: Path,
) -> None:
    for host, family, shown in (
        ("127.0.0.1", socket.AF_INET, "127.0.0.1"),
        ("::1", socket.AF_INET6, "[::1]"),
    ):
        with connected((host, 0), family) as (client, served):
            assert peer_name(served.fileno()) == f"{shown}:{client.getsockname()[1]}"
            assert served.getpeername()  # it is open still
    path = str(tmp_path).encode() + b"/"
    for chosen, shown in (
        (path + b"server", f"{tmp_path}/server"),
        # A name of the whole machine's: another run of the tests may be under way.
        (b"\0\x1b[2J%d" % os.getpid(), rf"@\x1b[2J{os.getpid()}"),
        (path + b"\n\xff", rf"{tmp_path}/\n\udcff"),
    ):
        with connected(chosen, socket.AF_UNIX) as (client, served):
            assert (peer_name(client.fileno()), peer_name(served.fileno())) == (shown, "")
    with socket.socket() as alone:
        assert peer_name(alone.fileno()) == ""
    assert peer_name(-1) == ""


def test_the_kernel_says_what_the_peer_has_not_taken() -> None:
    with connected() as (client, served):
        served.send(b"x" * 1000)
        assert client.recv(1000)
        while queued(served.fileno()):
            pass
    assert queued(served.fileno()) == 0


KNOWN = TcpInfo(
    sent_ago=9.0, received_ago=9.0, acked_ago=0.5, acknowledged=1, received=1, on_its_way=0,
    unanswered=0, patience=0.2, held_up=8.0,
)  # fmt: skip
"""Of a peer that took the last byte 8.8 s ago at the latest, and makes no room."""


@pytest.mark.parametrize(
    ("changed", "before", "seconds"),
    [
        ({}, 0.0, 8.0),  # since when something waits for it
        ({}, 5.0, 3.0),  # the rest is older than what waits
        ({"held_up": 8.9}, 0.0, 8.8),  # after the last byte was sent
        ({"resent": 1}, 0.0, 0.5),  # the last may have come by a later segment
        ({"on_its_way": 1}, 0.0, 0.5),  # or be still on its way
        ({"sent_ago": 0.1}, 0.0, 0.5),
        ({"held_up": 0.0}, 0.0, 0.0),  # nothing is held up
    ],
)
def test_a_peer_has_taken_nothing_for_no_longer_than_is_sure(
    changed: dict[str, Any], before: float, seconds: float
) -> None:
    assert KNOWN._replace(**changed).took_nothing_for(before) == pytest.approx(seconds)


def test_the_kernel_says_for_how_long_a_peer_has_made_no_room() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listening.getsockname())
        served, _ = listening.accept()
        with served:
            served.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    served.send(bytes(65536))
            time.sleep(0.4)
            info = tcp_info_of(served.fileno())
    assert info is not None
    assert 0.05 < info.took_nothing_for(0.0) <= info.held_up


def test_the_silence_of_a_peer_alone_is_what_tcp_info_says_too() -> None:
    with connected() as (client, served):
        time.sleep(0.3)
        client.send(b"x")
        time.sleep(0.05)
        before = time.monotonic()
        silence = silence_of(served.fileno())
        info = tcp_info_of(served.fileno())
        between = time.monotonic() - before
        assert silence is not None
        assert info is not None
        assert silence <= info.silence <= silence + between + 0.02  # some jiffies
        descriptor = served.fileno()
    near, far = socket.socketpair()
    with near, far:
        assert (silence_of(near.fileno()), silence_of(descriptor)) == (None, None)


def test_a_connection_is_over_when_it_was_reset_or_its_socket_is_closed() -> None:
    with connected() as (client, server):
        descriptor = server.fileno()
        assert not is_over(descriptor)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # with a reset
        assert is_over(descriptor)
        server.close()
        assert is_over(server.fileno())


def test_a_half_closed_connection_is_not_over_and_its_peer_has_shut() -> None:
    with connected() as (client, server):
        assert not shut_by_peer(server.fileno())
        client.shutdown(socket.SHUT_WR)
        assert shut_by_peer(server.fileno())
        assert not is_over(server.fileno())


def test_of_what_is_no_tcp_nothing_is_said_to_be_over_or_shut() -> None:
    one, other = socket.socketpair()
    with one, other:
        other.close()
        assert not is_over(one.fileno())
        assert not shut_by_peer(one.fileno())


def test_only_a_connection_of_multipath_tcp_has_been_heard_by_another_path() -> None:
    with connected() as (_, served):
        assert silence_of_paths(served.fileno()) == math.inf
        descriptor = served.fileno()
    assert silence_of_paths(descriptor) == math.inf  # it is closed


def test_a_name_that_the_kernel_refuses_leaves_no_socket_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="too long"):
        listen_as("x" * 200)
    assert set(os.listdir("/proc/self/fd")) <= before  # what others held may go
