"""What the doctor says of the reaper that stands around a server: with real processes,
and where something may not be seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from reaper.__main__ import main
from reaper.attach.netlink import Address
from reaper.doctor import guarded
from reaper.doctor.facts import Guards
from reaper.doctor.show import guarded as in_words
from reaper.run import report
from reaper.run.channel import ADDRESS
from tests.conftest import Ran
from tests.helpers.attach_servers import Attach, Echo, at, running, until
from tests.helpers.reaper_run import guarded as below_reaper_run

SERVER = """
import ctypes, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2:] == ["overwritten"]:  # as Redis and nginx do when they name themselves
    first, last = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
    ctypes.memset(first, 0, last - first)
print("listening", flush=True)
while True:
    server.accept()
"""


def command(*words: str) -> tuple[str, ...]:
    return sys.executable, "-c", SERVER, *words


def said(call: Ran, *flags: str) -> dict[str, Any]:
    """What an examination says of the guard."""
    _, out, err = call(main, "doctor", "--for", "1s", "--json", *flags)
    assert err == ""
    found = json.loads(out)["guarded"]
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "overwritten"])
def test_the_watcher_of_reaper_run_is_found_while_it_lives(
    how: str, tmp_path: Path, call: Ran
) -> None:
    with below_reaper_run(command("{port}", how), tmp_path) as (server, _):
        by_pid, by_address = said(call, "--pid", str(server.pid)), said(call, *at(server.port))
        assert by_pid == by_address
        assert (by_pid["run"], by_pid["attach"]) == ("watches", [])
        watcher = by_pid["watcher"]
        assert Path(f"/proc/{watcher}/comm").read_text() == "reaper-watcher\n"
        os.kill(watcher, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{watcher}").exists(), "the end of the watcher")
        known = "ended" if how == "plain" else None
        assert said(call, "--pid", str(server.pid))["run"] == known


@pytest.mark.slow
def test_a_server_without_reaper_is_said_not_to_be_below_reaper_run(port: int, call: Ran) -> None:
    with running(*command(str(port)), port=port) as server:
        assert said(call, *at(port)) == {"run": "no", "watcher": None, "attach": []}
        _, out, _ = call(main, "doctor", "--for", "1s", "--pid", str(server.pid))
    assert "guarded   not by `reaper run`; what a server does inside itself cannot be" in out


@pytest.mark.slow
def test_a_hook_without_a_watcher_guards_from_inside_at_most(port: int, call: Ran) -> None:
    environment = os.environ | {report.RUN: "1"}
    with running(*command(str(port)), port=port, env=environment):
        assert said(call, *at(port)) == {"run": "inside", "watcher": None, "attach": []}


@pytest.mark.slow
def test_an_overwritten_environment_says_nothing_of_what_is_inside(port: int, call: Ran) -> None:
    with running(*command(str(port), "overwritten"), port=port):
        until(lambda: said(call, *at(port))["run"] is None, "the environment is overwritten")
        _, out, _ = call(main, "doctor", "--for", "1s", *at(port))
    assert "guarded   no watcher of `reaper run` stands around it; what a server does" in out


@pytest.mark.slow
@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("by", ["pid", "address"])
def test_an_attach_that_looks_at_the_same_is_named(
    by: str, closes: bool, port: int, call: Ran
) -> None:
    with Echo.server(port, workers=2) as server:
        target = at(port) if by == "address" else ("--pid", str(server.pid))
        with Attach(*target, "--idle", "1h", *["--close"] * closes) as attach:
            expected = [{"pid": attach.process.pid, "closes": closes}]
            assert said(call, "--pid", str(server.pid))["attach"] == expected
            assert said(call, *at(port))["attach"] == expected


def test_the_marks_are_those_that_reaper_run_leaves() -> None:
    assert (f"{report.RUN}=".encode(), f"{ADDRESS}=".encode()) == (guarded.RUN, guarded.REPORT)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python -m reaper attach --pid 7 --close", ["--pid", "7", "--close"]),
        ("/usr/bin/python3 -I /usr/bin/reaper attach --listen=:80", ["--listen=:80"]),
        ("reaper top --pid 7", []),
        ("git attach --pid 7", []),
        ("attach --pid 7", []),
    ],
)
def test_the_command_line_of_an_attach_is_known(line: str, words: list[str]) -> None:
    assert guarded.attach_words(line.split()) == words


def test_an_attach_at_another_address_or_process_is_none_of_the_servers(
    port: int,
) -> None:
    me, door = os.getpid(), [Address("127.0.0.1", port)]
    looks = {
        f"--listen 127.0.0.1:{port}": True,
        f"--listen=:{port}": True,
        f"--listen 127.0.0.2:{port}": False,
        f"--listen 127.0.0.1:{port + 1}": False,
        "--listen nonsense": False,
        f"--pid {me}": True,
        "--pid 4194304": False,
        "--close": False,
    }
    for words, expected in looks.items():
        found = guarded._looks_at(me, words.split(), {me}, [me], door)
        assert found is expected, words


def test_an_attach_in_another_network_namespace_is_none_of_the_servers(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "namespace", lambda pid: (0, pid))
    words, door = ["--listen", f"127.0.0.1:{port}"], [Address("127.0.0.1", port)]
    assert guarded._looks_at(1, words, {1}, [1], door)
    assert not guarded._looks_at(2, words, {1}, [1], door)


def test_what_nobody_may_look_into_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guarded.guards([], []).run is None
    monkeypatch.setattr(guarded, "environment", lambda pid: None)
    monkeypatch.setattr(guarded, "name_of", lambda pid: guarded.WATCHER)
    monkeypatch.setattr(guarded, "watched", lambda pid: None)
    found = guarded.guards([os.getpid()], [])
    assert (found.watcher, found.run) == (None, None)
    assert "that cannot be seen" in in_words(found)


def test_a_watcher_that_means_another_is_not_believed_to_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = f"{ADDRESS}=4194304:0:{tmp_path}".encode()
    monkeypatch.setattr(guarded, "environment", lambda pid: [guarded.RUN + b"1", mark])
    monkeypatch.setattr(guarded, "FIRST_NAMESPACE", 0)  # as in a container
    assert guarded.guards([os.getpid()], []).run is None
    tmp_path.rmdir()
    assert guarded.guards([os.getpid()], []).ended == 4194304


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Guards(7, 0, True), "its watcher (process 7) is alive"),
        (
            Guards(0, 7, True),
            "not from outside any more: the watcher of its `reaper run` (process 7)",
        ),
        (Guards(0, 0, True), "from inside, if"),
        (
            Guards(0, 0, False, (8,), (9,)),
            "by `reaper attach` (process 8, which closes, process 9,",
        ),
        (Guards(0, 0, None), "no watcher of `reaper run` stands around it"),
        (Guards(), "that cannot be seen"),
    ],
)
def test_each_state_has_words(found: Guards, words: str) -> None:
    assert words in in_words(found)
