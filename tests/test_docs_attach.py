"""The page about attach: its commands exist, its program runs, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attach_servers import PATIENCE, free_port, until

from reaper.attach import command
from reaper.config.flags import Parser

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "attach.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every call of attach on the page, in shell, YAML and unit files."""
    text = PAGE.replace("\\\n", " ").replace(", ", " ").replace('"', "")
    return re.findall(r"reaper attach (--[^\n`\]]*)", text)


@pytest.mark.parametrize("flags", commands())
def test_each_command_on_the_page_is_one_that_attach_takes(flags: str) -> None:
    parser = Parser()
    subparsers = parser.add_subparsers()
    command.add_commands(subparsers)
    parsed = parser.parse_args(["attach", *shlex.split(flags, comments=True)])
    assert parsed.listen or parsed.pid


def test_the_flags_in_the_tables_exist() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "reaper", "attach", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"`(--[a-z-]+)", PAGE)) - {"--idle-time"}
    assert len(named) > 12
    assert not [flag for flag in named if not re.search(rf"{flag}\b", said)]


@pytest.mark.slow
def test_the_program_on_the_page_ends_a_silent_connection(tmp_path: Path) -> None:
    (program,) = blocks("python")
    port = free_port()
    script = program.replace("8000", str(port)).replace("idle=30.0", "idle=0.5, tick=0.1")
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) as server:
        try:
            until(lambda: connects(port), "the program listens")
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.settimeout(PATIENCE)
                spoke = time.monotonic()
                client.sendall(b"hello")
                assert client.recv(10) == b"hello"
                assert client.recv(10) == b""
                assert time.monotonic() - spoke >= 0.5
        finally:
            server.kill()


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
