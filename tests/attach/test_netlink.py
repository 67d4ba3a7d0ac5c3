"""The inet_diag protocol: what the kernel says is read, and what cannot be true is
refused.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.attach import netlink, tcpinfo
from reaper.attach.netlink import BadAnswer
from reaper.errors import ReaperError

INFO = struct.pack("=44xIIII60xQQ64xQQ", 148, 0, 48, 40, 17, 21, 17, 0)
IDENT4 = struct.pack(
    "!HH4s12x4s12x", 6379, 40000, bytes([127, 0, 0, 1]), bytes([127, 0, 0, 2])
) + struct.pack("=IQ", 0, 77)


def message(
    ident: bytes = IDENT4, state: int = 1, family: int = 2, info: bytes = INFO, sequence: int = 5
) -> bytes:
    attributes = struct.pack("=HHB3x", 5, 8, 1)
    if info:
        attributes += struct.pack("=HH", 4 + len(info), netlink.INET_DIAG_INFO) + info
    body = (
        struct.pack("=BBBB", family, state, 0, 0)
        + ident
        + struct.pack("=IIIII", 0, 3, 9, 1000, 4242)
        + attributes
    )
    return struct.pack("=IHHII", 16 + len(body), netlink.SOCK_DIAG_BY_FAMILY, 2, sequence, 1) + body


def test_a_socket_is_read_with_its_queues_owner_and_stamps() -> None:
    (answer,) = netlink.parse(message())
    assert (answer.sequence, answer.state, answer.unread, answer.queued) == (5, 1, 3, 9)
    assert (answer.inode, netlink.cookie_of(answer.ident)) == (4242, 77)
    assert [str(address) for address in netlink.addresses_of(answer.ident)] == [
        "127.0.0.1:6379",
        "127.0.0.2:40000",
    ]
    found = tcpinfo.parse(answer.info, answer.state, answer.unread, answer.queued, 10.0, 10.1)
    assert (found.sent_ago, found.received_ago, found.acked, found.received) == (
        0.148,
        0.048,
        17,
        21,
    )


def test_an_error_is_an_errno() -> None:
    data = struct.pack("=IHHIIi16x", 36, netlink.NLMSG_ERROR, 0, 9, 1, -errno.ENOENT)
    (answer,) = netlink.parse(data)
    assert (answer.sequence, answer.error, answer.done) == (9, errno.ENOENT, True)


@pytest.mark.parametrize(
    ("packed", "written"),
    [(bytes(10) + b"\xff\xff\n\0\0\7", "10.0.0.7:81"), (bytes(15) + b"\1", "[::1]:81")],
)
def test_a_dual_stack_socket_stays_ipv6_and_writes_its_peer_as_ipv4_or_in_brackets(
    packed: bytes, written: str
) -> None:
    ident = struct.pack("!HH16s16s", 80, 81, packed, packed) + struct.pack("=IQ", 0, 1)
    assert netlink.family_of(ident) == socket.AF_INET6
    assert str(netlink.addresses_of(ident)[1]) == written


def test_the_kernels_count_of_an_end_of_file_is_no_byte() -> None:
    assert tcpinfo.parse(INFO, tcpinfo.CLOSE_WAIT, 0, 0, 0.0, 0.0).received == 20


def test_a_tcp_info_without_counters_is_refused() -> None:
    with pytest.raises(tcpinfo.NoCounters, match=r"120 bytes.*Linux 4\.19"):
        tcpinfo.parse(INFO[:120], 1, 0, 0, 0.0, 0.0)


@pytest.mark.parametrize("cut", range(1, 80))
def test_a_message_cut_off_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(BadAnswer):
        list(netlink.parse(message()[:-cut]))


@pytest.mark.parametrize(
    ("acked", "unsent", "outgoing"), [(17, 0, False), (18, 0, True), (10, 2, False), (11, 2, True)]
)
def test_whoever_opened_the_connection_had_its_syn_acknowledged(
    acked: int, unsent: int, outgoing: bool
) -> None:
    """17 bytes were sent, 3 of them twice; what is not acknowledged is queued, as is
    what was not sent yet.
    """
    info = struct.pack(
        "=24xI16xI4xII60xQQ8xI52xQQ", 1, 900, 900, 900, acked + outgoing, 0, unsent, 20, 3
    )
    queued = 17 - acked + unsent
    assert tcpinfo.parse(info, 1, 0, queued, 0.0, 0.0).outgoing is outgoing


@pytest.mark.parametrize("opened_here", [False, True])
def test_a_quiet_connection_tells_who_opened_it_whatever_the_queue_was_before(
    opened_here: bool,
) -> None:
    """Nothing is on its way, so the length of the queue, which is read at another
    instant, is not needed.
    """
    info = struct.pack("=120xQQ8xI52xQQ", 17 + opened_here, 0, 0, 20, 3)
    assert tcpinfo.parse(info, 1, 0, 400_000, 0.0, 0.0).outgoing is opened_here


@pytest.mark.parametrize("opened_here", [False, True])
@pytest.mark.parametrize(("ago", "miscounted"), [(900, True), (3, False)])
def test_bytes_that_never_left_the_machine_are_seen_by_a_quiet_look(
    opened_here: bool, ago: int, miscounted: bool
) -> None:
    """60 bytes were counted as sent, of which 42 were turned away by a link that is
    down; 18 are on their way.
    """
    acked = 336 + opened_here
    info = struct.pack("=24xI16xI4xII60xQQ8xI52xQQ", 3, ago, ago, ago, acked, 7, 0, 396, 0)
    seen = tcpinfo.parse(info, 1, 0, 18, 0.0, 0.0)
    assert (seen.outgoing, seen.miscounted) == (None, miscounted)


@pytest.mark.parametrize("read_too_early", [-5000, -1, 0, 1, 5000])
def test_a_connection_that_moves_does_not_tell_who_opened_it(read_too_early: int) -> None:
    """One byte that moved between the two readings looks like the SYN, or hides it."""
    info = struct.pack("=24xI16xI4xII60xQQ8xI52xQQ", 4, 3, 0, 90, 10_000, 0, 1_000, 15_000, 0)
    assert tcpinfo.parse(info, 1, 0, 6_000 + read_too_early, 0.0, 0.0).outgoing is None


@pytest.mark.parametrize(
    ("retransmits", "unacked", "ack_ago", "in_vain"),
    [
        (3, 1, 90_000, 5.0 + 0.8 * 7 / 8),
        (3, 1, 4_000, 0.0),
        (3, 0, 90_000, 0.0),
        (0, 1, 90_000, 0.0),
    ],
)
def test_retransmissions_tell_how_long_they_have_been_in_vain(
    retransmits: int, unacked: int, ack_ago: int, in_vain: float
) -> None:
    """The timeout is 0.8 s after three of them; the last was 5 s ago."""
    info = struct.pack(
        "=2xBx4xI12xI16xIIII156x", retransmits, 800_000, unacked, 5_000, 0, ack_ago, ack_ago
    )
    assert tcpinfo.parse(info, 1, 0, 9, 0.0, 0.0).in_vain == pytest.approx(in_vain)


def test_a_scan_finds_what_a_parse_does() -> None:
    data = message() + message(info=b"") + message(sequence=6) + message(info=INFO[:20])
    found = list(netlink.scan(data))
    for (start, end, sequence, ident, queued, info), answer in zip(
        found, netlink.parse(data), strict=True
    ):
        (alone,) = netlink.parse(data[start:end])
        assert (sequence, ident, queued) == (answer.sequence, answer.ident, answer.queued)
        assert alone == answer
        assert not info or data[info:].startswith(answer.info)
    assert [bool(info) for *_, info in found] == [True, False, True, False]


def test_a_scan_tells_when_the_peer_spoke_and_what_it_owes() -> None:
    info = bytearray(INFO)
    info[0], info[2:4] = tcpinfo.ESTABLISHED, bytes([1, 2])
    ((_, _, _, _, _, at),) = netlink.scan(data := message(info=bytes(info)))
    assert netlink.movement(data, at) == (tcpinfo.ESTABLISHED, 3, 48, 21)
    info[0] = tcpinfo.CLOSE_WAIT  # the kernel counts the peer's end of file as a byte
    assert netlink.movement(message(info=bytes(info)), at) == (tcpinfo.CLOSE_WAIT, 3, 48, 20)


@pytest.mark.parametrize("cut", range(1, 80))
def test_a_scan_of_a_message_cut_off_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(BadAnswer):
        list(netlink.scan(message()[:-cut]))


@given(st.binary(max_size=400))
def test_any_bytes_are_scanned_or_refused(data: bytes) -> None:
    with suppress(BadAnswer):
        for start, end, _, _, _, info in netlink.scan(data):
            assert 0 <= start < end <= len(data)
            if info:
                netlink.movement(data, info)


@given(data=st.data())
def test_a_damaged_dump_is_scanned_or_refused(data: st.DataObject) -> None:
    good = bytearray(message() * 3)
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadAnswer):
        for _, end, _, _, _, info in netlink.scan(bytes(good)):
            if info:
                netlink.movement(bytes(good), info)
            assert end <= len(good)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(ReaperError):
        for answer in list(netlink.parse(data)):
            if answer.ident:
                netlink.addresses_of(answer.ident)
                tcpinfo.parse(answer.info, answer.state, 0, 0, 0.0, 0.0)


@given(data=st.data())
def test_a_damaged_answer_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(message() * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadAnswer):
        for answer in netlink.parse(bytes(good)):
            assert len(answer.info) <= len(good)


@given(
    host=st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).filter(lambda a: any(a.packed[4:]))),
    port=st.integers(0, 65535),
    cookie=st.integers(0, 2**64 - 1),
)
def test_addresses_and_cookies_survive_the_way_to_the_kernel_and_back(
    host: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, cookie: int
) -> None:
    packed = host.packed.ljust(16, b"\0")
    ident = struct.pack("!HH16s16s", port, port, packed, packed) + struct.pack("=IQ", 0, cookie)
    (answer,) = netlink.parse(message(ident, family=netlink.family_of(ident)))
    local, remote = netlink.addresses_of(answer.ident)
    assert local == remote
    assert local.port == port
    assert local.host == str(getattr(host, "ipv4_mapped", None) or host)
    assert netlink.cookie_of(answer.ident) == cookie
    assert netlink.look_request(1, ident)[16 + 8 :] == ident
