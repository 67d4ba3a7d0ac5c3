"""The output of attach: however slowly it is read, the watch goes on and counts what is
dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from reaper.attach.output import Output
from tests.helpers.attach_servers import PATIENCE, ROOT, Echo, until

F_SETPIPE_SZ = 1031


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, F_SETPIPE_SZ, 4096)
    yield ours, theirs
    for descriptor in (ours, theirs):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def read_all(descriptor: int) -> list[str]:
    with open(descriptor, closefd=False) as file:
        return file.read().splitlines()


def test_lines_come_out_whole_and_in_order_although_they_are_taken_in_pieces(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    output = Output(pipe[1])
    for number in range(10):
        output.line(f"line {number}, and more")
    assert (output.close(), output.dropped) == (0, 0)
    os.close(pipe[1])
    assert read_all(pipe[0]) == [f"line {number}, and more" for number in range(10)]


def test_a_reader_that_stands_still_gets_what_was_kept_and_a_count_of_the_rest(
    pipe: tuple[int, int],
) -> None:
    output = Output(pipe[1], most=500)
    for number in range(3000):
        output.line(f"line {number:06d}")
    assert 0 < output.dropped < 3000
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(read_all(pipe[0])))
    reader.start()
    until(lambda: not output.waits, "the reader has caught up")
    output.line("again")
    assert output.close() == 0
    os.close(pipe[1])
    reader.join()
    assert found[-1] == "again"
    kept = [line for line in found if line.startswith("line ")]
    assert kept == sorted(set(kept))
    assert len(kept) == 3000 - output.dropped
    notices = [
        line
        for line in found
        if line.endswith("lines dropped: this output is not read fast enough")
    ]
    assert sum(int(line.split()[0]) for line in notices) == output.dropped
    assert len(kept) + len(notices) + 1 == len(found)


def test_an_output_whose_reader_has_gone_is_a_broken_pipe(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    os.close(pipe[0])
    output.line("first")
    until(lambda: not output._thread.is_alive(), "the write has failed")
    with pytest.raises(BrokenPipeError):
        output.line("second")
    assert output.close() == 0


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["is read at last", "is never read"])
def test_a_full_pipe_stops_no_close(pipe: tuple[int, int], ends: str, port: int) -> None:
    ours, theirs = pipe
    command = [
        sys.executable,
        "-m",
        "reaper",
        "attach",
        "--listen",
        f"127.0.0.1:{port}",
        "--json",
        "--close",
    ]
    with (
        Echo.server(port),
        subprocess.Popen(
            [*command, "--idle", "1s", "--tick", "100ms"],
            cwd=ROOT,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
        ) as attach,
    ):
        os.close(theirs)
        clients = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(100)]
        for client in clients:  # 200 events of some 150 bytes: the pipe holds 4096
            assert client.recv(1) == b""
            client.close()
        attach.send_signal(signal.SIGTERM)
        if ends == "is never read":
            assert attach.wait(PATIENCE) == 0
            assert "lines were not read" in attach.communicate()[1]
        else:
            events = [json.loads(line) for line in read_all(ours)]
            assert [event["event"] for event in events].count("closed") == 100
            assert (events[-1]["event"], events[-1]["lines_dropped"]) == ("end", 0)
            assert attach.communicate()[1] == ""
            assert attach.returncode == 0
