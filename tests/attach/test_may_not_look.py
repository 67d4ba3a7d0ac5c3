"""What /proc does not show: what can be read is guarded, and what cannot is named.

Each world is a mount namespace of its own, with a /proc of its own. Who looks is a user
without rights, or root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reaper.attach import targets
from reaper.attach.kernel import NO_PROC, Linux
from reaper.attach.targets import STAYS, ByPid
from tests.helpers.attach_servers import PATIENCE, ROOT, free_port, tool


def slow(test: Callable[..., None]) -> Callable[..., None]:
    """Mark *test* as slow, and skip it where nobody may mount."""
    may_not = bool(os.getuid()) or shutil.which("unshare") is None
    needs = "to mount a /proc needs root and unshare (Debian: apt-get install util-linux)"
    return pytest.mark.slow(pytest.mark.skipif(may_not, reason=needs)(test))


WORLDS = {
    "shown": "true",
    "hidepid=1": "mount -t proc -o hidepid=1 proc /proc",
    "hidepid=2": "mount -t proc -o hidepid=2 proc /proc",
    "read-only": "mount -o remount,ro,bind /proc",
    "none": "mount -t tmpfs none /proc",
}
LIMITS = ("--idle", "1s", "--tick", "100ms")
NOBODY = 65534
REAPER = """
import contextlib, ctypes, io, json, os, sys
from reaper.__main__ import main
import reaper.attach.runner, reaper.attach.learn, reaper.attach.show, reaper.doctor.looking
import reaper.run.apart, reaper.run.watcher, reaper.run.explain, reaper.run.until_idle
user, *asked = json.loads(sys.argv[1])
with contextlib.redirect_stderr(io.StringIO()):
    main(["doctor", "--listen", "127.0.0.1:1"])  # it imports what it needs: as root, it can
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: who has changed its user may be looked into
for arguments in asked:
    status = main(arguments)
    print("status", status, flush=True)
"""


@contextmanager
def reaper(
    world: str, *asked: tuple[str, ...], user: int = NOBODY
) -> Iterator[subprocess.Popen[str]]:
    """A process in *world* that is `reaper` with each of the arguments *asked* in turn.

    A command that it becomes has its id.
    """
    mounted = f'{WORLDS[world]} || {{ echo "no /proc may be mounted here" >&2; exit 77; }}'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    command += [
        f'{mounted}; exec "$@"',
        "sh",
        sys.executable,
        "-c",
        REAPER,
        json.dumps([user, *asked]),
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        end = threading.Timer(PATIENCE, process.kill)  # then whoever reads has waited enough
        end.start()
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
            end.cancel()


def line_with(process: subprocess.Popen[str], wanted: str) -> str:
    """The next line of *process* with *wanted*; the test fails if it ends without."""
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if wanted in line:
            return line.rstrip()
    if process.wait(PATIENCE) == 77:
        pytest.skip("".join(said))
    raise AssertionError(f"never said {wanted!r}, but {said}")


def redis(port: int, folder: Path) -> list[str]:
    """What starts a Redis on *port*."""
    words = [tool("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    return [*words, "--dir", str(folder), "--logfile", os.devnull]


@slow
@pytest.mark.parametrize("world", ["hidepid=1", "hidepid=2", "read-only"])
def test_ones_own_server_is_found_and_guarded(world: str) -> None:
    port = free_port()
    with reaper(world, ("run", *LIMITS, "--", *redis(port, Path("/")))) as server:
        line_with(server, f"127.0.0.1:{port} is guarded from outside: idle 1s")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            client.sendall(b"PING\r\n")
            assert client.recv(100) == b"+PONG\r\n"
            assert client.recv(100) == b""  # and no redis ends who is silent for a second
        whose = ("--pid", str(server.pid))
        doctor, attach = ("doctor", "--json", "--for", "1s", *whose), ("attach", *LIMITS, *whose)
        with reaper(world, doctor, attach) as looking:
            seen = json.loads(line_with(looking, "reaper-doctor"))
            assert seen["processes"] == 1
            assert "may not be seen" not in str(seen["not_judged"])
            line_with(looking, f"watching process {server.pid}")


@slow
@pytest.mark.parametrize(
    ("world", "said"),
    [
        ("shown", "may not be looked at: run as its user"),
        ("hidepid=1", "may not be looked at: run as its user"),
        ("hidepid=2", "may not be looked at: /proc hides the processes of other users"),
        ("none", NO_PROC),
    ],
)
def test_whoever_may_not_look_is_told_so_and_not_that_nothing_is_there(
    world: str, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        attach = ("attach", *LIMITS, "--listen", f"127.0.0.1:{ours.getsockname()[1]}")
        whose = ("--pid", str(os.getpid()))
        expected = {
            ("attach", *LIMITS, *whose): said,
            ("doctor", *whose): said,
            (*attach, "--close"): NO_PROC if world == "none" else "no process whose descriptors",
            (*attach, "--close", "--how", "destroy"): "--how destroy needs CAP_NET_ADMIN",
        }
        with reaper(world, *expected, attach) as asked:
            for wanted in expected.values():
                line_with(asked, wanted)
                assert line_with(asked, "status") == "status 2"
            line_with(asked, "closing nothing (--close does)")


@slow
def test_run_says_without_proc_that_it_guards_nothing_from_outside() -> None:
    with reaper("none", ("run", "--", "true"), user=0) as server:
        line_with(server, f"guards from inside only: {NO_PROC}")


def test_a_child_that_may_not_be_looked_into_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends, or becomes another program, may not be for a moment either."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    shown, hidden, ended = (child.pid for child in children)
    now = 100.0

    def read(pid: int) -> Iterator[tuple[int, int]]:
        if pid != shown:
            raise PermissionError
        yield 0, 0

    try:
        target = ByPid(shown, kernel := Linux(), waits=True)
        monkeypatch.setattr(target, "_clock", lambda: now)
        monkeypatch.setattr(target, "pids", lambda: [shown, hidden, ended])
        monkeypatch.setattr(targets, "descriptors", read)
        target.scan()
        assert list(target.unread()) == []
        children[2].kill()
        os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)  # a zombie
        now += STAYS
        target.scan()
        (line,) = target.unread()
        assert line.startswith(f"process {hidden} comes from process {shown}, and its descriptors")
        target.scan()
        assert list(target.unread()) == []
        kernel.close()
    finally:
        for child in children:
            child.kill()
            child.wait()
