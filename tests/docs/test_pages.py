"""What the pages show besides servers: settings, defaults, reasons, a scenario, a
proxy, a journal, attach, extras.

`test_readme` runs the servers.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table

from loadgen.plan.scenario import load_scenario
from reaper.__main__ import main
from reaper.attach import command
from reaper.config import OPTIONS
from reaper.config.flags import Parser
from scripts.serving import free_port, serving
from scripts.tools import NGINX
from tests.docs.test_readme import MARKDOWN
from tests.helpers.server_process import installed, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in MARKDOWN}
SETTINGS = ("docs/guide.md", "docs/timeouts.md", "docs/uvicorn.md", "docs/howto/proxies.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def test_no_table_of_a_page_has_more_than_eight_columns() -> None:
    rule = re.compile(r"\|(?: ?:?-+:? ?\|)+")
    heads = [
        (name, line)
        for name, page in PAGES.items()
        for line in page.splitlines()
        if rule.fullmatch(line)
    ]
    assert len(heads) > 50
    assert [name for name, head in heads if head.count("|") - 1 > 8] == []


def test_each_row_of_a_table_stands_below_its_head() -> None:
    """A row that follows an empty line is printed as it is typed."""
    code = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
    alone = re.compile(r"\n *\n( *\|.*\|)\n(?! *\|[ :|-]+\|$)", re.MULTILINE)
    found = {name: alone.findall(code.sub("", page)) for name, page in PAGES.items()}
    assert {name: rows for name, rows in found.items() if rows} == {}


def test_no_page_asks_an_index_for_reaper_which_is_on_none() -> None:
    """The page on installing says why what an error names works all the same."""
    asks = [
        name for name, page in PAGES.items() if re.search("pip install ['\"]?idle-reaper", page)
    ]
    assert [name for name in asks if name not in ("CHANGELOG.md", "docs/install.md")] == []


def test_the_prose_of_the_pages_fits_into_88_columns() -> None:
    drawn = re.compile(
        r"^```.*?^```$|^<!-- [^>]*do not edit -->$.*?^<!-- end", re.MULTILINE | re.DOTALL
    )
    apart = ("    ", "|", "   |", "!", "<!--")  # code, tables, pictures
    for name, page in PAGES.items():
        if name != "CHANGELOG.md" and not page.startswith("<!-- Written by"):
            prose = drawn.sub("", page).splitlines()
            assert not [ln for ln in prose if len(ln) > 88 and not ln.startswith(apart)], name


def test_the_program_about_the_journal_writes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("docs/journal.md", "python")
    exec(program, {})
    (file,) = (tmp_path / "journal").glob("*.parquet")
    kinds = read_table(file, columns=["kind"]).to_pydict()["kind"]
    assert [kind for kind in kinds if kind != "config"] == ["open", "close_peer", "drain"]


def test_the_test_on_the_page_about_testing_passes() -> None:
    (program,) = blocks("docs/reference/testing.md", "python")
    names: dict[str, Callable[[], None]] = {}
    exec(program, names)
    names["test_a_silent_client_is_closed_and_one_that_speaks_stays"]()


@pytest.mark.parametrize("page", SETTINGS)
def test_the_settings_on_a_page_pass_check(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reaper.toml"
    (text,) = blocks(page, "toml")
    path.write_text(text)
    assert main(["check", str(path)]) == 0, capsys.readouterr()


def test_the_defaults_on_a_page_are_those_in_force() -> None:
    shown = [
        row
        for text in PAGES.values()
        for row in re.findall(r"^\| `([a-z_]+\.\w+)` \| (\w+) \|", text, re.MULTILINE)
    ]
    (settings,) = blocks("docs/uvicorn.md", "toml")
    shown += [
        (f"timeouts.{key}", value) for key, value in tomllib.loads(settings)["timeouts"].items()
    ]
    assert len(shown) > 12
    for path, value in shown:
        assert OPTIONS[path].kind.read(value) == OPTIONS[path].default, path


def test_each_symptom_leads_to_a_page_that_begins_with_it() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| .* \| \[[^]]+\]\(([\w/-]+\.md)\) \|$",
        PAGES["docs/symptoms.md"],
        re.MULTILINE,
    )
    assert len(rows) > 10
    for message, page in rows:
        first = " ".join(PAGES[f"docs/{page}"].split("\n\n")[1].split())
        assert f"`{message}`" in first, message


def test_readers_of_the_readme_come_by_the_symptoms_first() -> None:
    table = PAGES["README.md"].partition("## Where to go from here")[2]
    first = re.findall(r"\]\((docs/[\w/-]+\.md)\)", table)[0]
    assert first == "docs/symptoms.md"


def test_the_clients_on_the_page_about_nat_ask_before_a_minute_is_over() -> None:
    (program,) = blocks("docs/howto/nat.md", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    seen: list[int] = []

    async def asked(url: str) -> None:
        connector = names["aiohttp"].TCPConnector(socket_factory=names["kept_alive"])
        async with names["aiohttp"].ClientSession(connector=connector) as session:
            await session.get(url)
            seen.append(keep_alive_timer(port))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=answering, args=(listening, 3), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{port}/"
        for client in (names["client"], names["session"]):
            with client:
                client.get(url)
                seen.append(keep_alive_timer(port))
        asyncio.run(asked(url))
        thread.join()
    assert all(0 < seconds <= 60 for seconds in seen)
    assert len(seen) == 3


CLIENTS = {
    "curl": ("curl", "-s", "http://127.0.0.1:{port}/"),
    "fetch": ("node", "-e", "fetch('http://127.0.0.1:{port}/')"),
    "setKeepAlive(true, 60000)": (
        *("node", "-e"),
        "const s = require('net').connect({port}, '127.0.0.1', () => s.setKeepAlive(true, 60000))",
    ),
}
"""Clients that the page about NAT names, by a word of their row."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_other_clients_on_the_page_about_nat_ask_before_a_minute_is_over(name: str) -> None:
    assert name in PAGES["docs/howto/nat.md"]
    program, *words = CLIENTS[name]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        command = [installed(program), *(word.replace("{port}", str(port)) for word in words)]
        with subprocess.Popen(command) as client:
            with listening.accept()[0]:
                wait_until(lambda: keep_alive_timer(port))
                assert keep_alive_timer(port) <= 60
            client.kill()


def answering(listening: socket.socket, clients: int) -> None:
    """Answer one request of each of *clients*, and keep its connection until it closes
    it.
    """
    for _ in range(clients):
        with listening.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            connection.recv(1)


def keep_alive_timer(port: int) -> int:
    """In how many seconds the kernel asks on the connection to *port*, rounded up; 0:
    it never does.
    """
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, _, timer, *_ = line.split()
        if int(remote.partition(":")[2], 16) == port and state == "01" and timer.startswith("02:"):
            return -(-int(timer[3:], 16) // os.sysconf("SC_CLK_TCK"))
    return 0


def test_the_scenario_on_the_page_is_one(tmp_path: Path) -> None:
    path = tmp_path / "storm.toml"
    (text,) = blocks("docs/loadgen.md", "toml")
    path.write_text(text)
    assert [client.kind for client in load_scenario(str(path)).clients] == ["silent", "chatty"]


def test_nginx_accepts_what_the_page_about_proxies_shows(tmp_path: Path) -> None:
    nginx = shutil.which("nginx")
    if nginx is None:
        pytest.skip("needs nginx (Debian: apt-get install nginx)")
    (text,) = blocks("docs/howto/proxies.md", "nginx")
    assert "listen 80;" in text
    inner = text.replace("listen 80;", f"listen unix:{tmp_path / 'socket'};")
    (tmp_path / "nginx.conf").write_text(
        NGINX.format(folder=tmp_path, main="", most=100, http=inner)
    )
    command: list[str | Path] = [
        nginx,
        "-t",
        "-e",
        tmp_path / "errors",
        "-p",
        tmp_path,
        "-c",
        tmp_path / "nginx.conf",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_extra_that_a_page_names_exists_and_each_is_explained() -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    text = "\n".join(PAGES.values())
    named = {
        name
        for group in re.findall(r"(?:idle-reaper|'\.|/reaper|\.whl\))\[([a-z,]+)\]", text)
        for name in group.split(",")
    }
    assert {"trio", "all", "pipeline", "attach"} <= named <= extras
    table = PAGES["docs/install.md"].partition("| extra | for |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == extras - {
        "all",
        "docs",
        "dev",
    }


SNAPSHOT = """
import gc, logging, os, signal, socket, sys, threading
def looked(connection):
    return [
        [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)],
        gc.get_threshold(), gc.get_freeze_count(), threading.active_count(),
        logging.getLogger().handlers + logging.getLogger("reaper").handlers,
        sys.excepthook, threading.excepthook, len(sys.meta_path),
        [connection.getsockopt(*option) for option in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE),
         (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), (socket.IPPROTO_TCP, socket.TCP_NODELAY))],
        len(os.listdir("/proc/self/fd")),
    ]
"""
ON_ASYNCIO = """
import asyncio, reaper.asyncio
async def served(start, **options):
    seen = asyncio.Queue()
    async def handler(reader, writer):
        await seen.put(looked(writer.get_extra_info("socket")))
        writer.close()
    async with await start(handler, "127.0.0.1", 0, **options) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        found = await seen.get()
        writer.close()
        return found
asked = [asyncio.run(served(asyncio.start_server)), asyncio.run(served(reaper.asyncio.start_server, idle=30))]
"""
ON_TRIO = """
import trio, reaper.trio
async def served(serve, **options):
    found = []
    async def handler(stream):
        found.append(looked(getattr(stream, "socket", None) or stream.stream.socket))
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        async def start(*, task_status):
            await serve(handler, 0, host="127.0.0.1", task_status=task_status, **options)
        (listener,) = await nursery.start(start)
        async with await trio.open_tcp_stream(*listener.socket.getsockname()):
            await trio.sleep_forever()
    return found[0]
asked = [trio.run(served, trio.serve_tcp), trio.run(lambda: served(reaper.trio.serve_tcp, idle=30))]
"""


@pytest.mark.parametrize(("framework", "more"), [(ON_ASYNCIO, 0), (ON_TRIO, 1)])
def test_a_server_of_your_own_changes_nothing_else_of_its_process(
    framework: str, more: int
) -> None:
    """As the guide says: beside the same server without reaper."""
    code = f"{SNAPSHOT}{framework}asked[0][-1] += {more}\nassert asked[0] == asked[1], asked"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "one task more, and one descriptor" in PAGES["docs/guide.md"]


@pytest.mark.slow
def test_the_page_how_it_works_computes_what_it_shows() -> None:
    page = str(ROOT / "docs" / "how-it-works.md")
    results = doctest.testfile(page, module_relative=False, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0
    assert results.attempted > 30


ATTACH = re.findall(
    r"reaper attach (--[^\n`\]]*)", re.sub(r'\\\n|, |"', " ", PAGES["docs/attach.md"])
)


@pytest.mark.parametrize("flags", ATTACH)
def test_each_command_on_the_page_about_attach_is_one_that_attach_takes(flags: str) -> None:
    parser = Parser()
    command.add_commands(parser.add_subparsers())
    parsed = parser.parse_args(["attach", *shlex.split(flags, comments=True)])
    assert parsed.listen or parsed.pid


@pytest.mark.slow
def test_the_program_on_the_page_about_attach_ends_a_silent_connection(tmp_path: Path) -> None:
    (program,) = blocks("docs/attach.md", "python")
    script = program.replace("8000", str(port := free_port())).replace(
        "idle=30.0", "idle=0.5, tick=0.1"
    )
    with (
        serving([sys.executable, "-c", script], tmp_path / "log", port=port) as server,
        socket.create_connection(server.address, timeout=60) as client,
    ):
        spoke = time.monotonic()
        client.sendall(b"hello")
        assert client.recv(10) == b"hello"
        assert client.recv(10) == b""
        assert time.monotonic() - spoke >= 0.5


def test_each_example_is_started_as_its_docstring_says() -> None:
    rows = re.findall(r"^\| `(\w+\.py)` \| `([^`]+)` \|", PAGES["examples/README.md"], re.MULTILINE)
    assert len(rows) > 15
    for name, start in rows:
        said = ast.get_docstring(ast.parse((ROOT / "examples" / name).read_text()))
        assert said is not None
        assert start in said, name
        assert f"{start} --" not in said, name
