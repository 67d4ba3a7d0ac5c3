"""The channel from COMMAND's Pythons to the watcher: who may speak, who is heard,
nobody waits.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reaper.run import channel
from reaper.run.channel import ADDRESS, Ears, clear, make_folder, remove_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a socket, of a name short enough."""
    made = make_folder()
    yield made
    remove_folder(made)


def test_the_folder_is_found_from_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.chdir(short)
        monkeypatch.setattr(tempfile, "gettempdir", lambda: ".")
        made = make_folder()
        assert made.is_absolute()
        assert made.parent == Path.cwd()
        monkeypatch.chdir("/")
        remove_folder(made)


def hear(ears: Ears, said: int) -> list[bytes]:
    """The first *said* words."""
    end, _ = os.pipe()
    words = ears.words(end)
    return [next(words) for _ in range(said)]


@pytest.fixture
def ears(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ears]:
    """Ears for this process, which the environment names."""
    made = Ears(os.getpid(), folder)
    monkeypatch.setenv(ADDRESS, made.address)
    yield made
    made.close()


def test_a_word_of_this_process_is_heard(ears: Ears) -> None:
    assert channel.say(b"word")
    assert hear(ears, 1) == [b"word"]


def test_a_word_of_a_child_is_heard(ears: Ears) -> None:
    code = "from reaper.run import channel; assert channel.say(b'child')"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE):
        assert hear(ears, 1) == [b"child"]


def test_a_word_of_a_process_that_does_not_come_from_the_command_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as command:
        stranger = Ears(command.pid, folder)
        monkeypatch.setenv(ADDRESS, stranger.address)
        channel.say(b"forged")
        end, ended = os.pipe()
        stop = threading.Timer(0.3, os.close, [ended])
        stop.start()
        assert list(stranger.words(end)) == []
        os.close(end)
        stranger.close()
        command.kill()


def test_nobody_waits_though_nobody_hears_and_a_thousand_have_spoken(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears._sock.listen(5)
    said = [channel.say(b"word") for _ in range(1000)]
    assert said.count(True) == 6  # as many as the kernel queues; the others are lost at once


def test_who_listens_is_compared_with_who_was_named(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, path = ears.address.split(":", 2)
    monkeypatch.setenv(ADDRESS, f"1:{os.geteuid()}:{path}")
    assert not channel.say(b"word")


@pytest.mark.parametrize("address", ["", "nonsense", "1:2", "a:b:/c", "1:0:/no/such/socket"])
def test_an_address_that_cannot_be_used_loses_the_word(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS, address)
    assert not channel.say(b"word")


def test_only_who_was_told_the_name_finds_the_socket(ears: Ears, folder: Path) -> None:
    name = ears.address.rpartition("/")[2]
    assert len(name) >= 22  # 128 bits
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711  # nobody else may list it
    assert name not in Path("/proc/net/unix").read_text()


def test_who_connects_and_says_nothing_keeps_nobody_from_speaking(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MOST_WAITING", 2)
    silent = []
    for _ in range(5):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(ears.address.split(":", 2)[2])
        silent.append(sock)
    assert channel.say(b"word")
    assert hear(ears, 1) == [b"word"]
    for sock in silent:
        sock.close()


def test_the_folder_of_a_watcher_that_was_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    socks = []
    for name, file in (("dead", "x"), ("begins", "s"), ("lives", "x")):
        (tmp_path / f"reaper-run-{name}").mkdir()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.bind(f"reaper-run-{name}/{file}")
        socks.append(sock)
    socks[0].close()
    socks[2].listen()
    clear(Path())
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["reaper-run-begins", "reaper-run-lives"]
    for sock in socks:
        sock.close()


def test_a_socket_has_its_last_name_only_once_it_listens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a `reaper run` that starts beside it takes it for one that was left."""
    seen = []
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(path))
        seen.append(path.name)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    Ears(os.getpid(), folder).close()
    assert seen == ["s"]
