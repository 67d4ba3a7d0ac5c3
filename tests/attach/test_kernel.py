"""What is asked of the kernel: the same questions to the real one and to the fake of
the other tests.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from reaper.attach import netlink
from reaper.attach.closing import check_shutdown
from reaper.attach.kernel import Linux, Refusal, grain
from reaper.attach.netlink import addresses_of, cookie_of
from reaper.attach.sockets import OwnSockets, acks_tell, look
from reaper.attach.targets import READ_EVERY, ByListen, ByPid, parse_address
from reaper.errors import InvalidArgument
from tests.helpers import namespaces
from tests.helpers.attach_worlds import FakeWorld, RealWorld, World

GRAIN = grain()


@pytest.fixture(params=[FakeWorld, RealWorld])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = request.param()
    yield made
    made.close()


def test_a_dump_shows_each_open_connection_of_the_listener_once(world: World) -> None:
    ends = [world.connect() for _ in range(5)]
    found = list(world.dump([world.listener], False))
    assert sorted(one.ident for one in found) == sorted(map(world.ident, ends))
    assert len({cookie_of(one.ident) for one in found}) == 5
    assert all(addresses_of(one.ident)[0] == world.listener.address for one in found)
    assert all(one.inode and one.snapshot is None for one in found)


def test_a_dump_with_info_shows_what_a_look_says(world: World) -> None:
    ends = [world.connect() for _ in range(5)]
    world.send(ends[0], 7)
    ident = world.ident(ends[0])
    (with_info,) = (one for one in world.dump([world.listener], True) if one.ident == ident)
    (seen,) = world.look([ident])
    assert (with_info.snapshot.received, seen.received) == (7, 7)
    assert seen.before <= seen.after


def test_a_survey_shows_each_connection_and_gives_those_that_are_not_known(world: World) -> None:
    ends = [world.connect() for _ in range(5)]
    world.send(ends[0], 7)
    first, *others = (world.ident(end) for end in ends)
    shown: dict[bytes, tuple[float, float, int, int]] = {}

    def sighted(ident: bytes, at: float, heard: float, queued: int, vain: int) -> bool:
        shown[ident] = at, heard, queued, vain
        return ident == first

    given = [found for found in world.survey([world.listener], sighted) if found is not None]
    assert sorted(one.ident for one in given) == sorted(others)
    assert sorted(shown) == sorted([first, *others])
    at, heard, queued, vain = shown[first]
    assert 0.0 < heard < at <= world.now
    assert (queued, vain) == (0, 0)
    assert {shown[other][1] for other in others} == {0.0}  # they have not sent a byte


def test_a_glance_shows_each_connection_and_gives_the_gone_and_the_unknown(world: World) -> None:
    ends = [world.connect() for _ in range(2)]
    gone, unknown = (world.ident(end) for end in ends)
    ends += [world.connect() for _ in range(38)]  # more than one system call asks for
    for end in ends:
        world.send(end)
    idents = [found.ident for found in world.dump([world.listener], False)]
    world.hang_up(ends[0])
    shown: dict[bytes, float] = {}

    def sighted(ident: bytes, at: float, heard: float, queued: int, vain: int) -> bool:
        assert 0.0 < heard < at <= world.now
        assert any(ident is each for each in idents), "a copy, which would be kept beside the key"
        shown[ident] = heard
        return ident != unknown

    given = dict(world.glance(idents, sighted))
    assert sorted(shown) == sorted(set(idents) - {gone})
    assert sorted(given) == sorted([gone, unknown])
    assert given[gone] is None
    seen = given[unknown]
    assert seen.received == 1
    assert shown[unknown] <= seen.since(seen.received_ago, GRAIN)


def test_a_client_that_ends_its_half_is_not_shown_as_having_sent_a_byte() -> None:
    with closing(RealWorld()) as world:
        pair = world.connect()
        pair.client.shutdown(socket.SHUT_WR)
        assert pair.server.recv(1) == b""
        shown: list[float] = []

        def sighted(ident: bytes, at: float, heard: float, queued: int, vain: int) -> bool:
            shown.append(heard)
            return True

        assert list(world.glance([world.ident(pair)], sighted)) == []
        assert [each for each in world.survey([world.listener], sighted) if each] == []
        assert shown == [0.0, 0.0]


def test_who_listens_may_be_asked_while_a_dump_is_half_read() -> None:
    with closing(RealWorld()) as world:
        ends = [world.connect() for _ in range(300)]
        dump = world.dump([world.listener], True)
        next(dump)
        assert world.listener.address in {one.address for one in world.kernel.listeners()}
        assert len(list(dump)) == len(ends) - 1


def test_a_look_answers_in_order_and_none_for_a_gone_connection_or_another_cookie(
    world: World,
) -> None:
    first, gone, last = (world.connect() for _ in range(3))
    world.send(first, 1)
    world.send(last, 3)
    idents = [world.ident(one) for one in (first, gone, last)]
    world.hang_up(gone)
    seen = world.look([idents[2], idents[1], idents[0]])
    assert [one and one.received for one in seen] == [3, None, 1]
    another = idents[0][:40] + struct.pack("=Q", cookie_of(idents[0]) + 1000)
    assert world.look([another]) == [None]


def test_stamps_are_never_later_than_the_truth_by_more_than_the_grain(world: World) -> None:
    one = world.connect()
    world.wait(0.05)
    earliest = world.now
    world.send(one)
    latest = world.now
    world.wait(0.03)
    (seen,) = world.look([world.ident(one)])
    assert seen.since(seen.received_ago, GRAIN) >= earliest
    assert seen.before - seen.received_ago <= latest + GRAIN
    assert seen.silent(GRAIN) <= seen.before - earliest + (seen.after - seen.before)


def test_who_spoke_last_is_seen(world: World) -> None:
    one = world.connect()
    world.wait(0.05)
    world.send(one)
    world.wait(0.05)
    (asked,) = world.look([world.ident(one)])
    world.answer(one, 4)
    world.wait(0.2)  # the peer's kernel may acknowledge late
    (answered,) = world.look([world.ident(one)])
    assert asked.received_ago < asked.sent_ago
    assert answered.received_ago > answered.sent_ago
    assert answered.acked - asked.acked == 4


def test_unread_and_queued_bytes_are_seen(world: World) -> None:
    one, other = world.connect(), world.connect()
    world.leave_unread(one)
    world.stall(other)
    unread, stalled = world.look([world.ident(one), world.ident(other)])
    assert (unread.unread, unread.queued) == (3, 0)
    assert stalled.queued > 50_000


def test_an_end_that_the_final_check_allows_is_seen_by_the_peer_and_happens_once(
    world: World,
) -> None:
    one = world.connect()
    ident = world.ident(one)
    assert world.end(ident, 0, lambda seen: False) == "averted"
    assert world.look([ident]) != [None]
    assert world.end(ident, 0, lambda seen: seen.received == 0) == "closed"
    assert world.sees_the_end(one)
    assert world.look([ident]) == [None]
    assert world.end(ident, 0, lambda seen: True) == "gone"


# -- the real one alone


@pytest.mark.parametrize("most", [1, 2, netlink.MOST_PLACES])
@pytest.mark.parametrize("info", [False, True])
def test_the_connections_of_several_listeners_are_found_in_one_dump_or_more(
    monkeypatch: pytest.MonkeyPatch, most: int, info: bool
) -> None:
    monkeypatch.setattr(netlink, "MOST_PLACES", most)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [server.getsockname()[1] for server in servers]
        for server in servers:
            stack.enter_context(socket.create_connection(server.getsockname()))
        kernel = stack.enter_context(closing(Linux()))
        listeners = [one for one in kernel.listeners() if one.address.port in ports]
        found = [addresses_of(one.ident)[0].port for one in kernel.dump(listeners, info)]
        assert sorted(found) == sorted(ports)


def test_an_outgoing_connection_from_the_listening_port_is_known_as_such() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), reuse_port=True) as server,
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as accepted,
        socket.socket() as out,
        closing(Linux()) as kernel,
    ):
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        out.bind(server.getsockname())
        out.connect(elsewhere.getsockname())
        (listener,) = (
            one for one in kernel.listeners() if one.address.port == server.getsockname()[1]
        )
        inodes = {os.fstat(sock.fileno()).st_ino: sock is out for sock in (accepted, out)}
        with elsewhere.accept()[0]:
            for much in (1, 10_000_000, 1):
                found = list(kernel.dump([listener], True))
                opened = {one.inode: one.snapshot and one.snapshot.outgoing for one in found}
                assert opened == inodes
                for sock in (accepted, out):
                    sock.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        sock.send(b"x" * much)
                time.sleep(0.05)


SERVES_ALL = """
import socket, sys
server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_server_of_every_address_is_found_by_each_of_them() -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", SERVES_ALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
        closing(Linux()) as kernel,
    ):
        assert child.stdout is not None
        port = int(child.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("::1", port)):
            for asked, hosts in (
                ("[::1]", ["::1"]),
                ("127.0.0.1", ["127.0.0.1"]),
                ("[::ffff:127.0.0.1]", ["127.0.0.1"]),
                ("[::]", ["127.0.0.1", "::1"]),
                ("", ["127.0.0.1", "::1"]),
            ):
                target = ByListen(parse_address(f"{asked}:{port}"), kernel)
                found = [one.ident for one in kernel.dump(target.listeners(), False)]
                assert sorted(addresses_of(ident)[0].host for ident in found) == hosts, asked
                assert None not in kernel.look(found)
            assert target.pids() == [child.pid]
        child.communicate()


TAKES_OVER = """
import socket, sys
with socket.socket(fileno=0) as channel:
    _, given, _, _ = socket.recv_fds(channel, 1, 1)
    channel.send(b"!")
    channel.recv(1)
"""


@contextmanager
def handed_over() -> Iterator[tuple[ByPid, Callable[[], None], int]]:
    """A process that is watched: the target, what hands it a listening socket, and that
    one's port.

    It ends when its channel is closed, or is told to.
    """
    ours, theirs = socket.socketpair()
    with (
        subprocess.Popen([sys.executable, "-c", TAKES_OVER], stdin=theirs.fileno()) as child,
        theirs, ours, socket.create_server(("127.0.0.1", 0)) as server, closing(Linux()) as kernel,
    ):  # fmt: skip

        def hand_over() -> None:
            socket.send_fds(ours, [b"!"], [server.fileno()])
            assert ours.recv(1) == b"!"

        yield ByPid(child.pid, kernel, waits=True), hand_over, server.getsockname()[1]
        ours.send(b"!")


def test_a_listening_socket_that_is_handed_over_later_is_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with handed_over() as (target, hand_over, port):
        assert target.listeners() == []
        hand_over()
        monkeypatch.setattr(target, "_clock", lambda: time.monotonic() + READ_EVERY)
        assert [one.address.port for one in target.listeners()] == [port]


def test_descriptors_are_read_again_in_the_time_that_their_reading_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reading takes 2 s of work here: at a hundredth of a core that is one in 200
    s.
    """
    with handed_over() as (target, hand_over, _):
        hand_over()
        target.listeners()
        monkeypatch.setattr(target, "_clock", lambda: 1000.0)
        monkeypatch.setattr(target, "_worked", iter([7.0, 9.0, 7.0, 9.0]).__next__)
        # Whatever else begins to listen on this machine would have it read at once, by
        # right.
        found = target.kernel.listeners()
        monkeypatch.setattr(target.kernel, "listeners", lambda: found)
        target.scan()
        for now, read_at in ((1199.0, 1000.0), (1200.0, 1200.0), (1399.0, 1200.0)):
            monkeypatch.setattr(target, "_clock", lambda now=now: now)
            assert len(target.listeners()) == 1
            assert target.read_at == read_at


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EOPNOTSUPP, "CONFIG_INET_DIAG_DESTROY"), (errno.EPERM, "NET_ADMIN")]
)
def test_a_destroy_that_the_kernel_refuses_is_said_in_words(
    code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Linux()) as kernel:
        assert kernel.destroy(struct.pack("=40xQ", 1)) is False
        monkeypatch.setattr(
            kernel, "_acknowledged", lambda sequence: netlink.Answer(sequence, code)
        )
        with pytest.raises(Refusal, match=said):
            kernel.destroy(struct.pack("=40xQ", 1))


@pytest.mark.parametrize("what", ["listener", "file", "closed"])
def test_what_is_no_connection_is_refused_by_the_library(what: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, open(tmp_path / "x", "w") as file:
        given: Any = {"listener": server, "file": file, "closed": 1_000_000}[what]
        with pytest.raises(InvalidArgument, match="not a connected TCP socket"):
            OwnSockets().ident(given)


@pytest.mark.parametrize("exchanges", [1, 2, 7])
@pytest.mark.parametrize("asks_again", [False, True])
def test_a_socket_in_hand_tells_whether_the_last_question_was_answered(
    exchanges: int, asks_again: bool
) -> None:
    """Both stamps fall into one jiffy; only how the kernel acknowledges differs."""
    if not acks_tell():
        pytest.skip("this kernel wants more than one quick answer")
    with closing(RealWorld()) as world:
        # Again until question, answer and the next question of one of them share a
        # jiffy.
        for _ in range(5):
            fresh = [world.connect() for _ in range(20)]
            for one in fresh:
                for _ in range(exchanges):
                    world.send(one)
                    world.answer(one)
                if asks_again:
                    world.send(one)
            time.sleep(0.25)
            looks = [seen for one in fresh if (seen := look(one.server.fileno(), time.monotonic))]
            assert len(looks) == len(fresh)
            if found := {seen.answered for seen in looks if seen.sent_ago == seen.received_ago}:
                break
        assert found == {not asks_again}
        (by_netlink,) = world.look([world.ident(fresh[0])])
        assert by_netlink is not None
        assert by_netlink[3:7] == looks[0][3:7]


def forbidden(pid: int, fd: int) -> int:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        # A protocol that no kernel has, and a call that no kernel has.
        ("kernel.NETLINK_SOCK_DIAG", 30, r"no sock_diag netlink .* CONFIG_INET_DIAG"),
        ("closing.SYS_PIDFD_GETFD", 100_000, r"no pidfd_getfd: it needs Linux 5\.6"),
        (
            "closing.take",
            forbidden,
            r"needs CAP_SYS_PTRACE, and .*ptrace_scope below 3: run as .*--how destroy",
        ),
    ],
)
def test_what_the_kernel_lacks_or_forbids_is_said_in_words(
    name: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"reaper.attach.{name}", value)
    with pytest.raises(Refusal, match=said), closing(Linux()):
        check_shutdown(os.getpid(), 0)


def test_a_descriptor_that_is_not_there_takes_no_right_to_ask_for() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        check_shutdown(child.pid, 999)
        child.kill()
    with pytest.raises(Refusal, match="has ended"):
        check_shutdown(child.pid, 0)


def test_the_connections_of_another_network_namespace_are_seen_through_its_process() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs the right to enter a network namespace: run as root")
    script = (
        "import socket, sys\n"
        "server = socket.create_server(('127.0.0.1', 7777))\n"
        "client = socket.create_connection(('127.0.0.1', 7777))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with (
        namespaces.opened() as link,
        subprocess.Popen(
            [*link.server, sys.executable, "-c", script], stdin=-1, stdout=-1
        ) as child,
        closing(Linux()) as ours,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with closing(Linux(child.pid)) as kernel:
            (listener,) = (one for one in kernel.listeners() if one.address.port == 7777)
            assert len(list(kernel.dump([listener], True))) == 1
        assert listener not in ours.listeners()
        child.communicate()
