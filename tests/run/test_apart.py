"""How the watcher of `reaper run` lives beside COMMAND: what it holds, when it ends,
what it says.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from reaper.run.channel import ADDRESS
from tests.helpers.reaper_run import PATIENCE, REAPER
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.slow


def watchers(folder: Path, name: str = "reaper-") -> list[psutil.Process]:
    """The processes of the watcher whose socket is below *folder*, as TMPDIR has
    said.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith(name) and process.environ().get("TMPDIR") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def running(
    script: str, tmp_path: Path, *before: str, flags: tuple[str, ...] = (), **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A Python below `reaper run` that runs *script*; its output can be read."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [*before, *REAPER, "run", *flags, "--", sys.executable, "-u", "-c", script]
    process = subprocess.Popen(command, text=True, env=environment, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


WAITS = "import time; print('ready'); time.sleep(60)"


def ready(process: subprocess.Popen[str]) -> None:
    """Wait until the script of `running` says so."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def test_the_watcher_is_gone_soon_after_the_command_and_leaves_nothing(tmp_path: Path) -> None:
    with running(WAITS, tmp_path) as process:
        ready(process)
        assert len(watchers(tmp_path)) == 2
        folder = Path(psutil.Process(process.pid).environ()[ADDRESS].split(":", 2)[2]).parent
        process.kill()
        process.wait()
        wait_until(lambda: not watchers(tmp_path), "the end of the watcher")
        wait_until(lambda: not folder.exists(), "the end of its folder")


def test_what_waits_for_the_end_of_the_output_meets_it(tmp_path: Path) -> None:
    # The watcher is stopped: were the pipe open in it, `cat` would never end.
    with running(WAITS, tmp_path) as process:
        ready(process)
        for watcher in watchers(tmp_path):
            watcher.suspend()
        process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == ""
        for watcher in watchers(tmp_path):
            watcher.resume()


def test_the_watcher_holds_nothing_of_the_commands(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, open(tmp_path / "file", "w") as file:
        kept = [server.fileno(), file.fileno()]
        with running(WAITS, tmp_path, pass_fds=kept) as process:
            ready(process)
            for watcher in watchers(tmp_path):
                held = []
                for fd in os.listdir(f"/proc/{watcher.pid}/fd"):
                    with suppress(FileNotFoundError):  # it imports, and looks: that one is closed
                        held.append(os.readlink(f"/proc/{watcher.pid}/fd/{fd}"))
                theirs = [f"socket:[{os.fstat(kept[0]).st_ino}]", str(tmp_path / "file")]
                assert not set(held) & set(theirs)
                assert watcher.cwd() == "/"


def test_a_listener_that_the_command_closes_is_closed(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    place, fd = server.getsockname(), server.fileno()
    script = f"import os; os.close({fd}); {WAITS}"
    with running(script, tmp_path, pass_fds=[fd]) as process:
        server.close()
        ready(process)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)


def test_sigterm_for_every_process_of_a_unit_does_not_end_the_watcher_first(tmp_path: Path) -> None:
    script = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
    with running(script, tmp_path) as process:
        ready(process)
        before = watchers(tmp_path)
        for each in before:
            each.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # nothing can be waited for: nothing is to happen
        assert len(watchers(tmp_path)) == len(before)


def test_a_watcher_that_is_killed_is_told(tmp_path: Path) -> None:
    with running(WAITS, tmp_path) as process:
        ready(process)
        (watcher,) = watchers(tmp_path, "reaper-watcher")
        watcher.kill()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == (
            "reaper run: the watcher was ended by SIGKILL: nothing is guarded from outside any more\n"
        )


DAEMON = """
import os, socket, sys, time
if os.fork():
    os._exit(0)
os.setsid()
for fd in (0, 1):
    os.dup2(os.open('/dev/null', os.O_RDWR), fd)
server = socket.create_server(('127.0.0.1', 0))
time.sleep(5)
"""


def test_a_command_that_goes_on_in_the_background_is_told(tmp_path: Path) -> None:
    with running(DAEMON, tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("reaper run: the command has ended and goes on in the background")
        assert process.wait(PATIENCE) == 0
        os.kill(int(line.partition("(process ")[2].partition(")")[0]), signal.SIGKILL)


def test_a_command_that_ends_with_a_child_beside_it_is_told_nothing(tmp_path: Path) -> None:
    with running("import os\nif os.fork() == 0: os.execlp('sleep', 'sleep', '1')", tmp_path) as one:
        assert one.stdout is not None
        assert one.stdout.read() == ""


FLOOD = """
import sys
from _idle_reaper.run import channel
print('ready')
sys.stdin.readline()
said = [channel.say(b'word') for _ in range(6000)]
print(said[0], said[-1])
"""


def test_a_program_goes_on_though_the_watcher_hears_nothing_any_more(tmp_path: Path) -> None:
    with running(FLOOD, tmp_path, stdin=subprocess.PIPE) as process:
        ready(process)  # COMMAND begins when the watcher listens, and not when it is there
        assert len(watchers(tmp_path)) == 2
        for watcher in watchers(tmp_path):
            watcher.suspend()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.readline() == "True False\n"
        for watcher in watchers(tmp_path):
            watcher.resume()
