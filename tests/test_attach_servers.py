"""Servers that are not ours and close nothing by themselves, guarded from outside: silent clients go, live ones stay.

All assertions are on events and on the kernel's stamps. A live client that this process itself kept waiting for longer
than the timeout proves nothing, and connects again.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from attach_servers import PATIENCE, SERVERS, Attach, Client, Nginx, Redis, free_port, tool, until

IDLE = 1.5
LIMITS = ("--idle", "1500ms", "--tick", "100ms")


def live_on(clients: list[Client], seconds: float) -> None:
    """Have each of *clients* ask something every third of the timeout."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for client in clients:
            silence = time.monotonic() - client.spoke
            try:
                client.exchange()
            except (AssertionError, OSError):
                assert silence >= IDLE, f"a live client was closed after {silence:.3f} s"
                client.connect()
        time.sleep(IDLE / 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.__name__.lower())
def test_silent_clients_of_a_foreign_server_are_closed_and_live_ones_never(kind, tmp_path: Path) -> None:
    port = free_port()
    with kind.server(port, tmp_path), Attach("--listen", f"127.0.0.1:{port}", *LIMITS, "--close") as attach:
        silent, live = [kind(port) for _ in range(4)], [kind(port) for _ in range(3)]
        for client in silent:
            client.exchange()
        live_on(live, 2.2 * IDLE)
        ages = [client.wait_for_the_end() for client in silent]
        assert min(ages) >= IDLE
        until(lambda: len(attach.of("closed")) == 4, "every silent client is closed")
        assert sorted(attach.clients("closed")) == sorted(client.name for client in silent)
        assert all(event["silent_s"] >= IDLE and event["reason"] == "idle" for event in attach.of("closed"))
        for client in live:
            client.exchange()
        another = kind(port)
        another.exchange()  # the server is as well as before
        assert attach.stop()[0] == 0
        (end,) = attach.of("end")
        assert (end["closed"], end["unreachable"]) == (4, 0)
        for client in [*silent, *live, another]:
            client.close()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["--pid", "--listen"])
def test_without_close_nothing_is_closed_and_each_that_would_be_is_named_once(who: str, tmp_path: Path) -> None:
    port = free_port()
    with Redis.server(port, tmp_path) as server:
        silent = Redis(port)
        silent.exchange()
        target = str(server.pid) if who == "--pid" else f"127.0.0.1:{port}"
        with Attach(who, target, *LIMITS) as attach:
            until(lambda: attach.of("due"), "the silent client is reported")
            time.sleep(2 * IDLE)
            assert attach.clients("due") == [silent.name]
            assert not attach.of("closed")
            silent.exchange()
            silent.close()


@pytest.mark.slow
def test_a_client_that_waits_for_its_answer_is_not_idle(tmp_path: Path) -> None:
    """BLPOP: the server owes the answer. Asked in the same breath as the question before, and after a pause."""
    port = free_port()
    with Redis.server(port, tmp_path), Attach("--listen", f"127.0.0.1:{port}", *LIMITS, "--close") as attach:
        at_once, later, silent = Redis(port), Redis(port), Redis(port)
        for client in (at_once, later, silent):
            client.exchange()
        at_once.sock.sendall(b"BLPOP one 0\r\n")
        time.sleep(0.1)
        later.sock.sendall(b"BLPOP two 0\r\n")
        silent.wait_for_the_end()
        time.sleep(2 * IDLE)
        assert attach.clients("closed") == [silent.name]
        pusher = Redis(port)
        for number, client in enumerate((at_once, later)):
            pusher.sock.sendall(b"LPUSH %s x\r\n" % (b"one", b"two")[number])
            client.answer_ends = b"$1\r\nx\r\n"
            client.read_answer()
        for client in (at_once, later):
            assert client.wait_for_the_end() >= IDLE  # answered, and silent since: now they go
            client.close()
        pusher.close()
        silent.close()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["attach", "server"])
def test_a_stop_longer_than_the_timeout_closes_no_client_that_has_spoken(stopped: str, tmp_path: Path) -> None:
    port = free_port()
    target = ("--listen", f"127.0.0.1:{port}")
    with Redis.server(port, tmp_path) as server, Attach(*target, *LIMITS, "--close") as attach:
        client = Redis(port)
        client.exchange()
        until(lambda: attach.of("found"), "the client is found")
        victim = attach.process if stopped == "attach" else server
        victim.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
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
        client.close()


@pytest.mark.slow
def test_the_server_restarts_and_its_new_connections_are_watched(tmp_path: Path) -> None:
    port = free_port()
    target = ("--listen", f"127.0.0.1:{port}")
    with Redis.server(port, tmp_path):
        attach = Attach(*target, *LIMITS, "--close")
        first = Redis(port)
        first.exchange()
        first.wait_for_the_end()
    with attach:
        until(lambda: any("not served" in event["text"] for event in attach.of("say")), "the end is noticed")
        with Redis.server(port, tmp_path):
            second = Redis(port)
            second.exchange()
            second.wait_for_the_end()
            until(lambda: len(attach.of("closed")) == 2, "both are closed")
            assert attach.stop()[0] == 0
    first.close()
    second.close()


@pytest.mark.slow
def test_a_watched_process_that_dies_ends_the_watch(tmp_path: Path) -> None:
    port = free_port()
    with Redis.server(port, tmp_path) as server:
        attach = Attach("--pid", str(server.pid), *LIMITS, "--close")
        server.kill()
        server.wait()
        assert attach.process.wait(PATIENCE) == 0
        attach.stop()
        assert f"process {server.pid} has ended" in attach.of("say")[0]["text"]


@pytest.mark.slow
def test_a_slow_header_attack_ends(tmp_path: Path) -> None:
    port = free_port()
    with Nginx.server(port, tmp_path):
        limits = ("--min-in-rate", "240", "--min-in-grace", "1s", "--first-byte", "5s", "--tick", "100ms")
        with Attach("--listen", f"127.0.0.1:{port}", *limits, "--close") as attach:
            attack = subprocess.run(
                [tool("slowhttptest"), "-H", "-c", "40", "-r", "40", "-i", "1", "-x", "8", "-l", "60", "-p", "5"]
                + ["-u", f"http://127.0.0.1:{port}/"],
                capture_output=True, text=True, timeout=90, cwd=tmp_path, check=False,
            )  # fmt: skip
            assert re.search(r"Exit status:.*No open connections left", attack.stdout), attack.stdout[-600:]
            until(lambda: len(attach.of("closed")) >= 40, "all of the attack is closed")
            assert {event["reason"] for event in attach.of("closed")} == {"min_in_rate"}
            client = Nginx(port)
            client.exchange()
            client.close()
