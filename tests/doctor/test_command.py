"""The command at real servers that are healthy, and where it cannot look."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from reaper.__main__ import main
from tests.conftest import Ran
from tests.helpers.attach_servers import PATIENCE, Client, Echo, at, running, until


def examine(call: Ran, *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit status of an examination, and what it said."""
    status, out, err = call(main, "doctor", "--for", "1s", "--json", *flags)
    assert err == ""
    return status, json.loads(out)


HTTP = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1")
UVICORN = """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_level="critical")
"""
HEALTHY: dict[str, Callable[[int, Path], Any]] = {
    "echo, three workers": lambda port, folder: Echo.server(port, workers=3),
    "http.server": lambda port, folder: running(*HTTP, str(port), port=port, cwd=folder),
    "uvicorn": lambda port, folder: running(sys.executable, "-c", UVICORN, str(port), port=port),
}

LAST = {"echo, three workers": b"\r\n\r\n", "http.server": b"</html>", "uvicorn": b"0\r\n\r\n"}
"""What each answer ends with."""


@pytest.mark.slow
@pytest.mark.parametrize("which", HEALTHY)
def test_a_healthy_server_in_use_has_no_finding(
    which: str, port: int, tmp_path: Path, call: Ran
) -> None:
    with HEALTHY[which](port, tmp_path) as server:
        clients = [Client(port) for _ in range(20)]
        for client in clients[:10]:
            client.question = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            client.answer_ends = LAST[which]
            client.exchange()  # an answer that comes while it looks is what a stream is, too
        for flags in (at(port), ("--pid", str(server.pid))):
            status, said = examine(call, *flags)
            assert (status, said["findings"], said["streams"]["count"]) == (0, [], 0)


@pytest.mark.slow
def test_a_deserted_server_is_said_to_be(port: int, tmp_path: Path, call: Ran) -> None:
    with HEALTHY["http.server"](port, tmp_path) as server:
        process = psutil.Process(server.pid)

        def alone() -> bool:
            """Whether it has closed each connection that its client has closed."""
            return not any(each.raddr for each in process.net_connections("tcp"))

        until(alone, "the server is alone")
        assert examine(call, *at(port))[1]["deserted"] >= 1.0
        client = Client(port)
        assert examine(call, *at(port))[1]["deserted"] is None
        client.sock.close()
        until(alone, "the server is alone again")
        _, said, _ = call(main, "doctor", "--for", "1s", *at(port))
    assert "clients   nobody has been connected since " in said
    assert "ago, or longer" in said


STREAM = """
import asyncio, sys
async def stream(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    while True:
        writer.write(b":\\n\\n")
        await asyncio.sleep(0.1)
async def main():
    async with await asyncio.start_server(stream, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


@pytest.mark.slow
def test_streams_are_counted_and_are_no_finding(port: int, call: Ran) -> None:
    with running(sys.executable, "-c", STREAM, str(port), port=port) as server:
        clients = [Client(port) for _ in range(5)]
        for client in clients[:3]:
            client.sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: all(client.sock.recv(1) for client in clients[:3]), "the streams have begun")
        status, out, _ = call(main, "doctor", "--for", "1s", "--pid", str(server.pid))
        assert (status, "streams   3 that wrote" in out) == (0, True)


@pytest.mark.slow
def test_a_command_is_started_examined_and_ended(port: int, call: Ran) -> None:
    command = ("--", *HTTP, str(port))
    status, out, _ = call(main, "doctor", "--for", "1s", *command)
    assert (status, "nothing is wrong" in out) == (0, True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("exit 3", "with status 3"),
        ("sleep 0.5; exit 4", "with status 4"),
        ("sleep 0.5; kill -9 $$", "by SIGKILL"),
    ],
)
def test_a_command_that_ends_before_it_listens_is_said_to_have_ended(
    command: str, how: str, call: Ran
) -> None:
    status, out, err = call(main, "doctor", "--", "sh", "-c", command)
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert f"sh has ended {how}; nothing is left to look at" in line


@pytest.mark.slow
@pytest.mark.parametrize("by", ["address", "pid"])
def test_a_server_that_ends_while_it_is_looked_at_is_not_called_healthy(
    by: str, port: int, tmp_path: Path, call: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reaper.doctor.looking import Watch

    glance = Watch.glance
    with running(*HTTP, str(port), port=port, cwd=tmp_path) as server:

        def dies(watch: Watch) -> None:
            glance(watch)
            server.kill()
            server.wait()

        monkeypatch.setattr(Watch, "glance", dies)
        target = at(port) if by == "address" else ("--pid", str(server.pid))
        status, out, err = call(main, "doctor", "--for", "1s", *target)
    assert (status, out) == (2, "")
    assert "has ended" in err


@pytest.mark.slow
def test_a_ctrl_c_ends_the_looking_and_the_command_with_its_children(port: int) -> None:
    server = shlex.join([*HTTP, str(port)])
    doctor = (sys.executable, "-m", "reaper", "doctor", "--for", "10m", "--", "sh", "-c")
    terminal, stderr = os.openpty()  # there it says how far it is
    with subprocess.Popen(
        [*doctor, f"{server} & echo child $! end; wait"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        os.close(stderr)
        said = ""
        while "connections" not in said:  # it looks
            said += os.read(terminal, 4096).decode()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
    os.close(terminal)
    assert (process.returncode, "nothing is wrong" in out) == (0, True)
    child = Path("/proc", said.split()[said.split().index("child") + 1])
    until(lambda: not child.exists(), "the child of the command has ended")


@contextmanager
def without_rights() -> Iterator[None]:
    """Be somebody who owns nothing; what is imported meanwhile must be readable for
    all.
    """
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have no rights on purpose")
def test_a_process_of_somebody_else_is_not_looked_at_and_the_status_is_2(call: Ran) -> None:
    call(main, "doctor", "--listen", "127.0.0.1:1")  # imports what it needs
    with without_rights():
        status, out, err = call(main, "doctor", "--for", "1s", "--pid", "1")
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert "run as its user" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "say what to look at"),
        (("--pid", "1", "--listen", ":1"), "--pid and --listen were given: say what to look at"),
        (("--pid", "4194304"), "no such process"),
        (("--listen", "127.0.0.1:1"), "nothing listens there"),
        (("--config", "/none.toml", "--listen", ":1"), "cannot be read"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line_and_status_2(
    flags: tuple[str, ...], said: str, call: Ran
) -> None:
    status, out, err = call(main, "doctor", *flags)
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert said in line
