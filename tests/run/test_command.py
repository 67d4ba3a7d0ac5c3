"""`reaper run -- COMMAND`, the command line: what is refused, what is explained, what
the command is started with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reaper.foreign import RESTING, SOCKETS
from reaper.run.command import HOOK, environment_of
from reaper.run.explain import interpreter_of
from reaper.run.touched import lines, tables
from reaper.servers.cards import card_of, cards
from scripts.programs.trial import APPS
from scripts.serving import free_port
from tests.helpers.reaper_run import PATIENCE, REAPER, run


@pytest.mark.slow
@pytest.mark.parametrize("inside", [["--inside"], []])
def test_the_exit_status_and_the_output_are_the_commands_own(inside: list[str]) -> None:
    done = run(*inside, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.slow
@pytest.mark.parametrize("inside", [["--inside"], []])
def test_a_signal_reaches_the_command_itself(inside: list[str]) -> None:
    looping = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    command = [*REAPER, "run", *inside, "--", "sh", "-c", looping]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR1)
        assert running.wait(PATIENCE) == 9


@pytest.mark.slow
@pytest.mark.parametrize("explain", [["--explain"], []])
def test_a_tick_that_check_calls_an_error_is_said_and_the_command_runs(explain: list[str]) -> None:
    done = run(*explain, "--inside", "--tick", "10s", "--keep-alive", "2s", "--", "true")
    assert done.returncode == 0
    assert "reaper run: reaper.tick: 10s against timeouts.keep_alive = 2s" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "no command: expected `reaper run -- COMMAND...`"),
        (["--", "no-such-thing"], 127, "no-such-thing: no such command"),
        (["--", __file__], 126, "test_command.py: Permission denied"),
        (
            ["--keep-alive", "5", "--", "true"],
            2,
            "timeouts.keep_alive: '5' (from command line): expected",
        ),
        (["--config", "/no/such.toml", "--", "true"], 2, "/no/such.toml: cannot be read"),
        (["--idel", "5m", "--", "true"], 2, "unrecognized arguments: --idel; did you mean --idle?"),
        (["uvicorn", "--port", "80"], 2, "--port 80; a command comes after --: "),
        (["--inside", "--strict", "--", "sleep", "1"], 2, "sleep is no Python program, so nothing"),
    ],
)
def test_what_cannot_work_is_one_line_and_starts_nothing(
    arguments: list[str], status: int, said: str
) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_the_environment_keeps_what_the_user_set_and_carries_the_limits() -> None:
    before = {"PYTHONPATH": "/theirs", "OTHER": "1"}
    made = environment_of(before, "a.toml", {"REAPER_TIMEOUTS_KEEP_ALIVE": "5s"}, how="strict")
    assert made["PYTHONPATH"] == f"{HOOK}{os.pathsep}/theirs"
    assert (made["REAPER_RUN"], made["OTHER"]) == ("strict", "1")
    assert made["REAPER_CONFIG"] == os.path.abspath("a.toml")
    assert made["REAPER_TIMEOUTS_KEEP_ALIVE"] == "5s"


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("#!/usr/bin/env python3\n", ["python3"]),
        ("#!/bin/sh\n", None),
        ("#!/x/python -E\n", ["/x/python"]),
        ("#!/bin/sh\n'''exec' \"/a b/python3\" \"$0\" \"$@\"\n' '''\n", ["/a b/python3"]),
        ("#!/bin/sh\n'''exec' /long/python3 \"$0\" \"$@\"\n' '''\n", ["/long/python3"]),
        ("#!/bin/sh\nexec '/a b/ruby' \"$0\"\n", None),
    ],
)
def test_the_interpreter_is_read_from_the_first_lines(
    tmp_path: Path, text: str, python: list[str] | None
) -> None:
    (tmp_path / "program").write_text(text)
    assert interpreter_of(str(tmp_path / "program"), []) == python


def explained(*words: str, **options: Any) -> str:
    """What `reaper run --explain` says of the command *words*."""
    done = run("--explain", *words, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_explain_starts_nothing_and_lists_each_server_where_nobody_can_know() -> None:
    said = explained("--keep-alive", "7s", "--", sys.executable, "-c", "print('started')")
    assert "started" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("uvicorn ")]
    assert "is guarded from inside: first_byte 10s" in line
    assert "keep_alive 7s" in line
    assert "which server it imports is not known; each of these, if it does:" in said


@pytest.mark.slow
def test_explain_says_that_keep_alive_is_no_limit_outside() -> None:
    said = explained("--keep-alive", "7s", "--", "sh")
    assert "is guarded from outside: idle 1h, stalled_write 1m, vanished 1m; keep_alive" in said


@pytest.mark.slow
def test_explain_says_after_how_long_streams_are_pinged_and_why() -> None:
    command = ("--", sys.executable, "-m", "uvicorn", "app:app")
    said = explained(*command, env=os.environ | {"REAPER_SERVER_BEHIND": "nginx"})
    line = "  quiet event streams get a comment after 20s (stream_ping, by server.behind "
    assert f"{line}(environment REAPER_SERVER_BEHIND): a third of nginx's 60s)" in said.splitlines()


@pytest.mark.slow
def test_explain_names_what_is_set_and_does_nothing_in_each_kind_of_server() -> None:
    gunicorn = str(Path(sys.executable).parent / "gunicorn")
    said = explained("--drain-idle", "7s", "--request", "9s", "--half-closed", "5s", "--", gunicorn)
    vain = [line.partition(": set, but without effect here: ") for line in said.splitlines()]
    named = {line.strip(): what for line, _, what in vain if what}
    assert named["gunicorn-uvicorn"] == "timeouts.request"
    assert named["gunicorn-asgi"] == "timeouts.request, timeouts.half_closed"


@pytest.mark.slow
def test_explain_lists_what_the_commands_own_package_requires() -> None:
    said = explained("--", str(Path(sys.executable).parent / "datasette"), "data.db")
    names = [line.split()[0] for line in said.splitlines() if "guarded from inside" in line]
    assert names == ["uvicorn"]  # it requires anyio, too, and does not serve by it


@pytest.mark.slow
@pytest.mark.parametrize("room", ["gunicorn", "uvicorn", "aiohttp"])
@pytest.mark.parametrize("flags", [(), ("--inside",)])
def test_explain_lists_each_name_that_would_be_read_or_replaced(
    flags: tuple[str, ...], room: str
) -> None:
    said = explained(*flags, "--names", "--", sys.executable, "-m", room)
    card = card_of(room)
    for table, whose in tables(card):
        has = ", if the program has it" * table.optional
        assert f"(tested: {table.range}){has}{whose}\n" in said
        for place, names in table.names.items():
            module, _, path = place.partition(":")
            signed = {"replaces": table.replaced[place], "sets": table.given[place]}
            listed = [
                line.replace(";", "").split()
                for line in said.splitlines()
                if f" {module} {path}".rstrip() + ":" in line
            ]
            assert any(
                {*names.split()} <= {*words}
                and all((verb in words) is bool(signed[verb]) for verb in signed)
                for words in listed
            ), place
    assert f"{room} {version(room)} (tested: " in said
    assert ("is guarded from outside;" in said) is (not flags)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--inside",), ("--strict",), ("--inside", "--strict")])
def test_explain_names_what_refuses_a_server_that_nobody_knows(flags: tuple[str, ...]) -> None:
    said = explained(*flags, "--names", "--", sys.executable, "-m", "uvicorn").splitlines()
    listed = "    socket socket: replaces listen" in said
    assert listed is (len(flags) == 2)


def all_of(room: str) -> set[str]:
    """What is listed of a server, a line each."""
    return set(lines(card_of(room), {}, inside=False))


def test_of_a_loop_each_guest_lists_what_it_uses() -> None:
    for card in cards():
        if any("reaper.release_buffers" in kind.acts for kind in card.kinds):
            assert {RESTING, SOCKETS} <= set(card.spared), card.name
        if card.promised:  # a server that is made here lets go of half a handshake
            assert "    asyncio.base_events Server: replaces close" in all_of(card.name)
            assert "    asyncio.sslproto: reads SSLProtocol" in all_of(card.name)


def test_a_package_is_named_once_for_the_names_that_follow() -> None:
    for card in cards():
        heads = [each for each in lines(card, {}, inside=False) if each[2:3] != " "]
        assert all(one != other for one, other in pairwise(heads)), card.name


def test_of_gunicorn_the_names_of_the_uvicorn_in_it_are_listed() -> None:
    config = (
        "    uvicorn.config Config: replaces __init__; sets http loop; reads http_protocol_class "
        "timeout_keep_alive"
    )
    assert config in all_of("gunicorn") & all_of("uvicorn")
    assert any("ZttpH2Protocol: reads" in line for line in all_of("uvicorn"))


def test_names_are_listed_by_explain_alone() -> None:
    done = run("--names", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "reaper run: --names: only --explain lists them: expected --explain --names\n"
    )


@pytest.mark.slow
def test_explain_lists_a_library_where_a_script_imports_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import anyio")
    said = explained("--", sys.executable, str(tmp_path / "app.py"))
    names = [line.split()[0] for line in said.splitlines() if "guarded from inside" in line]
    assert names == ["anyio"]


@pytest.mark.slow
def test_explain_says_that_a_module_of_the_standard_library_has_no_known_server() -> None:
    said = explained("--", sys.executable, "-m", "http.server")
    assert "it requires none of the servers that can be guarded from inside" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "own"),
    [("uvicorn", "--timeout-keep-alive, 5s"), ("gunicorn", "--keep-alive, 2s")],
)
def test_explain_leaves_to_a_server_the_keep_alive_that_a_run_leaves_to_it(
    server: str, own: str
) -> None:
    said = explained("--", str(Path(sys.executable).parent / server), "a:b")
    assert f"keep_alive as {server} has it ({own} unless given)" in said
    assert "keep_alive 1m35s" not in said
    assert "keep_alive 95s" not in said


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "."])
def test_explain_runs_nothing_of_the_working_folder(tmp_path: Path, path: str) -> None:
    for name in ("json", "ast", "email"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    command = [sys.executable, "-I", "-m", "reaper", "run", "--explain", "--", sys.executable, "x"]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.startswith(f"{sys.executable} runs on Python"), done.stdout


@pytest.mark.slow
def test_explain_says_that_inside_leaves_another_language_alone() -> None:
    done = run("--explain", "--inside", "--", "sh")
    assert (
        done.stdout
        == "sh is no Python program\nwhat it listens on is not guarded: --inside was given\n"
    )


def test_hook_prints_the_folder_for_pythonpath() -> None:
    assert run("--hook").stdout.strip() == str(HOOK)


LISTENS = {
    "the standard library's server": ["-m", "http.server", "{port}"],
    "gunicorn's sync worker": ["-m", "gunicorn", "-b", "127.0.0.1:{port}", "asgi:wsgi"],
}


@pytest.mark.slow
def test_inside_says_that_gunicorns_sync_worker_is_not_guarded() -> None:
    words = ["-m", "gunicorn", "-b", "unix:/none/there", "asgi:wsgi"]  # it ends when it binds that
    environment = os.environ | {"PYTHONPATH": str(APPS)}
    done = run("--inside", "--", sys.executable, *words, env=environment)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("reaper run: ")]
    assert line.endswith(
        "'s worker SyncWorker is not guarded: -k asgi or gthread can be, from inside"
    )


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["gthread", "asgi"])
def test_the_line_of_a_gunicorn_says_the_keep_alive_that_it_has(worker: str) -> None:
    words = [
        "-m",
        "gunicorn",
        "--no-control-socket",
        "-k",
        worker,
        "-b",
        "127.0.0.1:0",
        "asgi:wsgi",
    ]
    environment = os.environ | {"PYTHONPATH": str(APPS)}
    command = [*REAPER, "run", "--inside", "--", sys.executable, *words, "--keep-alive", "3"]
    alone: dict[str, Any] = {"env": environment, "process_group": 0}  # it speaks for its group
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **alone) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "is guarded: " in line)
        process.terminate()
    assert " keep_alive 3s," in line


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTENS)
def test_inside_strict_refuses_what_listens_and_cannot_be_guarded(name: str) -> None:
    words = [word.format(port=free_port()) for word in LISTENS[name]]
    environment = os.environ | {"PYTHONPATH": str(APPS)}
    done = run("--inside", "--strict", "--", sys.executable, *words, env=environment)
    assert done.returncode == 2
    assert "cannot be guarded from inside" in done.stderr
