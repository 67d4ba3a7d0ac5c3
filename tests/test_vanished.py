"""Claims about clients that vanish: no FIN, no reset, and their kernel answers nothing.

The trials take the link between two network namespaces down. The judge itself is tested in virtual time.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import namespaces
import pytest
from test_driver import Connection, Loop

from reaper.config import ReaperConfig
from reaper.driver.driver import REAPS_PER_SLICE
from reaper.driver.sockets import TcpInfo
from reaper.driver.vanished import LOOKS_PER_STEP

PORT = 7700
AFTER = 4.0  # seconds: keep-alives are counted in whole ones
PATIENCE = 30.0

SERVER = """
    import trio, reaper.trio
    from reaper.config import ReaperConfig

    async def handler(stream):
        mode = (await stream.receive_some(100)).decode()
        print(mode, flush=True)
        while mode == "stream":
            await stream.send_all(b"event\\n")
            await trio.sleep(0.2)
        await stream.send_all(bytes(20_000_000))
        await stream.receive_some()

    config = ReaperConfig.load(overrides={"timeouts.vanished": AFTER, "timeouts.idle": 0.0, "reaper.tick": 0.25})
    trio.run(lambda: reaper.trio.serve_tcp(handler, PORT, host="0.0.0.0", config=config))
"""

CLIENT = """
    import socket, sys, time
    while True:
        try:
            peer = socket.create_connection((sys.argv[1], PORT))
            break
        except OSError:
            time.sleep(0.1)
    peer.sendall(sys.argv[2].encode())
    print("sent", flush=True)
    if sys.argv[2] == "full":  # it reads when it is told to
        sys.stdin.readline()
        wanted = 20_000_000
        while wanted and (data := peer.recv(1 << 20)):
            wanted -= len(data)
        print("left", wanted, flush=True)
    while peer.recv(1000):
        print("event", flush=True)
"""


@contextmanager
def running(prefix: list[str], program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    text = textwrap.dedent(program).replace("PORT", str(PORT)).replace("AFTER", str(AFTER))
    command = [*prefix, sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(PATIENCE * 2, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


@pytest.mark.slow
def test_a_stopped_client_with_a_full_window_and_a_link_that_comes_back_are_borne() -> None:
    with (
        namespaces.opened() as link,
        running(link.server, SERVER) as server,
        running(link.client, CLIENT, link.address, "stream") as streaming,
        running(link.client, CLIENT, link.address, "full") as full,
    ):
        assert None not in (server.stdout, full.stdin, full.stdout, streaming.stdout)
        assert {server.stdout.readline(), server.stdout.readline()} == {"stream\n", "full\n"}
        os.kill(full.pid, signal.SIGSTOP)
        link.down()
        time.sleep(AFTER / 2)
        link.up()
        time.sleep(AFTER * 2.5)
        os.kill(full.pid, signal.SIGCONT)
        full.stdin.write("\n")
        full.stdin.flush()
        assert [full.stdout.readline(), full.stdout.readline()] == ["sent\n", "left 0\n"]
        assert streaming.stdout.readline() == "sent\n"
        for _ in range(int(AFTER * 3 / 0.2)):  # more events than were sent before the link came back
            assert streaming.stdout.readline() == "event\n"


def heard_of(silence: float, unanswered: int, resent: float | None = None) -> TcpInfo:
    """A peer that was last heard *silence* seconds ago, and to which data was *resent* so long ago."""
    return TcpInfo(resent or 0.0, silence, silence, 0, 0, int(resent is not None), unanswered)


@pytest.mark.parametrize(
    ("silence", "resent", "unanswered", "gone"),
    [
        (59.0, 30.0, 9, False),  # never before its time
        (64.0, None, 4, True),  # keep-alives, the last but one a quarter ago
        (64.0, None, 1, False),  # one packet may be lost
        (64.0, None, 0, False),  # nobody has asked it
        (64.0, 10.0, 8, True),  # asked again lately, and long enough ago for an answer
        (64.0, 1.0, 8, False),  # the answer may be on its way
        (64.0, 20.0, 8, False),  # asked long ago: the next question is waited for...
        (72.0, 28.0, 8, True),  # ...a little
    ],
)
def test_a_peer_is_gone_when_it_owes_an_answer(
    silence: float, resent: float | None, unanswered: int, gone: bool
) -> None:
    assert heard_of(silence, unanswered, resent).gone(60.0) is gone


class Peers:
    """What the kernel would say of the peers of a loop's connections, by descriptor; those not named have answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: float = 60.0) -> None:
        config = ReaperConfig.load(environ={}, overrides={"timeouts.vanished": after})
        self.loop = Loop(config=config)
        self.silent_since: dict[int, float] = {}
        monkeypatch.setattr("reaper.driver.sockets.tcp_info_of", self.tcp_info_of)
        monkeypatch.setattr("reaper.driver.vanished._have_it_asked", lambda link, after: None)
        monkeypatch.setattr("reaper.driver.vanished._end", lambda owner, link: owner.reap("vanished"))

    def tcp_info_of(self, link: int) -> TcpInfo | None:
        if link == UNIX:
            return None
        silence = self.loop.time - self.silent_since.get(link, self.loop.time)
        return heard_of(silence, int(silence / 15.0))

    def watch(self, link: int) -> Connection:
        driver = self.loop.driver
        return driver.watch(lambda uid: Connection(driver, uid, link), object(), 0.0)  # type: ignore[no-any-return]


UNIX = 9
"""The descriptor of no TCP socket."""


@pytest.mark.parametrize("lost", [0.0, 7.0, 33.3, 59.9])
def test_a_vanished_peer_is_closed_within_a_quarter(monkeypatch: pytest.MonkeyPatch, lost: float) -> None:
    peers = Peers(monkeypatch)
    gone, there = peers.watch(5), peers.watch(6)
    gone.suspend()  # in flight or not
    peers.silent_since[5] = lost
    peers.loop.run_until(lost + 60.0)
    assert not gone.reaped
    peers.loop.run_until(lost + 76.0)
    assert (gone.reason, there.reaped) == ("vanished", False)


def test_a_stall_of_the_loop_closes_nobody_who_then_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Peers(monkeypatch)
    connection = peers.watch(5)
    peers.silent_since[5] = 0.0
    peers.loop.run_until(10.0)
    peers.loop.stall(300.0)
    peers.loop.wake()
    assert not connection.reaped  # it looks bad, and is looked at again
    del peers.silent_since[5]
    peers.loop.run_until(1000.0)
    assert not connection.reaped


def test_no_step_looks_at_many_and_each_is_looked_at_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Peers(monkeypatch)
    connections = [peers.watch(10 + number) for number in range(5000)]
    peers.silent_since = {10 + number: 0.0 for number in range(0, 5000, 2)}  # half a site at once
    judge, most = peers.loop.driver.vanished, 0
    while (rest := peers.loop.driver.rest()) <= 76.0:
        peers.loop.time = max(peers.loop.time, rest)
        before = judge.looks
        peers.loop.wake()
        most = max(most, judge.looks - before)
    assert most <= LOOKS_PER_STEP + REAPS_PER_SLICE + 1
    assert all(connection.reaped == (number % 2 == 0) for number, connection in enumerate(connections))


def test_where_no_peer_can_vanish_the_loop_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Peers(monkeypatch, after=0.0)
    off.watch(5).suspend()
    local = Peers(monkeypatch)
    local.watch(UNIX).suspend()
    for peers in (off, local):
        peers.loop.run_until(20.0)
        assert peers.loop.driver.rest() == math.inf
    local.watch(5)
    assert local.loop.driver.rest() < math.inf
