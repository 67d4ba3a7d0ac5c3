"""Readers of quiet streams: which is whole, which was cut, and how ends lie in a
window.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from loadgen.playing.client import Seen as Played
from scripts.campaign import trouble
from scripts.campaign.trouble import BINS, OFF, histogram, off
from scripts.serving import free_port, serving
from scripts.stops import trial as stops
from scripts.stops.trial import kept_waiting
from scripts.streams import __main__ as command
from scripts.streams.leaving import WAYS, Left
from scripts.streams.proxies import PROXIES, command_of
from scripts.streams.readers import began, read, whole
from scripts.streams.words import FIRST, LAST, PING
from scripts.tools import Missing
from tests.helpers.server_process import installed

LAST_CHUNK = b"0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = HEAD + chunk(FIRST) + chunk(PING) + chunk(PING) + chunk(LAST) + LAST_CHUNK
ANSWERS = {
    "whole": WHOLE,
    "cut before its last event": HEAD + chunk(FIRST) + chunk(PING),
    "cut before its last chunk": WHOLE.removesuffix(LAST_CHUNK),
    "refused": b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
}


def heard(*answers: bytes) -> list[Played]:
    """What readers have heard of a server that gives each the next of *answers*, and
    closes.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        found = asyncio.run(read(listening.getsockname(), len(answers), "1"))
        thread.join()
    return found


def test_a_stream_is_whole_if_its_last_event_and_its_last_chunk_have_come() -> None:
    seen = heard(*ANSWERS.values())
    assert sorted((began(each), whole(each), each.data.count(PING)) for each in seen) == [
        (False, False, 0),
        (True, False, 1),
        (True, False, 2),
        (True, True, 2),
    ]
    assert all(each.ended is not None for each in seen if not whole(each))


def test_ends_are_counted_by_the_part_of_the_window_that_they_lie_in() -> None:
    assert BINS == 5
    assert histogram([100 + each / 10 for each in range(50)], 5.0) == [10] * 5
    assert histogram([100.0] * 49 + [109.0], 5.0) == [49, 0, 0, 0, 1]


def test_ends_are_off_by_how_much_one_is_later_than_another_beside_its_turn() -> None:
    even = [100 + each / 200 for each in range(1000)]
    late = [max(each, 100.3) for each in even]  # the loop stood still as they began
    assert (off([], 5.0), off(even, 5.0) < 0.01) == (0.0, True)
    assert off([each + 7 for each in even], 5.0) < 0.01
    assert off(late, 5.0) == pytest.approx(0.3, abs=0.01)
    assert (histogram(late, 5.0)[0], histogram(late, 5.0)[-1]) == (260, 140)
    for wrong in ([100.0] * 1000, [100 + each / 400 for each in range(1000)]):
        assert off(wrong, 5.0) > 5 * OFF - 0.1


@pytest.mark.parametrize(
    ("late", "kept", "verdict"),
    [
        (0.0, 4.0, "even"),  # whatever the machine did
        (2.0, 0.0, "not even"),
        (2.0, 1.6, "not judged"),
    ],
)
def test_ends_that_are_off_are_not_judged_if_the_machine_kept_the_server_waiting(
    late: float, kept: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def spread(folder: Path, name: str, streams: int, window: float) -> stops.Seen:
        tried.append(name)
        ends = [max(number / streams * window, late) for number in range(streams)]
        whole = stops.LAST_CHUNK
        return stops.Seen(
            streams=[stops.Heard(stops.STREAMS, Played(data=whole, ended=each)) for each in ends],
            kept=kept,
        )

    monkeypatch.setattr(trouble, "_spread", spread)
    given = trouble.Round(Any, [], tmp_path, time.monotonic() + 1000, trouble.Outcome())  # type: ignore[arg-type]
    if verdict == "not judged":
        with pytest.raises(Missing):
            asyncio.run(trouble.spread(given, 100, 5.0))
        assert len(tried) == trouble.TRIES * len(stops.COMMANDS)
    else:
        asyncio.run(trouble.spread(given, 100, 5.0))
        assert (sorted(tried), len(given.outcome.failures)) == (
            sorted(stops.COMMANDS),
            0 if verdict == "even" else len(stops.COMMANDS),
        )


def test_what_a_proxy_waited_for_is_counted_by_the_stretch() -> None:
    server: Any = object()
    kept = trouble.Kept([server], 2.0)
    for second, waited in enumerate([0.0, 0.5, 1.0, 1.5, 3.5, 3.6, 3.7]):
        kept.note(server, 100.0 + second, waited)
    assert (kept.most[server], kept.enough) == (2.5, 1.0)


SPIN = "import time; until = time.monotonic() + 1\nwhile time.monotonic() < until: pass"


def test_a_process_that_another_one_keeps_from_running_is_seen() -> None:
    one = {min(os.sched_getaffinity(0))}
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2)]
    for each in spinning:
        os.sched_setaffinity(each.pid, one)
    waited = 0.0
    while spinning[0].poll() is None:
        waited = max(waited, kept_waiting(spinning[0].pid))
        time.sleep(0.02)
    spinning[1].wait()
    assert waited > 0.1  # two for one processor: about half a second
    assert kept_waiting(spinning[0].pid) == 0.0  # it has ended


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (Left(None, None), "open"),
        (Left(0.1, None), "0.1 s, handler goes on"),
        (Left(0.1, 2.1), "0.1 s, handler 2.1 s"),
        (Left(16.3, 16.2), "16.3 s"),
        (Left(None, 16.2), "open, handler 16.2 s"),
    ],
)
def test_a_cell_says_both_ends_where_they_differ(left: Left, words: str) -> None:
    assert command.said(left) == words


def test_the_table_stands_between_the_marks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "streams.md"
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    monkeypatch.setattr(command, "PAGE", page)
    cells = {(proxy, way): Left(1.0, 1.0) for proxy in PROXIES for way in WAYS}
    about = {"date": "today", "cpus": 2, "python": "3.11", "commit": "0123456789abcdef"}
    command.document(about, {"stock": cells}, {"nginx": 60.04, "HAProxy": None})
    said = page.read_text()
    assert "| HAProxy | vanishes | 1.0 s |" in said
    assert "after: nginx 60.0 s, HAProxy not within 120.0 s." in said
    assert (said[:7], "old" in said, said[-6:]) == ("before\n", False, "after\n")


@pytest.mark.slow
@pytest.mark.parametrize("read", ["3s", ""])
@pytest.mark.parametrize("proxy", PROXIES)
def test_each_proxy_starts_with_what_is_written_for_it(
    proxy: str, read: str, tmp_path: Path
) -> None:
    installed(proxy.lower())
    port = free_port()
    words = command_of(proxy, tmp_path, port, free_port(), read, most=10)
    with (
        serving(words, tmp_path / "log", port=port) as server,
        socket.create_connection(server.address, timeout=20) as client,
    ):
        client.sendall(b"GET /quiet/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(12) in (b"HTTP/1.1 502", b"HTTP/1.1 503")
