"""Servers that are not ours and close nothing by themselves, guarded from outside:
silent clients go, live ones stay.

All assertions are on events and on the kernel's stamps. A live client that this process
itself kept waiting for longer than the timeout proves nothing, and connects again.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.helpers.attach_servers import (
    PATIENCE,
    SERVERS,
    Attach,
    Client,
    Nginx,
    Redis,
    at,
    free_port,
    tool,
    until,
)

IDLE = 1.5
LIMITS = ("--idle", "1500ms", "--tick", "100ms")


def live_on(clients: Sequence[Client], done: Callable[[], bool]) -> list[str]:
    """Have each of *clients* ask something every third of the timeout until *done*, and
    once more: whoever was closed by then is known.

    Returns:
        The names of those that were closed, because this process itself was late.
    """
    lost, end = [], time.monotonic() + PATIENCE
    while True:
        over = done()
        assert time.monotonic() < end, "not every silent client was closed"
        for client in clients:
            before = client.spoke
            try:
                client.exchange()
            except (AssertionError, OSError):
                silence = client.sent - before
                assert silence >= IDLE, f"a live client was closed after {silence:.3f} s"
                lost.append(client.name)
                client.connect()
        if over:
            return lost
        time.sleep(IDLE / 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.__name__.lower())
def test_silent_clients_of_a_foreign_server_are_closed_and_live_ones_never(
    kind: type[Redis] | type[Nginx], tmp_path: Path, port: int
) -> None:
    with kind.server(port, tmp_path), Attach(*at(port), *LIMITS, "--close") as attach:
        silent, live = [kind(port) for _ in range(4)], [kind(port) for _ in range(3)]
        for client in silent:
            client.exchange()
        earliest, names = time.monotonic() + 2.2 * IDLE, {client.name for client in silent}
        closed: list[str] = []

        def all_are_closed() -> bool:
            closed[:] = attach.clients("closed")
            return time.monotonic() > earliest and names <= {*closed}

        late = live_on(live, all_are_closed)
        # Nobody speaks from now on: whoever is closed later may be a live one.
        assert {*closed} <= {*names, *late}, "others are closed"
        ages = [client.wait_for_the_end() for client in silent]
        assert min(ages) >= IDLE
        until(lambda: {*late} <= {*attach.clients("closed")}, "each close is reported")
        assert len(attach.clients("closed")) == len({*attach.clients("closed")}), "closed twice"
        assert all(
            event["silent_s"] >= IDLE and event["reason"] == "idle" for event in attach.of("closed")
        )
        kind.answered(port)  # the server is as well as before
        assert attach.stop()[0] == 0
        (end,) = attach.of("end")
        assert (end["closed"], end["unreachable"]) == (len(attach.of("closed")), 0)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["--pid", "--listen"])
def test_without_close_nothing_is_closed_and_each_that_would_be_is_named_once(
    who: str, tmp_path: Path, port: int
) -> None:
    with Redis.server(port, tmp_path) as server:
        silent = Redis.answered(port)
        target = str(server.pid) if who == "--pid" else f"127.0.0.1:{port}"
        with Attach(who, target, *LIMITS) as attach:
            until(lambda: attach.of("due"), "the silent client is reported")
            time.sleep(2 * IDLE)
            assert attach.clients("due") == [silent.name]
            assert not attach.of("closed")
            silent.exchange()


def preface_of_http2(path: str) -> bytes:
    """All that a client needs to say, in one go: preface, settings, and a request."""
    block = b"\x82\x86\x41\x01x" + b"\x04" + bytes([len(path)]) + path.encode()
    headers = len(block).to_bytes(3) + b"\x01\x05\0\0\0\x01" + block
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\0\0\0\0\0" + headers


@pytest.mark.slow
@pytest.mark.parametrize("end", ["shutdown", "destroy", "destroy without the socket"])
@pytest.mark.parametrize("how", ["right after connect", "after an answer", "in two segments"])
def test_a_client_that_waits_for_its_answer_is_not_idle(end: str, how: str, tmp_path: Path) -> None:
    """BLPOP: the server owes the answer, and the question came in the jiffy of what
    came before.
    """
    port, prefix = free_port(), tuple[str, ...]()
    if end != "shutdown" and os.getuid():
        pytest.skip("SOCK_DESTROY needs CAP_NET_ADMIN")
    if end.endswith("socket"):
        prefix = (tool("setpriv"), "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    flags = (*at(port), *LIMITS, "--close", "--how", end.split()[0])
    with Redis.server(port, tmp_path), Attach(*flags, prefix=prefix) as attach:
        waiting = [Redis(port) for _ in range(10)]
        for client in waiting:
            client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if how != "right after connect":
                client.exchange()
            for part in (
                [b"BLPOP ", b"key 0\r\n"] if how == "in two segments" else [b"BLPOP key 0\r\n"]
            ):
                client.sock.sendall(part)
                time.sleep(0.0005)
        time.sleep(3 * IDLE)
        pusher, answered = Redis(port), time.monotonic()
        pusher.sock.sendall(b"LPUSH key" + b" x" * len(waiting) + b"\r\n")
        for client in waiting:
            client.answer_ends = b"x\r\n"
            client.read_answer()
            client.spoke = answered
        assert not attach.of("closed")
        for client in waiting:  # answered, and silent since: now they go
            assert client.wait_for_the_end() >= IDLE


@pytest.mark.slow
@pytest.mark.parametrize("end", ["shutdown", "destroy"])
def test_a_request_in_flight_is_answered_although_the_server_spoke_first(
    end: str, tmp_path: Path, port: int
) -> None:
    """HTTP/2: nginx greets with its settings; its upstream takes three times the limit.
    SMTP and MySQL are alike.
    """
    if end == "destroy" and os.getuid():
        pytest.skip("SOCK_DESTROY needs CAP_NET_ADMIN")
    flags = (*at(port), *LIMITS, "--close", "--how", end)
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        proxied = f"proxy_pass http://127.0.0.1:{upstream.getsockname()[1]};"
        with (
            Nginx.server(port, tmp_path, listen="http2", location=proxied),
            Attach(*flags) as attach,
        ):
            clients = [Nginx(port) for _ in range(10)]
            for client in clients:
                client.sock.sendall(preface_of_http2("/"))
                client.sock.recv(100)
                client.sock.sendall(
                    bytes(3) + b"\x04\x01\0\0\0\0"
                )  # as it must, it agrees to the server's settings
            behind = [upstream.accept()[0] for _ in clients]
            time.sleep(3 * IDLE)
            assert not attach.of("closed")
            for sock in behind:
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            for client in clients:
                client.read_answer()
            for sock in behind:
                sock.close()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["attach", "server"])
def test_a_stop_longer_than_the_timeout_closes_no_client_that_has_spoken(
    stopped: str, tmp_path: Path, port: int
) -> None:
    with Redis.server(port, tmp_path) as server, Attach(*at(port), *LIMITS, "--close") as attach:
        client = Redis.answered(port)
        until(lambda: attach.of("found"), "the client is found")
        client.exchange()
        victim = attach.process if stopped == "attach" else server
        victim.send_signal(signal.SIGSTOP)
        time.sleep(0.1)  # it stands; and its client is not silent for a limit by our delay
        client.spoke = time.monotonic()
        client.sock.sendall(client.question)
        if stopped == "attach":
            client.read_answer()
            for _ in range(4):  # it speaks all through the stop
                time.sleep(IDLE / 2)
                client.exchange()
        else:
            time.sleep(2 * IDLE)
        victim.send_signal(signal.SIGCONT)
        if stopped == "server":
            client.read_answer()
            client.spoke = time.monotonic()
        client.exchange()
        assert client.wait_for_the_end() >= IDLE
        until(lambda: attach.of("closed"), "the close is reported")
        (closed,) = attach.of("closed")
        assert closed["silent_s"] >= IDLE


@pytest.mark.slow
def test_the_server_restarts_and_its_new_connections_are_watched(tmp_path: Path, port: int) -> None:
    with Redis.server(port, tmp_path):
        attach = Attach(*at(port), *LIMITS, "--close")
        first = Redis.answered(port)
        first.wait_for_the_end()
    with attach:
        until(
            lambda: any("not served" in event["text"] for event in attach.of("say")),
            "the end is noticed",
        )
        with Redis.server(port, tmp_path):
            second = Redis.answered(port)
            second.wait_for_the_end()
            until(lambda: len(attach.of("closed")) == 2, "both are closed")
            assert attach.stop()[0] == 0


@pytest.mark.slow
def test_a_watched_process_that_dies_ends_the_watch(tmp_path: Path, port: int) -> None:
    with Redis.server(port, tmp_path) as server:
        attach = Attach("--pid", str(server.pid), *LIMITS, "--close")
        server.kill()
        server.wait()
        assert attach.process.wait(PATIENCE) == 0
        attach.stop()
        assert f"process {server.pid} has ended" in attach.of("say")[-1]["text"]


@pytest.mark.slow
def test_a_slow_header_attack_ends(tmp_path: Path, port: int) -> None:
    with Nginx.server(port, tmp_path):
        limits = (
            "--min-in-rate",
            "240",
            "--min-in-grace",
            "1s",
            "--first-byte",
            "5s",
            "--tick",
            "100ms",
        )
        with Attach(*at(port), *limits, "--close") as attach:
            attack = subprocess.run(
                [tool("slowhttptest"), "-H", "-c", "40", "-r", "40", "-i", "1", "-x", "8"]
                + ["-l", "60", "-p", "5", "-u", f"http://127.0.0.1:{port}/"],
                capture_output=True, text=True, timeout=90, cwd=tmp_path, check=False,
            )  # fmt: skip
            assert re.search(r"Exit status:.*No open connections left", attack.stdout), (
                attack.stdout[-600:]
            )
            until(lambda: len(attach.of("closed")) >= 40, "all of the attack is closed")
            assert {event["reason"] for event in attach.of("closed")} == {"min_in_rate"}
            Nginx.answered(port)
