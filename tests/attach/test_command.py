"""The attach command around a server of our own user: what it takes, what it refuses,
what it never touches.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from scripts.tools import metrics
from tests.helpers.attach_servers import (
    ROOT,
    Attach,
    Echo,
    Redis,
    accepts,
    at,
    free_port,
    refused,
    running,
    tool,
    until,
)

LIMITS = ("--idle", "1s", "--tick", "100ms")

LARGE_BLOCKS = """
import psutil
from reaper.__main__ import main
assert main(["attach", "--listen", "127.0.0.1:1"]) == 2  # nothing listens there
me = psutil.Process()
earlier = bytearray(b"x") * (16 << 20)
del earlier
large = bytearray(b"x") * (8 << 20)
above = bytearray(b"x") * 100_000
before = me.memory_info().rss
del large
print(before - me.memory_info().rss)
"""
"""Prints how many bytes less a process of attach has once it has freed eight MiB, after
sixteen before.
"""


def test_attach_gives_large_blocks_back_whatever_it_freed_before() -> None:
    command = [sys.executable, "-c", LARGE_BLOCKS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 7 << 20


def descriptors(pid: int) -> list[str]:
    """What *pid* has open, by what it is."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_on_a_signal_and_leaves_nothing_behind(number: int, port: int) -> None:
    with Echo.server(port) as server:
        client = Echo.answered(port)
        # Whoever tried whether it listens may have been accepted with this one, and is
        # closed two passes of the loop later; each exchange takes two.
        for _ in range(2):
            client.exchange()
        before = descriptors(server.pid)
        attach = Attach(*at(port), "--idle", "30s", "--close")
        until(lambda: attach.of("found"), "the client is found")
        assert attach.stop(number) == (0, "")
        assert attach.events[-1]["event"] == "end"
        assert descriptors(server.pid) == before
        client.exchange()


@pytest.mark.slow
def test_every_workers_connections_are_closed_a_strangers_on_the_port_never(
    port: int,
) -> None:
    """Three workers share a listening socket; another process listens on the same
    address by SO_REUSEPORT.
    """
    with Echo.server(port, workers=3) as ours, Echo.server(port) as stranger:
        process = psutil.Process(stranger.pid)
        until(
            lambda: any(each.status == psutil.CONN_LISTEN for each in process.net_connections()),
            "the stranger listens",  # it has a socket before that
        )
        clients = [Echo(port) for _ in range(40)]
        for client in clients:
            client.exchange()
        theirs = len(process.net_connections("tcp"))
        assert theirs > 1, "the kernel gave the stranger none of 40 connections"
        with Attach("--pid", str(ours.pid), *LIMITS, "--close") as attach:
            until(lambda: len(attach.of("closed")) == 41 - theirs, "all of ours are closed")
            time.sleep(1.5)
            assert len(attach.of("closed")) == 41 - theirs
            closed = set(attach.clients("closed"))
            for client in clients:
                if client.name not in closed:
                    client.exchange()


@pytest.mark.slow
def test_listening_sockets_outgoing_connections_and_unix_sockets_are_never_touched() -> None:
    port, other = free_port(), free_port()
    script = (
        "import socket, time\n"
        f"server = socket.create_server(('127.0.0.1', {port}))\n"
        f"out = socket.create_connection(('127.0.0.1', {other}))\n"
        "one, two = socket.socketpair()\n"
        "accepted, _ = server.accept()\n"
        "accepted, _ = server.accept()\n"
        "assert accepted.recv(1) == b'', 'the accepted connection was not ended'\n"
        "out.sendall(b'x'); assert out.recv(1) == b'x'\n"
        "one.send(b'y'); assert two.recv(1) == b'y'\n"
        "server.settimeout(20)\n"
        "server.accept()\n"
    )
    with (
        Echo.server(other),
        subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) as server,
    ):
        until(lambda: accepts(port), "the server listens")
        client = Echo(port)
        with Attach("--pid", str(server.pid), *LIMITS, "--close") as attach:
            until(lambda: attach.of("closed"), "the client is closed")
            assert attach.clients("closed") == [client.name]
            time.sleep(1.5)
            assert len(attach.of("closed")) == 1
            assert accepts(port)
        assert server.stderr is not None
        said = server.stderr.read()
        assert server.wait(20) == 0, said


BUSY_THEN_SILENT = """
import socket, sys, threading, time
from contextlib import suppress

def from_port(address):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)
    return sock

def send(sock, until):
    while time.monotonic() < until:
        sock.sendall(bytes(1 << 20))

def take(sock):
    with suppress(OSError):
        while sock.recv(1 << 16):
            pass

listener = from_port(("127.0.0.1", 0))
listener.listen()
pairs = []
for _ in range(12):
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        out = from_port(listener.getsockname())
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        out.connect(elsewhere.getsockname())
        pairs.append((out, elsewhere.accept()[0]))
print(listener.getsockname()[1], flush=True)
sys.stdin.readline()
until = time.monotonic() + 2.0
accepted = []
threading.Thread(target=lambda: accepted.append(listener.accept()), daemon=True).start()
busy = [threading.Thread(target=send, args=(out, until)) for out, _ in pairs]
taking = [threading.Thread(target=take, args=(far,), daemon=True) for _, far in pairs]
for thread in [*busy, *taking]:
    thread.start()
for thread in busy:
    thread.join()
for out, far in pairs:
    far.sendall(b"y")
sys.stdin.readline()
lost = 0
for out, _ in pairs:
    out.settimeout(0.2)
    try:
        out.recv(1)
        lost += out.recv(1) == b""
    except TimeoutError:
        pass
    except OSError:
        lost += 1
print(lost, flush=True)
"""


@pytest.mark.slow
def test_outgoing_connections_from_the_listening_port_survive_a_busy_time() -> None:
    """They are busy at several discoveries, and then silent for three limits."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_THEN_SILENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        server.stdin.write("begin\n")
        server.stdin.flush()
        flags = ("--pid", str(server.pid), "--idle", "500ms", "--tick", "100ms", "--close")
        with Attach(*flags) as attach:
            client = Echo(port)
            until(lambda: attach.of("closed"), "the client is closed")
            time.sleep(4.0)  # two seconds busy, and four limits silent
            assert attach.clients("closed") == [client.name]
        assert server.communicate("say\n")[0] == "0\n"


@pytest.mark.slow
def test_networks_say_whose_clients_are_meant(port: int) -> None:
    with Echo.server(port):
        _, far = Echo(port), Echo(port, "127.9.9.9")
        mapped = ("--except", "::ffff:127.0.0.0/120")  # as a socket of IPv6 shows them
        for flags in (("--only", "127.9.0.0/16"), ("--except", "127.0.0.0/24"), mapped):
            with Attach(*at(port), *LIMITS, *flags) as attach:
                until(lambda: attach.of("due"), "the far client is reported")
                time.sleep(0.5)
                assert attach.clients("due") == [far.name]


@pytest.mark.slow
def test_metrics_and_a_configuration_file(tmp_path: Path, port: int) -> None:
    pytest.importorskip("prometheus_client")
    exported = "127.0.0.1", free_port()
    settings = (
        '[reaper]\nlog_format = "json"\n[attach]\nidle = "1s"\ntick = "100ms"\njitter = 0.2\n'
    )
    (tmp_path / "reaper.toml").write_text(settings)
    with Echo.server(port):
        Echo.answered(port)
        flags = (
            "--config",
            str(tmp_path / "reaper.toml"),
            "--metrics",
            "{}:{}".format(*exported),
            "--close",
        )
        with Attach(*at(port), *flags, json=()) as attach:
            until(lambda: attach.of("closed"), "the client is closed")
            found = metrics(exported)
            assert found['reaper_attach_closed_total{reason="idle"}'] == 1
            assert found["reaper_attach_connections"] == 0
            assert attach.stop() == (0, "")


@pytest.mark.slow
def test_a_terminal_shows_a_live_table(port: int) -> None:
    pytest.importorskip("rich")
    with Echo.server(port):
        client = Echo.answered(port)
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "reaper", "attach", *at(port), *LIMITS]
        wide = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
        with subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env=wide) as watch:
            said = b""
            while b"would close" not in said or b"client's" not in said:
                assert select.select([ours], [], [], 30)[0], said
                said += os.read(ours, 65536)
            watch.send_signal(signal.SIGINT)
            os.close(theirs)
            with suppress(OSError):  # the other end of the terminal is closed
                while os.read(ours, 65536):
                    pass
            assert watch.wait() == 0
        os.close(ours)
        assert client.name.encode() in said
        client.exchange()


@pytest.mark.slow
def test_a_server_that_ignores_the_end_of_file_is_ended_all_the_same_for_its_client(
    port: int,
) -> None:
    with Echo.server(port, "deaf"), Attach(*at(port), *LIMITS, "--close"):
        client = Echo.answered(port)
        assert client.wait_for_the_end() >= 1.0


@pytest.mark.slow
def test_without_rights_it_shows_and_refuses_to_close_in_one_line(
    tmp_path: Path, port: int
) -> None:
    """The kernel says to each user when a connection last spoke, but only a user's own
    processes may be traced.
    """
    if os.getuid():
        pytest.skip("only root can start a server as another user")
    other = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    bound = ("--bind", "127.0.0.1", "--port", str(port))
    command = (tool("redis-server"), *bound, "--save", "", "--dir", "/tmp")
    no_rights = (tool("setpriv"), "--bounding-set=-all", "--inh-caps=-all")
    flags = (*at(port), *LIMITS)
    with running(*command, port=port, **other):
        client = Redis.answered(port)
        assert "needs CAP_SYS_PTRACE" in refused(*flags, "--close", prefix=no_rights)
        assert "needs CAP_NET_ADMIN" in refused(
            *flags, "--close", "--how", "destroy", prefix=no_rights
        )
        with Attach(*flags, prefix=no_rights) as attach:
            until(lambda: attach.of("due") + attach.of("unsure"), "the client is reported")
            assert attach.clients("due") + attach.clients("unsure") == [client.name]
        client.exchange()


@pytest.mark.slow
def test_what_cannot_be_is_refused_in_one_line_that_says_what_would_be_right(
    tmp_path: Path, port: int
) -> None:
    with Echo.server(port) as server, subprocess.Popen(["sleep", "60"]) as bystander:
        here = at(port)
        assert "no limit is on: give --idle 5m" in refused(*here)
        assert "no limit is on" in refused("--pid", "4194304")  # before the target is looked for
        assert "--gap says what --learn writes" in refused(*here, "--idle", "1m", "--gap", "3s")
        assert "longer than the shortest limit" in refused(*here, "--idle", "1s", "--tick", "2s")
        assert "'soon'" in refused(*here, "--idle", "soon")
        assert "nothing listens there" in refused(
            "--listen", f"127.0.0.1:{free_port()}", "--idle", "1m"
        )
        assert "not HOST:PORT" in refused("--listen", "6379", "--idle", "1m")
        assert "there is no such process" in refused("--pid", "4194304", "--idle", "1m")
        assert "listens on a TCP port" in refused("--pid", str(bystander.pid), "--idle", "1m")
        assert "expected a network" in refused(*here, "--idle", "1m", "--only", "127.0.0.1/4")
        assert "cannot be read" in refused(*here, "--config", str(tmp_path / "missing.toml"))
        assert "leave --close" in refused(*here, "--learn", str(tmp_path), "--close")
        assert "at least 100ms" in refused(*here, "--learn", str(tmp_path), "--gap", "1ms")
        assert "--learn" in refused(*here, "--learn", "/proc/none")
        assert "one of the arguments --pid --listen" in refused("--idle", "1m")
        assert "not allowed with" in refused(*here, "--pid", str(server.pid), "--idle", "1m")
        bystander.kill()
        (tmp_path / "file").write_text("")
        assert "--journal" in refused(*here, "--idle", "1m", "--journal", str(tmp_path / "file"))


@pytest.mark.slow
def test_the_silences_of_a_foreign_servers_client_are_learned_until_a_signal(
    tmp_path: Path, port: int
) -> None:
    command = [sys.executable, "-m", "reaper", "attach", *at(port), "--gap", "400ms"]
    with (
        Echo.server(port),
        subprocess.Popen([*command, "--learn", str(tmp_path)], cwd=ROOT, stdout=-1) as learner,
        ExitStack() as stack,
    ):
        stack.callback(learner.kill)  # a claim that fails would wait for it
        assert learner.stdout is not None
        assert b"learning" in learner.stdout.readline()
        client = Echo(port)
        time.sleep(0.5)
        began, said = client.spoke, []
        # A sample that comes late shortens a silence by half of how late it is, and one
        # that never comes, before the end, loses it.
        for _ in range(3):
            client.exchange()
            said.append(client.sent)
            time.sleep(2.5)
        client.sock.close()
        time.sleep(2.5)
        # On a busy machine this, too, may become a long silence.
        first = said[0] - began > 0.85
        learner.send_signal(signal.SIGINT)
        assert b"% of a core" in learner.communicate()[0]
        assert learner.returncode == 0
    rows = [row for file in tmp_path.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    silences = [row["idle_ns"] / 1e9 for row in rows if row["kind"] in ("activity", "close_peer")]
    assert 3 <= len([silence for silence in silences if silence >= 0.9]) <= 3 + first
    assert {row["timeout_ms"] for row in rows if row["kind"] == "activity"} == {None}
