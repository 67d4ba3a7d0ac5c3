"""`reaper top`: what is reckoned from a status, what is drawn on which terminal, what
is said when there is none.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest

from reaper.__main__ import main
from reaper.metrics import BOUNDS
from reaper.status import IDLE_BOUNDS, SCHEMA
from reaper.top import command
from reaper.top.picture import picture_of, quantile, rates
from reaper.top.sources import Http, Unreachable, _phase_of
from reaper.top.view import Frame, draw
from tests.conftest import Ran
from tests.helpers.server_process import PATIENCE, ROOT, server

COLUMNS = len(IDLE_BOUNDS) + 1


def worker(index: int = 0, at: float = 100.0, **others: Any) -> dict[str, Any]:
    """What a worker says of 700 connections."""
    lower, upper = [0] * (len(BOUNDS) + 1), [0] * (len(BOUNDS) + 1)
    lower[0], upper[BOUNDS.index(0.5)] = 10, 10
    return {
        "worker": index,
        "pid": 7,
        "at": at,
        "tick_s": 1.0,
        "wheel_size": 64,
        "connections": 700,
        "parked": 600,
        "idle_bounds_s": list(IDLE_BOUNDS),
        "phases": [
            {"phase": "keep_alive", "timeout_s": 95.0, "connections": 600,
             "idle": [100, 0, 0, 0, 500, 0, 0, 0]},
            {"phase": "in_flight", "timeout_s": 300.0, "connections": 100,
             "idle": [100, 0, 0, 0, 0, 0, 0, 0]},
        ],
        "due_next": [due(f"[2001:db8::{index}]:4000", idle_s=90.0 - index, due_in_s=5.0 + index)],
        "ring": [[5, 500], [60, 100]],
        "wheel": [[1, 100]],
        "leases": 700,
        "closed": {"keep_alive": 8, "headers": 2},
        "averted": 3,
        "moved": 9,
        "late": 0,
        "lateness": {"bounds_s": list(BOUNDS), "lower": lower, "upper": upper},
        "loop": {"lag_s": 0.001, "max_lag_s": 0.02, "stalls": 0, "stalled_s": 0.0, "cpu_s": 1.0},
        "pressure": None,
        "journal": None,
        **others,
    }  # fmt: skip


def due(name: str, **others: Any) -> dict[str, Any]:
    """A connection that is due next."""
    return {
        "name": name,
        "phase": "keep_alive",
        "idle_s": 9.0,
        "timeout_s": 95.0,
        "due_in_s": 5.0,
        **others,
    }


def status(*workers: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "server": "http", "workers": list(workers), "missing": [], **others}


def drawn(
    document: dict[str, Any],
    width: int = 80,
    height: int | None = 24,
    clock: str = "",
    **terminal: Any,
) -> list[str]:
    """The lines of the picture of *document*."""
    return [
        line.plain
        for line in draw(picture_of(document), {}, Frame(width, height, **terminal), clock)
    ]


def test_the_workers_are_added_up_and_what_is_due_first_stands_first() -> None:
    both = picture_of(status(worker(1), worker(0), missing=[2]))
    assert (both.connections, both.parked, both.closes, both.missing) == (1400, 1200, 20, (2,))
    assert [(row.phase, row.connections) for row in both.phases] == [
        ("keep_alive", 1200),
        ("in_flight", 200),
    ]
    assert both.phases[0].idle == (200, 0, 0, 0, 1000, 0, 0, 0)
    assert [row["due_in_s"] for row in both.due_next] == [5.0, 6.0]
    assert both.ring == {5: 1000, 60: 200}
    assert both.lateness is not None
    assert quantile(both.lateness[0], both.lateness[2], 0.99) == 0.5


def test_a_quantile_is_infinite_in_the_last_bucket_and_unknown_without_a_count() -> None:
    assert quantile(BOUNDS, [0] * len(BOUNDS) + [1], 0.5) == float("inf")
    assert quantile(BOUNDS, [0] * (len(BOUNDS) + 1), 0.5) is None


def test_of_several_loops_the_longest_lag_and_the_sum_of_stalls_and_cpu_are_taken() -> None:
    busy = worker(
        1, 101.0, loop={**worker()["loop"], "lag_s": 0.5, "stalls": 2}, journal={"dropped": 3}
    )
    both = picture_of(status(worker(0), busy))
    assert (both.at, both.dropped, picture_of(status(worker())).dropped) == (101.0, 3, None)
    assert both.loop is not None
    assert (
        both.loop["lag_s"],
        both.loop["max_lag_s"],
        both.loop["stalls"],
        both.loop["cpu_s"],
    ) == (0.5, 0.02, 2, 2.0)


def test_a_status_of_no_worker_is_no_picture() -> None:
    with pytest.raises(ValueError, match="no worker"):
        picture_of(status())


def test_a_status_beside_reaper_run_says_that_it_does_not_see_what_that_guards() -> None:
    source = SimpleNamespace(name="http://a/status", ask=status)
    with pytest.raises(
        Unreachable, match=r"^http://a/status: no guarded server .* not `reaper run`"
    ):
        command._picture(cast("Any", source))
    with pytest.raises(Unreachable, match="no worker has answered"):
        command._picture(cast("Any", SimpleNamespace(name="a", ask=lambda: status(missing=[7]))))


def test_what_a_peer_chose_reaches_no_terminal_unescaped() -> None:
    evil = "\x1b]0;x\x07\u202e\n\x9b31m"
    lines = drawn(
        status(worker(due_next=[due(evil, phase=evil)], closed={evil: 1}), server=evil), 300, None
    )
    assert all(line.isprintable() for line in lines)


def test_equal_rows_fold_into_one_and_connections_in_flight_have_no_timeout() -> None:
    coming = [due(f"127.0.0.1:{5000 + number}") for number in range(6)]
    busy = {"phase": "in_flight", "connections": 2, "idle": [2, *[0] * (COLUMNS - 1)]}
    phases = [{**busy, "timeout_s": 300.0}, {**busy, "timeout_s": 5.0}]
    lines = drawn(status(worker(due_next=coming, phases=phases)), 120, None)
    text = [line.split() for line in lines]
    assert ["127.0.0.1:5000", "and", "5", "more", "keep_alive", "9.0s", "95.0s", "5.0s"] in text
    assert [words[:3] for words in text if words and words[0] == "in_flight"] == [
        ["in_flight", "-", "4"]
    ]
    assert max(len(line) for line in lines if line.startswith(("in_flight", "127."))) >= 110


def test_rates_are_per_second_and_unknown_after_a_worker_was_replaced() -> None:
    before = picture_of(status(worker()))
    later = worker(at=102.0, closed={"keep_alive": 28}, loop={**worker()["loop"], "cpu_s": 1.1})
    found = rates(before, picture_of(status(later)))
    assert found["keep_alive"] == 10
    assert found["cpu"] == pytest.approx(0.05)
    assert rates(before, picture_of(status(worker(at=102.0, closed={})))) == {}
    assert rates(None, before) == {}
    assert rates(before, before) == {}
    # Its successor has its number, and closes more within the two seconds than it had
    # closed in all.
    assert rates(before, picture_of(status({**later, "pid": 8}))) == {}


@pytest.mark.parametrize("width", [10, 33, 60, 80, 120, 300])
@pytest.mark.parametrize("height", [1, 5, 24, 40])
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(width: int, height: int) -> None:
    many = [due(f"client {n}") for n in range(40)]
    rows = [
        {"phase": f"phase {n}", "timeout_s": None, "connections": 1, "idle": [1] * COLUMNS}
        for n in range(20)
    ]
    pressure = {"load": 0.9, "of": "memory", "scale": 0.4, "accepting": False, "evicted": 10**9}
    picture = picture_of(
        status(
            worker(due_next=many, phases=rows, pressure=pressure, closed={"idle": 10**12}, late=5),
            missing=[1, 2],
        )
    )
    for trouble in ("", "no answer for 12 s"):
        lines = draw(picture, {}, Frame(width, height), "12:00:00", trouble)
        assert len(lines) <= height
        assert max(line.cell_len for line in lines) <= width
        assert not trouble or lines[0].plain.startswith("no answer"[: width - 1])
        if min(width / 60, height / 24) >= 1:
            assert "no answer from worker 1, 2" in [line.plain for line in lines]


def test_the_picture_says_what_matters_at_80_columns() -> None:
    text = "\n".join(drawn(status(worker()), clock="12:00:00"))
    for said in (
        "http", "open 700", "parked 600", "12:00:00", "closed  10", "keep_alive 8", "headers 2",
        "averted 3", "99 % <= 500ms", "beyond one tick (1s): 0", "stalls 0", "<15m", ">15m",
        "due next", "[2001:db8::0]:4000", "wheel level 1: 100",
    ):  # fmt: skip
        assert said in text, said
    head = next(line for line in text.splitlines() if line.startswith("phase"))
    row = next(line for line in text.splitlines() if line.startswith("keep_alive"))
    assert row.split() == ["keep_alive", "95.0s", "600", "100", "0", "0", "0", "500", "0", "0", "0"]
    assert [head.index(">15m") + 4, head.index("<1m") + 3] == [len(row), row.index("500") + 3]


def test_at_60_columns_a_phase_has_no_silences_and_a_ring_column_several_ticks() -> None:
    narrow = drawn(status(worker(ring=[[0, 300], [1, 300], [40, 300]])), 60)
    assert [line.split() for line in narrow if line.startswith("keep_alive")] == [
        ["keep_alive", "95.0s", "600"]
    ]
    assert [line.split() for line in narrow if line.startswith("ring")] == [["ring", "█", "▄"]]
    assert "2s per column; 900 leases" in "\n".join(narrow)


def test_a_terminal_of_ascii_gets_ascii() -> None:
    assert "".join(drawn(status(worker()), 30, ascii=True)).isascii()


@pytest.mark.parametrize(
    ("pressures", "said"),
    [
        ([(0.5, True), (0.6, True), (0.1, True)], "accepting, worker 1 is fullest: 60 % of mem"),
        ([(0.5, False), (0.6, True)], "NOT accepting, worker 0 is fullest: 50 % of memory"),
        ([(0.5, True)], "accepting, 50 % of memory, timeouts at 100 %, 0 closed"),
    ],
)
def test_of_several_workers_one_that_accepts_nothing_is_shown_else_the_fullest(
    pressures: list[tuple[float, bool]], said: str
) -> None:
    usual = {"of": "memory", "scale": 1.0, "evicted": 0}
    judged = ({**usual, "load": load, "accepting": accepting} for load, accepting in pressures)
    lines = drawn(status(*(worker(number, pressure=each) for number, each in enumerate(judged))))
    assert [line.startswith(f"press   {said}") for line in lines if line.startswith("press")] == [
        True
    ]


def test_however_narrow_the_terminal_is_what_matters_is_still_in_the_picture() -> None:
    peers = ["127.0.0.1:50312", "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535"]
    coming = [due(peers[0], idle_s=90.0), due(peers[1], idle_s=89.0)]
    for width in range(40, 161):
        lines = drawn(status(worker(due_next=coming, late=5)), width, None)
        assert any(line.startswith("late    beyond one tick (1s): 5") for line in lines), width
        at = next(number for number, line in enumerate(lines) if line.startswith("due next"))
        assert {lines[at].index("due in") + 6, *map(len, lines[at + 1 :])} == {
            len(lines[at].rstrip())
        }, width
        assert lines[at + 1].split()[0] == peers[0]
        assert all(line.endswith(" 5.0s") for line in lines[at + 1 :]), width
        if width > 88:
            assert lines[at + 2].split() == [peers[1], "keep_alive", "89.0s", "95.0s", "5.0s"]


def test_while_there_is_no_answer_the_reason_stands_on_the_screen() -> None:
    class Gone:
        name = "a server"
        asked = 0

        def ask(self) -> Never:
            self.asked += 1
            raise Unreachable("connection refused") if self.asked == 1 else KeyboardInterrupt

    out = io.StringIO()
    console = pytest.importorskip("rich.console").Console(
        file=out, force_terminal=True, width=80, height=24
    )
    with pytest.raises(KeyboardInterrupt):
        command._live(console, cast(Any, Gone()), picture_of(status(worker())), 0.01)
    assert out.getvalue().count("connection refused") == 1


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        *(
            ("--connect", url, "expected a URL")
            for url in ("ftp://a", "http://", "http://a:port", "http://a:0")
        ),
        ("--connect", "http://[::1", "expected a URL"),
        # One that would keep the server busy.
        (
            "--interval",
            "99ms",
            "expected a duration such as 250ms, 30s, 5m, 1h or 7d, at least 100ms",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    flag: str, value: str, said: str, call: Ran
) -> None:
    status, out, err = call(
        main, "top", flag, value, *(["--connect", "127.0.0.1:1"] if flag == "--interval" else [])
    )
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert value in line
    assert said in line


def top(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reaper", "top", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environ},
    )


@pytest.mark.parametrize(
    ("status_line", "body", "said"),
    [
        (
            "200 OK",
            "<html>",
            "expected JSON; that says nothing of whether the server is guarded: a",
        ),
        ("200 OK", "[]", "schema None, expected 'reaper-status/1'; that says nothing of whether"),
        ("200 OK", '{"schema": "reaper-status/9"}', "schema 'reaper-status/9'"),
        ("404 Not Found", "", "answered 404 Not Found; is there a status?"),
    ],
)
def test_another_servers_answer_is_recognised(
    status_line: str, body: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "http_proxy", "http://127.0.0.1:1"
    )  # what is on this machine or next to it is asked itself
    monkeypatch.setenv("no_proxy", "")
    with socket.create_server(("127.0.0.1", 0)) as another, ThreadPoolExecutor(1) as pool:

        def serve() -> bytes:
            client, _ = another.accept()
            with client:
                asked = client.recv(1000)
                client.sendall(f"HTTP/1.0 {status_line}\r\n\r\n{body}".encode())
            return asked

        asked = pool.submit(serve)
        with pytest.raises(Unreachable, match=re.escape(said)):
            Http("http://{}:{}/".format(*another.getsockname())).ask()
        assert asked.result(PATIENCE).startswith(b"GET /status HTTP/1.1\r\n")


def test_an_echo_is_said_to_be_no_status_and_nothing_of_its_guard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as another, ThreadPoolExecutor(1) as pool:

        def echo() -> None:
            client, _ = another.accept()
            with client:
                client.sendall(client.recv(1000))

        echoed = pool.submit(echo)
        with pytest.raises(Unreachable, match=r"status of a reaper: expected HTTP; that says noth"):
            Http("http://{}:{}".format(*another.getsockname())).ask()
        echoed.result(PATIENCE)


@pytest.mark.slow
def test_in_a_pipe_it_prints_one_picture_of_a_real_server_and_ends() -> None:
    with server("http", "--workers", "2", "--drain-idle", "0s", "--first-byte", "1h") as process:
        clients = [socket.create_connection(process.address, timeout=PATIENCE) for _ in range(20)]
        url = "http://{}:{}".format(*process.address)
        done = top("--connect", url, COLUMNS="100")
        assert (done.returncode, done.stderr) == (0, "")
        assert "http, 2 workers" in done.stdout
        assert "first_byte" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 100
        document = json.loads(top("--connect", url, "--json").stdout)
        assert sum(each["connections"] for each in document["workers"]) in (
            20,
            21,
        )  # its own may be one of them
        for path in ("/sleep?s=100", "/"):
            clients.append(socket.create_connection(process.address, timeout=PATIENCE))
            clients[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert clients[-1].recv(1000)
        from_outside = top("--pid", str(process.pid), "--json")
        if "Operation not permitted" not in from_outside.stderr:
            (seen,) = json.loads(from_outside.stdout)["workers"]
            found = {row["phase"]: row["connections"] for row in seen["phases"]}
            assert found == {"first byte": 20, "server": 1, "client": 1}
            shown = top("--pid", str(process.pid)).stdout
            assert "silent longest" in shown
            with socket.create_connection(
                process.address, PATIENCE, source_address=("127.0.0.201", 0)
            ):
                counted = top("--pid", str(process.pid), "--by", "address").stdout.splitlines()
            (first,) = (number for number, line in enumerate(counted) if "address" in line)
            rows = [line.split()[0::2][:2] for line in counted[first + 1 : first + 3]]
            assert rows == [["127.0.0.1", "22"], ["127.0.0.201", "1"]]
        for client in clients:
            client.close()
    gone = top("--connect", url)
    assert (gone.returncode, gone.stdout, len(gone.stderr.splitlines())) == (2, "", 1)
    assert "connection refused" in gone.stderr


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        ({}, "client"),
        ({"received_ago": 3.0}, "server"),
        ({"acked": 0}, "server"),
        ({"received": 0}, "first byte"),
        ({"received": 0, "unread": 1}, "not read"),
        ({"unread": 1, "queued": 1}, "not taken"),
    ],
)
def test_what_a_connection_waits_for_is_told_from_the_kernels_stamps(
    seen: dict[str, float], phase: str
) -> None:
    usual = {
        "queued": 0,
        "unread": 0,
        "received": 10,
        "acked": 10,
        "received_ago": 5.0,
        "sent_ago": 4.0,
    }
    assert _phase_of(SimpleNamespace(**usual | seen)) == phase


def test_clients_are_counted_by_whole_addresses_that_hold_most_first() -> None:
    idle = [1, 0, 0, 0, 0, 0, 0, 0]
    addresses = {"192.168.100.200": 7, "2001:db8:aaaa:bbbb:cccc:dddd:eeee:1": 30}
    rows = [
        {"phase": each, "timeout_s": None, "connections": count, "idle": [count, *idle[1:]]}
        for each, count in addresses.items()
    ]
    shown = [line.split() for line in drawn(status(worker(phases=rows), by="address"), 120, None)]
    begin = next(number for number, words in enumerate(shown) if words[:1] == ["address"])
    assert [words[0] for words in shown[begin + 1 : begin + 3]] == sorted(addresses, reverse=True)


def test_clients_of_a_status_cannot_be_counted_by_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["top", "--connect", "http://127.0.0.1:1", "--by", "address"]
    assert main(asked) == 2
    assert "--by address needs --pid N" in capsys.readouterr().err
