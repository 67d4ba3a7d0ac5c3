"""The programs of README and of the guide run over real sockets, and what these pages name exists."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {path: (ROOT / path).read_text() for path in ("README.md", "docs/guide.md")}
SNIPPETS = [(page, text) for page in PAGES for text in re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)]
SERVERS = [(page, text) for page, text in SNIPPETS if "8080" in text]
SOON = 20.0


class Server:
    """A program of the documentation, with a timeout of one second, on an address where nothing else listens."""

    def __init__(self, text: str, directory: Path) -> None:
        host = "127." + ".".join(
            str(byte) for byte in (directory.stat().st_ino % (1 << 22) + (1 << 23)).to_bytes(3, "big")
        )
        with socket.create_server((host, 0)) as free:
            self.address = free.getsockname()
        assert text.count('"127.0.0.1"') == 1
        text = text.replace('"127.0.0.1"', repr(host)).replace("8080", str(self.address[1]))
        text = text.replace("idle=30", "idle=1").replace("grace=5", "grace=1")
        (directory / "reaper.toml").write_text('[timeouts]\nidle = "1s"\n')
        (directory / "server.py").write_text(text)
        self.process = subprocess.Popen(
            [sys.executable, "server.py"],
            cwd=directory,
            env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def connect(self) -> socket.socket:
        deadline = time.monotonic() + SOON
        while True:
            try:
                return socket.create_connection(self.address, timeout=SOON)
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.process.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def stop(self, number: int) -> str:
        self.process.send_signal(number)
        return self.process.communicate(timeout=SOON)[0]


def resets(server: Server) -> None:
    client = server.connect()
    client.sendall(b"x")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


def says_goodbye(server: Server) -> None:
    """The server ends a connection whose client has sent its last byte."""
    with server.connect() as client:
        client.sendall(b"x")
        client.shutdown(socket.SHUT_WR)
        rest(client)


def falls_silent(server: Server) -> None:
    with server.connect() as client:
        client.sendall(b"x")
        rest(client)


def keeps_talking(server: Server) -> None:
    """For three timeouts; a server that cut it would end one of its reads, or its write."""
    with server.connect() as client:
        for _ in range(12):
            client.sendall(b"x")
            time.sleep(0.25)
        client.sendall(b"y")
        if b"still there" not in (heard := client.recv(100)):
            assert heard
        client.shutdown(socket.SHUT_WR)
        rest(client)


def rest(client: socket.socket) -> bytes:
    """Everything up to the end of file, which has to come."""
    heard = b""
    while data := client.recv(1000):
        heard += data
    return heard


def test_readme_and_guide_have_the_programs_that_they_promise() -> None:
    assert [page for page, _ in SERVERS] == ["README.md"] + ["docs/guide.md"] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [text for _, text in SERVERS], ids=[f"{page}-{n}" for n, (page, _) in enumerate(SERVERS)]
)
def test_a_program_of_the_documentation_survives_its_clients_and_closes_the_silent(tmp_path: Path, text: str) -> None:
    server = Server(text, tmp_path)
    failed: list[BaseException] = []

    def alone(client: Callable[[Server], None]) -> None:
        try:
            client(server)
        except BaseException as error:
            failed.append(error)

    try:
        resets(server)
        clients = [threading.Thread(target=alone, args=[act]) for act in (says_goodbye, falls_silent, keeps_talking)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert not failed, (failed, server.stop(signal.SIGKILL))
        used = cpu(server.process.pid)
        with server.connect() as idle:
            idle.sendall(b"x")
            assert idle.recv(100)
            time.sleep(0.5)
            assert cpu(server.process.pid) - used < 0.4  # a handler that spins on an end of file would take it all
            graceful = "drain" in text
            said = server.stop(signal.SIGTERM if graceful else signal.SIGINT)
            assert rest(idle) == b""
        assert "Traceback" not in said or not graceful, said
        assert server.process.returncode == 0 or not graceful
        assert ("closed: idle" in said) == ("print(" in text)
    finally:
        server.process.kill()
        server.process.communicate()


def cpu(pid: int) -> float:
    """CPU seconds that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_the_core_needs_no_framework_and_prints_what_the_comment_says(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = (text for _, text in SNIPPETS if "8080" not in text)
    exec(text, {})
    said = re.search(r"<!-- prints: (.*?) -->", PAGES["docs/guide.md"])
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


def test_readme_fits_two_screens() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 90


@pytest.mark.parametrize(
    "path", sorted(str(p.relative_to(ROOT)) for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
)
def test_links_point_to_what_exists(path: str) -> None:
    page = ROOT / path
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        found = (page.parent / target) if target else page
        assert found.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}, link


def test_commands_of_the_makefile_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"(?:`|^    )make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE):
            assert f"\n{target}:" in makefile, target
