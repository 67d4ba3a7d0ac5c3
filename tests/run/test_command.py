"""`reaper run -- COMMAND`: programs that know nothing of reaper, run as they are, with real
sockets.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from reaper.attach import kernel
from reaper.config import ReaperConfig
from reaper.run import hooks, report
from reaper.run.command import HOOK, environment_of, interpreter_of
from reaper.run.servers import SERVERS, Server
from reaper.run.watcher import Watcher, outside_limits
from scripts.serving import free_port, serving
from tests.helpers.server_process import installed, wait_until

APPS = Path(__file__).parent / "apps"
REAPER = [sys.executable, "-m", "reaper"]
PATIENCE = 30.0
"""Seconds in which what must happen has happened, on a busy machine."""

LIMITS = [
    "--first-byte",
    "400ms",
    "--headers",
    "400ms",
    "--body",
    "400ms",
    "--keep-alive",
    "500ms",
    "--tick",
    "100ms",
]
OWN_LAG = 0.3
"""Seconds from connect(2) to the request after which a client that is not answered proves nothing.
"""
SLOW = "1.5"
"""Seconds that the slow answer takes: longer than every limit."""


def run(*arguments, **options):
    """`reaper run` with *arguments*, until it ends."""
    options = {
        "env": os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent.parent)},
        **options,
    }
    return subprocess.run(
        [*REAPER, "run", *arguments], capture_output=True, text=True, timeout=PATIENCE, **options
    )


# ---- what it does to a command
# -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("inside", [["--inside"], []])
def test_the_exit_status_and_the_output_are_the_commands_own(inside):
    done = run(*inside, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.slow
@pytest.mark.parametrize("inside", [["--inside"], []])
def test_a_signal_reaches_the_command_itself(inside):
    looping = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    command = [*REAPER, "run", *inside, "--", "sh", "-c", looping]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR1)
        assert running.wait(PATIENCE) == 9


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
    ],
)
def test_what_cannot_work_is_one_line_and_starts_nothing(arguments, status, said):
    done = run(*arguments)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_the_environment_keeps_what_the_user_set_and_carries_the_limits():
    before = {"PYTHONPATH": "/theirs", "OTHER": "1"}
    made = environment_of(before, "a.toml", {"REAPER_TIMEOUTS_KEEP_ALIVE": "5s"}, strict=True)
    assert made["PYTHONPATH"] == f"{HOOK}{os.pathsep}/theirs"
    assert (made["REAPER_RUN"], made["OTHER"]) == ("strict", "1")
    assert made["REAPER_CONFIG"] == os.path.abspath("a.toml")
    assert made["REAPER_TIMEOUTS_KEEP_ALIVE"] == "5s"


@pytest.mark.slow
def test_the_sitecustomize_of_the_program_is_run_all_the_same(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    done = run("--inside", "--", sys.executable, "-c", "import sys; print(sys.modules['sitecustomize'].__file__)",
               env=os.environ | {"PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert done.stdout.split()[-2:] == ["theirs", str(tmp_path / "sitecustomize.py")]


def test_a_python_without_reaper_finds_it_where_the_hook_is(tmp_path):
    code = f"import sys; sys.path[:0] = [{str(HOOK)!r}]; import sitecustomize, reaper.run; print(reaper.run.__file__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, env={"REAPER_RUN": "1"}, text=True,
                          capture_output=True, timeout=PATIENCE)  # fmt: skip
    assert done.stdout.strip() == str(HOOK.parent / "__init__.py"), done.stderr


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("#!/usr/bin/env python3\n", ["python3"]),
        ("#!/bin/sh\n", None),
        ("#!/x/python -E\n", ["/x/python"]),
    ],
)
def test_the_interpreter_is_read_from_the_first_line(tmp_path, text, python):
    (tmp_path / "program").write_text(text)
    assert interpreter_of(str(tmp_path / "program"), []) == python


@pytest.mark.slow
def test_explain_says_what_would_be_guarded_by_which_limits_and_starts_nothing():
    done = run("--explain", "--keep-alive", "7s", "--", sys.executable, "-c", "print('started')")
    assert done.returncode == 0
    assert "started" not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("uvicorn ")]
    assert "is guarded from inside: first_byte 10s" in line
    assert "keep_alive 7s" in line
    assert "is guarded from outside: idle 7s" in done.stdout
    done = run("--explain", "--inside", "--", "sh")
    assert (
        done.stdout
        == "sh is no Python program\nwhat it listens on is not guarded: --inside was given\n"
    )


# ---- what may be patched
# -------------------------------------------------------------------------------------------


def test_a_module_is_met_when_it_has_been_imported_and_its_loader_is_what_it_was(
    tmp_path, monkeypatch
):
    (tmp_path / "met.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    finder = hooks.AfterImport(
        {"met": lambda module: seen.append(module.value), "never": seen.append}
    )
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import met

    assert seen == [1]
    assert "exec_module" not in vars(met.__loader__)
    with pytest.raises(ModuleNotFoundError):
        import never
    (tmp_path / "never.py").write_text("")
    import never  # noqa: F401

    assert len(seen) == 2


@pytest.fixture
def heard(monkeypatch):
    found: list[dict[str, object]] = []
    monkeypatch.setattr(report, "_say", lambda message, text: found.append(message))
    return found


def fails(module, server):
    raise RuntimeError("odd")


@pytest.mark.parametrize(
    ("has", "changes", "why", "refused"),
    [
        (
            [],
            fails,
            ["it has no Config.load; tested with 0.1 to 0.2"],
            "does not fit: it has no Config.load",
        ),
        (
            ["load"],
            lambda module, server: setattr(module, "guarded", True),
            [],
            "tested with 0.1 to 0.2",
        ),
        (["load"], fails, ["RuntimeError: odd"], "tested with 0.1 to 0.2"),
    ],
    ids=["it lacks a name", "its version was not tested", "the change fails"],
)
def test_a_server_is_left_alone_or_where_only_its_version_is_new_guarded_and_refused_if_strict(
    has, changes, why, refused, heard, capsys
):
    module = ModuleType("odd")
    module.Config = type("Config", (), dict.fromkeys(has, fails))
    server = Server("pytest", ("0.1", "0.2"), "odd", ("Config.load",), changes)
    server.guard(module, strict=False)
    assert ([message["why"] for message in heard], hasattr(module, "guarded")) == (why, not why)
    with pytest.raises(SystemExit) as error:
        server.guard(module, strict=True)
    assert error.value.code == 2
    assert refused in capsys.readouterr().err


def test_the_versions_installed_here_are_those_that_are_said_to_be_tested():
    wrong = {
        str(server): server.tested[1]
        for server in SERVERS
        if server.version and server.version != server.tested[1]
    }
    assert not wrong


# ---- from outside
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"idle": 600.0, "first_byte": 0.0, "stalled_write": 60.0, "tick": 1.0}),
        ({"timeouts.keep_alive": "5s"}, {"idle": 5.0}),
        ({"timeouts.keep_alive": "5s", "timeouts.idle": "3s"}, {"idle": 3.0}),
        ({"timeouts.keep_alive": "5s", "attach.idle": "9s"}, {"idle": 9.0}),
        ({"timeouts.first_byte": "500ms"}, {"first_byte": 0.5, "tick": 0.5}),
    ],
)
def test_from_outside_hold_the_limits_that_were_asked_for_and_those_that_suit_any_protocol(
    given, expected
):
    found = outside_limits(ReaperConfig.load(overrides=given))
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_watcher_hears_the_command_and_its_children_alone_and_no_nonsense():
    ours, ears = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, ears:
        ears.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        said = json.dumps(
            {"guarded": "odd\x1b[2J", "inodes": [7], "places": [], "limits": "none"}
        ).encode()
        for command, expected in ((os.getpid(), {7}), (os.getppid(), {7}), (2**22, set())):
            lines = []
            watcher = Watcher(command, -1, ReaperConfig(), ears, lines.append)
            for words in (b"[]", b"{}", b"\xff", said):
                ours.send(words)
                watcher._take()
            assert watcher.inside == expected
            assert not any("\x1b" in line for line in lines)


def test_the_watcher_of_a_command_that_listens_on_nothing_asks_one_kernel_and_says_nothing(
    monkeypatch,
):
    opened, open_one = [], kernel._open
    monkeypatch.setattr(kernel, "_open", lambda: opened.append(open_one()) or opened[-1])
    monkeypatch.setattr("reaper.run.watcher.POLL", 0.01)
    lines = []
    with (
        subprocess.Popen(["sleep", "0.5"]) as child,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears,
    ):
        Watcher(child.pid, os.pidfd_open(child.pid), ReaperConfig(), ears, lines.append).run()
    for sock in opened:
        sock.close()
    assert (len(opened), lines) == (2, [])  # one for dumps and one for looks


# ---- programs as they are
# ------------------------------------------------------------------------------------------


@contextmanager
def guarded(command, tmp_path, *flags, said=("is guarded from",)):
    """The address of *command* under `reaper run`, with its port for `{port}`, once it has said all
    that is *said*.
    """
    port = free_port()
    words = [word.format(port=port) for word in command]
    environment = os.environ | {
        "SLOW": SLOW,
        "PYTHONPATH": str(APPS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    log = tmp_path / "log"
    with serving(
        [*REAPER, "run", *LIMITS, *flags, "--", *words], log, port=port, environment=environment
    ) as started:
        wait_until(
            lambda: all(each in log.read_text() for each in said), "the word of what is guarded"
        )
        yield started, log


def ends(port, sent=b"", answered=b"\0"):
    """How a connection that sent *sent* ends; the bytes that came before. Anew if it was itself too
    late with that.
    """
    began, found, late = time.monotonic(), b"", True
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as sock,
        suppress(ConnectionResetError),
    ):
        sock.sendall(sent)
        late = time.monotonic() - began > OWN_LAG
        while answered not in found and (data := sock.recv(65536)):
            found += data
    return ends(port, sent, answered) if sent and late and b" 200" not in found else found


GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"

BIN = Path(sys.executable).parent
OWN = f"python {APPS}/programs.py"
GUNICORN = "gunicorn -b 127.0.0.1:{port} --no-control-socket"
PROGRAMS = {
    "uvicorn": f"{OWN} uvicorn {{port}}",
    "uvicorn with workers": f"{OWN} uvicorn_workers {{port}}",
    "uvicorn with reload": f"{OWN} uvicorn_reload {{port}}",
    "uvicorn in a thread": f"{OWN} uvicorn_in_a_thread {{port}}",
    "uvicorn's command, h11": "uvicorn asgi:app --port {port} --http h11",
    "gunicorn, uvicorn's worker": f"{GUNICORN} -k uvicorn.workers.UvicornWorker asgi:app",
    "gunicorn, its own asgi worker": f"{GUNICORN} -k asgi asgi:app",
    "gunicorn's threads": f"{GUNICORN} --threads 8 asgi:wsgi",
    "hypercorn": "hypercorn -b 127.0.0.1:{port} asgi:app",
    "hypercorn on trio": "hypercorn -k trio -b 127.0.0.1:{port} asgi:app",
    **{name: f"{OWN} {name} {{port}}" for name in ("aiohttp", "tornado", "sanic")},
    "daphne": "daphne -b 127.0.0.1 -p {port} asgi:app",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unmodified_program_closes_who_is_silent_and_answers_who_waits(name, tmp_path):
    needed = name.split(",")[0].split()[0].removesuffix("'s")
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed (pip install {needed})")
    with guarded(f"{BIN}/{PROGRAMS[name]}".split(), tmp_path, said=["is guarded from inside"]) as (
        started,
        _,
    ):
        answers = {}
        slow = threading.Thread(
            target=lambda: answers.update(slow=ends(started.port, GET % b"/slow", answered=b"ok"))
        )
        slow.start()
        for what, sent in {
            "silent": b"",
            "half a head": b"GET / HTTP/1.1\r\nHost:",
            "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
            "idle": GET % b"/",
        }.items():
            answers[what] = ends(started.port, sent)
        slow.join()
        assert answers["silent"] == b""
        assert b" 200" not in answers["half a head"] + answers["half a body"]
        assert answers["idle"].startswith(b"HTTP/1.1 200")
        assert answers["slow"].startswith(b"HTTP/1.1 200"), "a request in flight is not idle"


@pytest.mark.slow
def test_another_language_is_guarded_from_outside(tmp_path):
    command = [installed("redis-server"), "--port", "{port}", "--save", "", "--dir", str(tmp_path)]
    with guarded(
        command, tmp_path, "--idle", "500ms", said=["is guarded from outside: idle 500ms"]
    ) as (started, log):
        assert ends(started.port) == b""
        assert ends(started.port, b"PING\r\n") == b"+PONG\r\n"
        assert "guarded from inside" not in log.read_text()


@pytest.mark.slow
def test_what_listens_beside_a_guarded_server_is_guarded_from_outside(tmp_path):
    program = tmp_path / "two.py"
    program.write_text(
        "import socket, sys, threading, uvicorn\n"
        "plain = socket.create_server(('127.0.0.1', 0))\n"
        "print('plain', plain.getsockname()[1], flush=True)\n"
        "kept = []\n"
        "threading.Thread(target=lambda: [kept.append(plain.accept()) for _ in iter(int, 1)], daemon=True).start()\n"
        "uvicorn.run('asgi:app', port=int(sys.argv[1]), log_level='warning')\n"
    )
    words = [
        "is guarded from inside",
        "is guarded from outside",
    ]  # whichever comes first: a Python has ten seconds
    with guarded([sys.executable, str(program), "{port}"], tmp_path, said=words) as (started, log):
        text = log.read_text()
        plain = int(text.partition("plain ")[2].split()[0])
        assert (
            f"uvicorn {version('uvicorn')} on 127.0.0.1:{started.port} is guarded from inside"
            in text
        )
        assert f"127.0.0.1:{plain} is guarded from outside" in text
        with socket.create_connection(("127.0.0.1", plain)) as sock:
            sock.settimeout(PATIENCE)
            sock.recv(
                1
            )  # the server never reads: its side is shut down, and a reset follows only if it closes
        assert ends(started.port) == b""


@pytest.mark.slow
def test_the_environment_alone_guards_too(tmp_path):
    port = free_port()
    environment = os.environ | {"REAPER_RUN": "1", "PYTHONPATH": f"{HOOK}{os.pathsep}{APPS}"}
    environment |= {"REAPER_TIMEOUTS_FIRST_BYTE": "300ms", "REAPER_TICK": "100ms"}
    log = tmp_path / "log"
    command = f"{BIN}/{PROGRAMS['uvicorn with workers']}".format(port=port).split()
    with serving(command, log, port=port, environment=environment):
        assert ends(port) == b""
    assert log.read_text().count("is guarded: first_byte 300ms") == 1, "one line for all workers"


def test_hook_prints_the_folder_for_pythonpath():
    assert run("--hook").stdout.strip() == str(HOOK)
