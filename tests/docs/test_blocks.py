"""Every code block of six pages runs as it is printed, or says here why it cannot.

Ports, folders and names that a page leaves to its reader are put in; nothing else is.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import trio
from pyarrow.parquet import read_table

import reaper.asyncio
import reaper.threads
import reaper.trio
from reaper.__main__ import main
from reaper.pipeline.losses.formats import KNOWN
from reaper.testing import Client
from reaper.testing.on_asyncio import KeeperStage
from reaper.testing.on_trio import closings
from scripts.serving import free_port, serving
from tests.docs.test_readme import SERVERS
from tests.helpers.pipeline_traffic import write
from tests.helpers.program_trials import connect, rest
from tests.helpers.server_process import installed
from tests.pipeline.test_losses import ASKED, written

ROOT = Path(__file__).parent.parent.parent
HOST = "127.0.0.1"
README, GUIDE, TUTORIAL, UVICORN, PIPELINE, KEEPER = NAMES = (
    "README.md",
    "docs/guide.md",
    "docs/tutorial.md",
    "docs/uvicorn.md",
    "docs/pipeline.md",
    "docs/keeper.md",
)
PAGES = {name: (ROOT / name).read_text() for name in NAMES}
BLOCK = re.compile(
    r"^```\w*\n(.*?)^```$|(?<=\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)", re.MULTILINE | re.DOTALL
)

IN_TASKS = "import asyncio\nimport reaper.asyncio\n\nclass Sessions"
MAKES_PROCESSES = "import asyncio\n\nimport reaper.asyncio\n\n\nasync def make"
TOUCHED = "import asyncio\n\nimport reaper.asyncio\n\npackets"
WITH_A_JOURNAL = "import asyncio\n\nimport reaper.asyncio\nfrom reaper.journal"
HERE = {
    (README, "uvicorn app:app"): "one flag",
    (README, "reaper run"): "one command",
    (README, "async with reaper.asyncio.open_keeper"): "one block",
    (GUIDE, "finally:"): "saved at a close",
    (GUIDE, "async def echo(plain)"): "TLS on trio",
    (UVICORN, "pip install '.[uvicorn]'"): "one flag",
    (UVICORN, "time nc"): "one flag",
    (UVICORN, "REAPER_TIMEOUTS_HEADERS"): "settings in the environment",
    (UVICORN, "pip install zttp"): "HTTP/2",
    (UVICORN, "app.mount"): "one flag",
    (PIPELINE, "python -m reaper.pipeline audit"): "an hour",
    (PIPELINE, "$ python -m reaper.pipeline losses"): "losses",
    (PIPELINE, "from pathlib import Path"): "a question of your own",
    (GUIDE, IN_TASKS): "a session without a socket",
    (KEEPER, MAKES_PROCESSES): "the keeper's program",
    (KEEPER, TOUCHED): "a session without a socket",
    (KEEPER, "await reaper.asyncio.serve_status"): "look at it",
    (KEEPER, "await nursery.start(reaper.trio.serve_status"): "look at it",
    (KEEPER, "reaper.threads.serve_status"): "look at it",
    (KEEPER, WITH_A_JOURNAL): "the keeper's journal",
    (KEEPER, "from reaper.asyncio import open_keeper"): "try it",
}
"""The page and the beginning of a block -> the tests below that run it, in a word."""
IN_THE_TUTORIAL = "test_readme: the tutorial leaks, then holds, then leaves a journal"
WITH_SPARK = "tests/pipeline/test_notebook.py: the blocks of the page"
ELSEWHERE = {
    (GUIDE, "import reaper\n"): "test_readme: what the program without a framework prints",
    (GUIDE, "context = ssl"): "test_readme: the guide's server with TLS",
    (TUTORIAL, "import trio\n"): IN_THE_TUTORIAL,
    (TUTORIAL, "python leaky.py"): IN_THE_TUTORIAL,
    (TUTORIAL, "python guarded.py"): IN_THE_TUTORIAL,
    (TUTORIAL, "python logged.py"): IN_THE_TUTORIAL,
    (TUTORIAL, "connections  300"): IN_THE_TUTORIAL,
    (TUTORIAL, "reaper pipeline audit"): IN_THE_TUTORIAL,
    (TUTORIAL, "reaper pipeline report"): IN_THE_TUTORIAL,
    (GUIDE, "[timeouts]"): "test_pages: the settings on a page pass check",
    (UVICORN, "[timeouts]"): "test_pages: the settings on a page pass check",
    (PIPELINE, "log_format losses"): "tests/pipeline/test_losses.py: a real nginx writes it",
    (PIPELINE, "import reaper.pipeline"): WITH_SPARK,
    (PIPELINE, "kept = connections"): WITH_SPARK,
    (PIPELINE, "rows = reaper.pipeline"): WITH_SPARK,
}
"""The same -> the test that runs it."""
CANNOT = {
    (TUTORIAL, "python3 -m venv"): "asks a package index; tests/house/test_packaging.py installs",
    (README, "make demo"): "takes both processors; tests/scripts/test_demo.py has a small one",
}
"""The same -> why no test runs it. Of the blocks above, `pip install` and `datasette`,
which is none of our packages, are left out for that reason.
"""


def blocks(page: str) -> list[str]:
    """The code blocks of *page*, fenced and indented, as a reader copies them."""
    return [
        fenced or re.sub(r"^ {4}", "", indented, flags=re.MULTILINE)
        for fenced, indented in BLOCK.findall(PAGES[page])
    ]


def block(page: str, begins: str) -> str:
    """The one block of *page* that begins so."""
    (text,) = (text for text in blocks(page) if text.startswith(begins))
    return text


def test_every_block_of_six_pages_is_run_or_says_why_not() -> None:
    named = [*HERE, *ELSEWHERE, *CANNOT]
    servers = set(SERVERS)
    new = [
        (page, text.splitlines()[0])
        for page in PAGES
        for text in blocks(page)
        if (page, text) not in servers
        and not any(page == where and text.startswith(begins) for where, begins in named)
    ]
    assert new == []
    for page, begins in named:
        assert any(text.startswith(begins) for text in blocks(page)), (page, begins)


@pytest.mark.parametrize("page", [GUIDE, KEEPER])
def test_each_python_block_of_the_guide_and_of_the_keepers_page_is_whole(page: str) -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    assert len(programs) >= 4
    for program in programs:
        assert re.match("import |from ", program)
        compile(program, page, "exec")


# ---- a keeper


def test_the_keepers_programs_keep_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    program = block(KEEPER, MAKES_PROCESSES)
    names: dict[str, Any] = {}
    exec(program, names)
    assert capsys.readouterr().out == "b'hello\\n'\n"
    ended = []

    async def end(key: str, thing: str, reason: str) -> None:
        ended.append((key, thing, reason))

    first = indent(block(README, "async with reaper.asyncio.open_keeper"), "    ")
    names = {"reaper": reaper, "make": str.upper, "end": end, "key": "a"}
    exec(f"async def main():\n{first}", names)
    asyncio.run(names["main"]())
    assert ended == [("a", "A", "drain")]


@pytest.mark.slow
def test_top_shows_a_keeper_by_the_line_of_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    (asynchronous,) = block(KEEPER, "await reaper.asyncio.serve_status").splitlines()
    (threaded,) = block(KEEPER, "reaper.threads.serve_status").splitlines()
    assert "`reaper top --connect 127.0.0.1:9300`" in PAGES[KEEPER]
    seen = []

    def top(port: int) -> None:
        command = [sys.executable, "-m", "reaper", "top", "--connect", f"127.0.0.1:{port}"]
        seen.append(subprocess.check_output([*command, "--once"], cwd=ROOT, text=True))

    async def on_asyncio() -> None:
        async with (
            reaper.asyncio.open_keeper(str.upper, lambda *_: None) as keeper,
            keeper.use("a"),
        ):
            port = free_port()
            names: dict[str, Any] = {"reaper": reaper, "keeper": keeper}
            line = asynchronous.replace("9300", str(port))
            exec(f"async def serve():\n    return {line}", names)
            async with await names["serve"]():
                await asyncio.to_thread(top, port)

    async def on_trio() -> None:
        async with (
            reaper.trio.open_keeper(str.upper, lambda *_: None) as keeper,
            keeper.use("a"),
            trio.open_nursery() as nursery,
        ):
            port = free_port()
            names: dict[str, Any] = {"reaper": reaper, "keeper": keeper, "nursery": nursery}
            line = block(KEEPER, "await nursery.start").replace("9300", str(port))
            exec(f"async def serve():\n    return {line}", names)
            await names["serve"]()
            await trio.to_thread.run_sync(top, port)
            nursery.cancel_scope.cancel()

    asyncio.run(on_asyncio())
    trio.run(on_trio)
    with reaper.threads.open_keeper(str.upper, lambda *_: None) as keeper, keeper.use("a"):
        port = free_port()
        line = threaded.replace("9300", str(port))
        server = eval(line, {"reaper": reaper, "keeper": keeper})
        top(port)
        server.shutdown()
        server.server_close()
    assert len(seen) == 3
    for picture in seen:
        assert "open 1" in picture


def test_a_keeper_writes_the_journal_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(block(KEEPER, WITH_A_JOURNAL), {})
    assert capsys.readouterr().out.splitlines() == [
        "a session of alice is used",
        "a session of alice is ended: drain",
    ]
    (file,) = (tmp_path / "journal").glob("*.parquet")
    kinds = read_table(file, columns=["kind"]).to_pydict()["kind"]
    assert [kind for kind in kinds if kind in ("open", "close_app")] == ["open", "close_app"]


def test_reapers_keeper_passes_the_trial_of_its_page(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "reaper")
    exec(block(KEEPER, "from reaper.asyncio import open_keeper"), {})
    assert capsys.readouterr().out == "it keeps them all\n"
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("page", "begins", "said"),
    [(GUIDE, IN_TASKS, "silent: {}\n"), (KEEPER, TOUCHED, "ended: {} idle 8\n")],
)
def test_a_session_without_a_socket_ends_when_no_packet_comes(
    page: str, begins: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In virtual time. Who speaks within the page's thirty seconds stays, also if that
    is during a stall.
    """
    program = block(page, begins)
    assert "idle=30)" in program
    port = free_port()
    names: dict[str, Any] = {}
    exec(program.replace("9999", str(port)), names)
    stage = KeeperStage()

    async def tried() -> None:
        loop = stage.loop
        serving = loop.create_task(names["main"]())
        await asyncio.sleep(1)  # it listens
        peers = [
            (await loop.create_datagram_endpoint(asyncio.DatagramProtocol, (HOST, 0), (HOST, port)))
            for _ in range(2)
        ]
        speaker, other = (transport for transport, _ in peers)
        speaks, once = (
            "{} {}".format(*each.get_extra_info("sockname")) for each in (speaker, other)
        )
        other.sendto(b"once")
        for _ in range(6):
            speaker.sendto(b"again")
            await asyncio.sleep(20)
        out = capsys.readouterr().out
        assert once in out
        speaker.sendto(b"again")
        await asyncio.sleep(29.5)
        speaker.sendto(b"again, and the loop stands still before it reads that")
        stage.stall(20)
        await asyncio.sleep(29)
        out += capsys.readouterr().out
        assert speaks not in out
        await asyncio.sleep(3)
        assert capsys.readouterr().out == said.format(speaks)
        speaker.close()
        other.close()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    stage.played(tried)


# ---- the guide


def test_what_the_guide_saves_at_a_close_is_saved() -> None:
    saved: list[str] = []

    async def save(state: str) -> None:
        await trio.sleep(0.5)
        saved.append(state)

    names: dict[str, Any] = {"trio": trio, "save": save, "state": "all"}
    body = "try:\n    async for data in stream: pass\n" + block(GUIDE, "finally:")
    exec(f"async def handler(stream):\n{indent(body, '    ')}", names)
    (closing,) = closings(names["handler"], [Client()], idle=30, tick=1)
    assert closing.at is not None
    assert 30 <= closing.at <= 31.5
    assert saved == ["all"]


def test_the_guides_server_with_tls_on_trio_closes_a_silent_client(
    certificate: tuple[str, str],
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=certificate[0])
    names: dict[str, Any] = {"trio": trio, "context": context}
    text = block(GUIDE, "async def echo(plain)")
    assert "idle=30" in text
    exec(text.replace("idle=30", "idle=0.3"), names)

    async def serve() -> None:
        async with reaper.trio.open_reaper(tick=0.05) as names["r"], trio.open_nursery() as nursery:
            listeners = await nursery.start(
                partial(trio.serve_tcp, names["echo"], 0, host="127.0.0.1")
            )
            address = listeners[0].socket.getsockname()
            async with trio.SSLStream(
                await trio.open_tcp_stream(*address),
                trusting,
                server_hostname="localhost",
                https_compatible=True,
            ) as client:
                await client.send_all(b"x")
                assert await client.receive_some(10) == b"x"
                with suppress(trio.BrokenResourceError):
                    assert await client.receive_some(10) == b""
            nursery.cancel_scope.cancel()

    trio.run(serve)


BY_THE_CLASS = "import asyncio\nimport reaper.asyncio\n\nclass Echo(reaper.asyncio.Protocol)"
WATCHED = "import asyncio\nimport reaper.asyncio\n\nasync def main():\n    async with"


def heard_until(program: str, silence: float) -> float:
    """Seconds of virtual time until a server of the guide closed a client that speaks
    whenever it has been silent for so long.
    """
    port = free_port()
    names: dict[str, Any] = {}
    exec(program.replace("8080", str(port)), names)
    stage = KeeperStage()
    found: list[float] = []

    async def tried() -> None:
        serving = stage.loop.create_task(names["main"]())
        await asyncio.sleep(1)  # it listens
        began = stage.now()
        reader, writer = await asyncio.open_connection(HOST, port)
        ended = stage.loop.create_task(reader.read(1))
        while not ended.done() or ended.result():
            if ended.done():
                ended = stage.loop.create_task(reader.read(1))
            await asyncio.wait([ended], timeout=silence)
            if not ended.done():
                writer.write(b"x")
                await asyncio.sleep(0.01)
        found.append(stage.now() - began)
        writer.close()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    stage.played(tried)
    return found[0]


def test_a_protocol_of_the_guides_class_has_thirty_seconds_where_it_says_nothing() -> None:
    program = block(GUIDE, BY_THE_CLASS)
    (line,) = re.findall(r"^    idle = 30 .*\n\n", program, re.MULTILINE)
    assert "without it 30 s hold" in PAGES[GUIDE]
    assert 30 <= heard_until(program.replace(line, ""), 50) <= 32


def test_where_nothing_touches_a_client_that_speaks_is_closed_too() -> None:
    program = block(GUIDE, WATCHED)
    (line,) = re.findall(r"^ *connection\.touch\(\).*\n", program, re.MULTILINE)
    assert 30 <= heard_until(program.replace(line, ""), 10) <= 32


# ---- uvicorn, and reaper run

APPLICATION = """
import reaper.uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("hello"))])
"""


def command(line: str, *more: object) -> tuple[list[str], dict[str, str]]:
    """The words of a shell's *line*, its programs those of this environment, and the
    environment that it sets.
    """
    words = shlex.split(line, comments=True)
    given = [word for word in words if re.match(r"[A-Z_]+=", word)]
    words = words[len(given) :]
    if words[0] == "reaper" or words[0] == "uvicorn":
        words = [sys.executable, "-m", *words]
    environment = (
        os.environ | {"PYTHONPATH": str(ROOT)} | dict(each.split("=", 1) for each in given)
    )
    return [*words, *map(str, more)], environment


def one_flag(folder: Path) -> None:
    """As printed, and the page's `time nc`: connect, say nothing, and after 10 seconds
    it closes.
    """
    line = block(UVICORN, "pip install '.[uvicorn]'").splitlines()[1]
    assert f"{line}\n" == block(README, "uvicorn app:app")
    page = block(UVICORN, "time nc")
    (bash,) = re.findall(r"in bash: (.*)$", page, re.MULTILINE)
    with uvicorn(line, folder) as server:
        began = time.monotonic()
        dialled = bash.replace("8000", str(server.port))
        subprocess.run(["bash", "-c", dialled], check=True, capture_output=True, timeout=60)
        assert time.monotonic() - began >= 10
        with urllib.request.urlopen(f"http://{server.target}/metrics/") as answer:
            assert b'reaper_reaped_total{reason="first_byte"' in answer.read()


def settings(folder: Path) -> None:
    """Half a head is answered 408 after the five seconds of the page; its log is as the
    page says.
    """
    line = block(UVICORN, "REAPER_TIMEOUTS_HEADERS").strip()
    (logged,) = re.findall(r"`127\.0\.0\.1:50312 - (closed: [^`]+)`", PAGES[UVICORN])
    pattern = re.escape(logged).replace(r"10s", "5s").replace(r"9\.2", r"\d\.\d")
    with uvicorn(line, folder) as server, connect(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert rest(client).startswith(b"HTTP/1.1 408 ")
        assert re.search(pattern, server.said()), server.said()


def http2(folder: Path) -> None:
    """It speaks HTTP/2 to whoever says its preface: SETTINGS come first."""
    line = block(UVICORN, "pip install zttp").splitlines()[1]
    with uvicorn(line, folder) as server, connect(server) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert client.recv(100)[3] == 4


def one_command(folder: Path) -> None:
    """Redis below `reaper run`, as printed, closes a silent client from outside."""
    first, second = block(README, "reaper run").splitlines()
    assert first == "reaper run -- datasette data.db"
    port = free_port()
    words, environment = command(second.replace("5m", "2s"), "--port", port, "--save", "")
    installed(words[-5])
    with (
        serving(words, folder / "log", port=port, cwd=folder, environment=environment) as server,
        connect(server) as client,
    ):
        began = time.monotonic()
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        assert rest(client) == b""
        assert time.monotonic() - began >= 2


def uvicorn(line: str, folder: Path) -> Any:
    """uvicorn as *line* starts it, on a free port."""
    (folder / "app.py").write_text(APPLICATION + block(UVICORN, "app.mount"))
    port = free_port()
    words, environment = command(line, "--port", port)
    return serving(words, folder / "log", port=port, cwd=folder, environment=environment)


SERVED = (one_flag, settings, http2, one_command)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[None]]]:
    """All at once, for they wait."""
    with ThreadPoolExecutor(len(SERVED)) as pool:
        yield [pool.submit(each, tmp_path_factory.mktemp(each.__name__)) for each in SERVED]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SERVED)), ids=[each.__name__ for each in SERVED])
def test_a_command_of_these_pages_guards_its_server(
    served: list[Future[None]], number: int
) -> None:
    served[number].result()


# ---- the pipeline


def test_the_pipelines_commands_answer_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = block(PIPELINE, "$ python -m reaper.pipeline losses")
    line, *printed = page.splitlines()
    assert block(PIPELINE, "log_format losses").strip() in KNOWN["nginx"].how
    written(tmp_path / "losses.log", "nginx", ASKED)
    log = (tmp_path / "losses.log").read_text().replace("10.0.0.1:80", "127.0.0.1:8000")
    (tmp_path / "losses.log").write_text(log)
    words = line.replace("/var/log/nginx/", "").split()[3:]
    assert main(["pipeline", *words[1:], "--quiet"]) == 1
    assert capsys.readouterr().out.splitlines()[: len(printed)] == printed

    write(tmp_path / "LAKE", connections=20)
    (tmp_path / "servers.txt").write_text("web-1  # not one of those\n")
    words = block(PIPELINE, "python -m reaper.pipeline audit").split()[3:]
    assert main(["pipeline", *words, "--quiet"]) == 1
    assert "web-1" in capsys.readouterr().out

    write(tmp_path / "journal", connections=20)
    exec(block(PIPELINE, "from pathlib import Path"), {})
    assert "('open', 20)" in capsys.readouterr().out
