"""The programs of README and docs run over real sockets, and what these pages name
exists.
"""

from __future__ import annotations

import os
import pkgutil
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import indent

import pytest
from pyarrow.parquet import read_table
from websockets.sync.client import connect as open_websocket

from reaper.__main__ import main
from reaper.config import OPTIONS
from reaper.config.balancers import BALANCERS
from scripts.serving import Server, free_port, serving
from tests.helpers.program_trials import connect, rest, trial

ROOT = Path(__file__).parent.parent.parent
MARKDOWN = (
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    ROOT / "examples" / "README.md",
    ROOT / "server_example" / "README.md",
)
# Those of uvicorn.md and attach.md have tests of their own; the journal's is no server.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted(MARKDOWN)
    if path.stem not in ("CHANGELOG", "uvicorn", "attach", "journal")
}
SNIPPETS = [
    (page, text)
    for page in PAGES
    for text in re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)
]
SERVERS = [(page, text) for page, text in SNIPPETS if "8080" in text]
# The tutorial's first server closes no client, and a WebSocket is no echo: these have
# tests of their own.
ECHOES = [
    (page, text) for page, text in SERVERS if "import reaper" in text and "wsproto" not in text
]


def started(text: str, directory: Path, *, idle: int = 1) -> AbstractContextManager[Server]:
    """A program of the documentation, with a timeout of one second, where nothing else
    listens.
    """
    port = free_port()
    text = re.sub(r"\bidle( ?= ?)(30|2)\b", rf"idle\g<1>{idle}", text.replace("8080", str(port)))
    text = text.replace("grace=5", "grace=1").replace("9180", "0")
    (directory / "reaper.toml").write_text('[timeouts]\nidle = "1s"\n')
    (directory / "server.py").write_text(text)
    environment = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "server.py"]
    return serving(command, directory / "log", port=port, cwd=directory, environment=environment)


def survives(text: str, directory: Path) -> None:
    """The trial of a program of the documentation, and how it ends."""
    with started(text, directory) as server:
        trial(server, 1.0)
        with connect(server) as idle:
            idle.sendall(b"x\n")
            assert idle.recv(1000)
            graceful = "SIGTERM" in text
            os.kill(server.pid, signal.SIGTERM if graceful else signal.SIGINT)
            assert rest(idle) == b""
        assert server.end() == 0 or not graceful
        assert "Traceback" not in server.said() or not graceful
        assert ("closed: idle" in server.said()) == ("print(" in text)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[None]]]:
    """All programs at once, for they spend their time waiting."""
    with ThreadPoolExecutor(len(ECHOES)) as pool:
        yield [
            pool.submit(survives, text, tmp_path_factory.mktemp(f"program-{n}"))
            for n, (_, text) in enumerate(ECHOES)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", range(len(ECHOES)), ids=[f"{page}-{n}" for n, (page, _) in enumerate(ECHOES)]
)
def test_a_program_of_the_documentation_survives_its_clients_and_closes_the_silent(
    trials: list[Future[None]], number: int
) -> None:
    trials[number].result()


@pytest.mark.slow
def test_the_guides_server_with_tls_closes_a_silent_client(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    """Made as the page says: one more import, and its lines in place of the one that
    listens.
    """
    (plain,) = (text for _, text in SERVERS if "await reaper.asyncio.start_server(echo" in text)
    (lines,) = re.findall(
        r"^```\n(context = .*?)```", PAGES["docs/guide.md"], re.MULTILINE | re.DOTALL
    )
    with_tls = re.sub(r"^    server = .*\n", indent(lines, "    "), plain, flags=re.MULTILINE)
    for source, name in zip(certificate, ("cert.pem", "key.pem"), strict=True):
        shutil.copy(source, tmp_path / name)
    text = "import ssl\n" + with_tls.replace("8443", "8080")
    context = ssl.create_default_context(cafile=certificate[0])
    with (
        started(text, tmp_path) as server,
        context.wrap_socket(connect(server), server_hostname="localhost") as client,
    ):
        client.sendall(b"x\n")
        assert client.recv(1000) == b"x\n"
        assert rest(client) == b""


@pytest.mark.slow
def test_the_websocket_server_closes_the_client_that_answers_no_ping_and_no_other(
    tmp_path: Path,
) -> None:
    (text,) = (text for _, text in SERVERS if "wsproto" in text)
    with (
        started(text, tmp_path) as server,
        open_websocket(f"ws://{server.target}/") as answers,
        connect(server) as mute,
    ):
        mute.sendall(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert rest(mute).endswith(b"\x89\x00")  # a ping, and after its grace the end
        time.sleep(
            1.5
        )  # longer than timeout and grace together; the client's own thread answers the pings
        answers.send("still here")
        assert answers.recv(timeout=20) == "still here"


@pytest.mark.slow
def test_the_tutorial_leaks_then_holds_then_leaves_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its servers and its load generator, as its reader starts them; only the port is
    another.
    """
    page = PAGES["docs/tutorial.md"]
    (line,) = set(re.findall(r"^    reaper-loadgen (run .*)$", page, re.MULTILINE))
    verdicts, said, folder = [], dict[str, str](), tmp_path
    for name, text in zip(
        ["leaky", "guarded", "logged"],
        re.findall(r"```python\n(.*?)```", page, re.DOTALL),
        strict=True,
    ):
        assert f"`{name}.py`" in page
        for attempt in range(4):  # the generator says so when the machine paused
            folder = tmp_path / f"{name}-{attempt}"
            folder.mkdir()
            with started(text, folder, idle=2) as server:
                words = line.replace("127.0.0.1:8080", server.target).split()
                command = [sys.executable, "-m", "loadgen", *words, "--quiet"]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
                os.kill(server.pid, signal.SIGINT)
                server.end()
            said[name] = done.stdout
            if "INCONCLUSIVE" not in done.stdout:
                break
        verdicts.append((name, done.returncode, re.findall(r"verdict +(\w+)", done.stdout)))
    assert verdicts == [("leaky", 1, ["FAIL"]), ("guarded", 0, ["PASS"]), ("logged", 0, ["PASS"])]
    (file,) = (folder / "journal").glob("*.parquet")
    assert read_table(file, columns=["kind"]).to_pydict()["kind"].count("reap") == 150
    for name, printed in zip(said, re.findall(r"```text\n(.*?)```", page, re.DOTALL), strict=False):
        for line in printed.splitlines():
            shown = re.sub(r"\d+ms", r"[\\d.]+m?s", re.sub(r"([().])", r"\\\1", line))
            assert re.search(f"^{shown}$", said[name], re.MULTILINE), (name, line)
    # The page says what the advice is, and that the settings are not written then.
    (words,) = re.findall(r"^    reaper (pipeline advise .*)$", page, re.MULTILINE)
    monkeypatch.chdir(folder)
    status, out = main([*words.split(), "--quiet"]), capsys.readouterr().out
    assert (status, "  at least 2." in out) == (1, True), out
    written = {path.name for path in (folder / "advice").iterdir()}
    assert written == {"advice.txt", "advice.json"}
    assert "`at least 2.5 s`" in page
    assert "its exit status is 1" in page
    for words in re.findall(r"^    reaper (pipeline (?:audit|report) .*)$", page, re.MULTILINE):
        status, out = main([*words.split(), "--quiet"]), capsys.readouterr().out
        assert (status, "audit: PASS" in out or "audit PASS" in out) == (0, True), out
    assert "`audit: PASS`" in page
    assert (folder / "report" / "report.html").is_file()


def test_the_page_about_proxies_knows_what_check_knows() -> None:
    page = (ROOT / "docs" / "howto" / "proxies.md").read_text()
    rows = re.findall(r"^\| [^|]* \| `([\w-]+)` \| (\d+) (s|min|h)\b", page, re.MULTILINE)
    seconds = {
        name: int(number) * {"s": 1, "min": 60, "h": 3600}[unit] for name, number, unit in rows
    }
    assert seconds == {name: balancer.idle for name, balancer in BALANCERS.items()}


def test_the_core_needs_no_framework_and_prints_what_the_comment_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (text,) = (text for _, text in SNIPPETS if text.startswith("import reaper\n"))
    exec(text, {})
    said = re.search(r"<!-- prints: (.*?) -->", PAGES["docs/guide.md"])
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


@pytest.mark.filterwarnings("ignore:reaper:DeprecationWarning")  # pages name what goes
@pytest.mark.parametrize(
    "path", sorted(str(p.relative_to(ROOT)) for p in MARKDOWN if p.stem != "CHANGELOG")
)
def test_names_and_files_that_pages_mention_exist(path: str) -> None:
    text = (ROOT / path).read_text()
    for name in set(re.findall(r"`(reaper(?:\.[A-Za-z_]\w*)+)", text)) - {"reaper.toml", *OPTIONS}:
        pkgutil.resolve_name(name)
    folders = "reaper|server_example|loadgen|scripts|benchmarks|tests|examples|docs"
    for file in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
        assert (ROOT / file).exists(), file


def test_the_map_of_contributing_has_every_folder_of_tests_and_no_other() -> None:
    named = set(re.findall(r"`tests/([a-z_]+)/`", PAGES["CONTRIBUTING.md"]))
    assert named == {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}


def test_the_map_of_contributing_has_every_test_that_lies_in_no_room() -> None:
    named = set(re.findall(r"`tests/(test_[a-z_]+\.py)`", PAGES["CONTRIBUTING.md"]))
    assert named == {path.name for path in (ROOT / "tests").glob("test_*.py")}


def test_commands_of_the_makefile_exist_and_so_does_what_they_run() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in MARKDOWN:
        for target in re.findall(r"(?:`|^    )make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert f"\n{target}:" in makefile, target
    modules = set(re.findall(r"python -m ([a-z_.]+)", makefile)) - {
        "venv",
        "pytest",
        "sphinx",
        "build",
        "coverage",
    }
    assert "benchmarks" in modules
    for name in modules:
        path = ROOT / name.replace(".", "/")
        assert (path / "__main__.py").exists() or path.with_suffix(".py").exists(), name


def commands() -> dict[tuple[str, ...], set[str]]:
    """`python -m` commands of all pages, without their arguments -> the flags that the
    pages give them.
    """
    found: dict[tuple[str, ...], set[str]] = {}
    for page in MARKDOWN:
        if page.stem == "CHANGELOG":
            continue
        used = r"python -m ((?:reaper|loadgen|server_example|benchmarks|scripts)[\w.]*)([^\n`#]*)"
        text = page.read_text().replace("\n    reaper-loadgen ", "\n    python -m loadgen ")
        text = text.replace("\n    reaper pipeline ", "\n    python -m reaper.pipeline ")
        text = re.sub("`(?:(?=reaper )|reaper-(?=loadgen ))", "`python -m ", text)
        for module, words in re.findall(used, text):
            # What follows ` -- ` is of somebody else's command.
            flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", words.partition(" -- ")[0]))
            first = next(iter(words.split()), "")
            for command in first.split("|") if re.fullmatch(r"[a-z][a-z|-]*", first) else [""]:
                found.setdefault((module, command) if command else (module,), set()).update(flags)
    return found


@pytest.mark.slow
def test_commands_and_flags_that_pages_show_exist() -> None:
    shown = commands()
    assert len(shown) > 20

    def wrong(command: tuple[str, ...]) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command, "--help"], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode:
            return f"{command}: {done.stderr.splitlines()[-1:]}"
        return " ".join(f"{command}: {flag}" for flag in shown[command] if flag not in done.stdout)

    with ThreadPoolExecutor(2) as pool:
        assert [text for text in pool.map(wrong, shown) if text] == []


def test_the_first_screen_says_what_is_brought_along() -> None:
    screen = (ROOT / "README.md").read_text().split("\n## ")[0]
    code = "import sys; before = set(sys.modules); import reaper; print(*set(sys.modules) - before)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ours = [name for name in loaded if name.partition(".")[0] == "reaper"]
    assert f"loads {len(ours)} modules" in " ".join(screen.split())
    foreign = {name.partition(".")[0] for name in loaded} - {"reaper"} - sys.stdlib_module_names
    assert not foreign
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert len(screen.splitlines()) <= 30
