"""Claims about `python -m server_example http` as a process: signals, exit status, and what it says."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.interop.tools import ROOT, SERVER

PATIENCE = 20.0

pytestmark = pytest.mark.slow


class Process:
    """The server with one worker, started with a file that a test may rewrite."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        path.write_text(text)
        self.running = subprocess.Popen(
            [*SERVER, "--config", str(path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.running.stdout is not None
        for line in self.running.stdout:
            if line.startswith("listening on "):
                host, port = line.split()[2].rsplit(":", 1)
                self.address = (host, int(port))
                return
        raise RuntimeError(self.end())

    def end(self) -> str:
        """SIGTERM; what it said on stderr."""
        self.running.terminate()
        return self.running.communicate(timeout=PATIENCE)[1]

    def says(self, wanted: str) -> None:
        """Wait for a line on stderr that has *wanted* in it."""
        assert self.running.stderr is not None
        for line in self.running.stderr:
            if wanted in line:
                return
        raise AssertionError(f"never said {wanted!r}")


def closed(client: http.client.HTTPConnection) -> bool:
    """Whether the server closes an idle connection of its own accord, in good time."""
    assert client.sock is not None
    client.sock.settimeout(PATIENCE)
    return client.sock.recv(1) == b""


def asked(process: Process, target: str = "/") -> http.client.HTTPConnection:
    client = http.client.HTTPConnection(*process.address, timeout=PATIENCE)
    client.request("GET", target)
    assert client.getresponse().read()
    return client


def test_sighup_puts_a_new_file_in_force_on_open_connections_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    process = Process(tmp_path / "reaper.toml", '[timeouts]\nkeep_alive = "1h"\n[reaper]\ntick = "50ms"\n')
    try:
        client = asked(process)
        process.path.write_text('[timeouts]\nkeep_alive = "soon"\n')
        process.running.send_signal(signal.SIGHUP)
        process.says("nothing was changed")
        process.path.write_text('[timeouts]\nkeep_alive = "100ms"\n[reaper]\ntick = "50ms"\n')
        process.running.send_signal(signal.SIGHUP)
        process.says("timeouts.keep_alive: 1h -> 100ms")
        assert closed(client)
        client.close()
    finally:
        process.end()
    assert process.running.returncode == 0


def test_sigterm_finishes_what_is_in_flight_and_ends_well(tmp_path: Path) -> None:
    process = Process(tmp_path / "reaper.toml", '[timeouts]\ndrain_idle = "100ms"\n[reaper]\ntick = "50ms"\n')
    idle = asked(process)
    busy = http.client.HTTPConnection(*process.address, timeout=PATIENCE)
    busy.request("GET", "/sleep?s=1s")
    time.sleep(0.2)  # until the request is in flight
    process.running.terminate()
    answer = busy.getresponse()
    assert (answer.status, answer.getheader("connection")) == (200, "close")
    assert answer.read() == b"slept 1 s\n"
    busy.close()
    assert closed(idle)
    idle.close()
    assert process.running.wait(PATIENCE) == 0
    process.end()


def test_a_certificate_that_cannot_be_used_is_one_line_and_status_2(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing.pem")
    done = subprocess.run(
        [*SERVER, "--tls-cert", nothing, "--tls-key", nothing],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert nothing in line


def test_importing_the_server_needs_no_foreign_server() -> None:
    code = "import sys, server_example.http; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"hypercorn", "uvicorn", "aiohttp", "pyspark", "prometheus_client"} & set(found.split())
