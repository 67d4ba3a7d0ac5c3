"""Probing finds out what a server was configured with; foreign servers by name, where
they are installed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loadgen.cli import main
from loadgen.clients import Ended, Speech
from loadgen.plan.behaviours import Behaviour
from loadgen.probe import QUESTIONS, Finding, as_text, granularity, guess, probe, summarise
from loadgen.units import parse_target
from scripts.programs.trial import APPS
from scripts.serving import Server, free_port, serving
from scripts.tools import Missing, nginx
from tests.helpers.listeners import against
from tests.loadgen.test_run import ROOMY, faulty_server, loadgen, passes, run

if TYPE_CHECKING:
    from tests.conftest import Ran

NGINX = """keepalive_timeout 1s; client_header_timeout 1s; keepalive_requests 100000;
server {{ listen 127.0.0.1:{port} backlog=1024; location / {{ return 200 "hello"; }} }}
"""


def server(name: str, folder: Path) -> AbstractContextManager[Server]:
    """A server we did not write, up and answering."""
    port = free_port()
    if name == "nginx":
        try:
            return serving(nginx(folder, NGINX.format(port=port)), folder / "log", port=port)
        except Missing as missing:
            pytest.skip(str(missing))
    options = [
        "--timeout-keep-alive",
        "1",
        "--port",
        str(port),
        "--app-dir",
        str(APPS),
    ]
    return serving([sys.executable, "-m", name, *options, "asgi:app"], folder / "log", port=port)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nginx", "uvicorn"])
def test_probe_finds_the_keep_alive_timeout_of_servers_we_did_not_write(
    name: str, tmp_path: Path
) -> None:
    with server(name, tmp_path) as running:
        done = loadgen(
            "probe", "--target", running.target, "--wait", "2s", "--trials", "4", "--json"
        )
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    keep_alive = found["keep_alive"]
    assert done.returncode == 0
    assert [keep_alive[name] for name in ("expected", "closed", "how")] == [1.0, 4, "FIN"]
    assert keep_alive["shortest"] > 0.99
    if name == "nginx":
        assert found["headers_drip"]["expected"] == 1.0


@pytest.mark.slow
def test_a_foreign_server_is_judged_over_http(tmp_path: Path) -> None:
    with server("nginx", tmp_path) as running:
        status, report = run(
            running.port,
            "--scenario",
            "http-everyday",
            *ROOMY,
            "--tolerance",
            "2ms",
            connections=100,
        )
    passes(status, report)
    assert report["connections"]["established"] == 100
    assert (
        report["reaps"]["observed"] - report["reaps"]["own_lag"]
        == report["reaps"]["expected"]
        == 50
    )
    assert report["actions"]["answered"] > 200


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "words"), [("3s", "early by up to"), ("1s", "late by up to")])
def test_probe_tells_early_from_late_and_fails_where_an_expectation_is_not_met(
    expected: str, words: str
) -> None:
    with faulty_server() as running:
        how = f"--protocol echo --wait 2s --trials 8 --expect idle={expected} --json"
        done = loadgen("probe", "--target", running.target, *how.split())
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    idle, drip = found["idle"], found["drip"]
    assert done.returncode == (expected == "3s")
    assert (idle["guessed"], idle["closed"], idle["words"].startswith(words)) == (False, 8, True)
    assert idle["shortest"] >= 1.0
    assert drip["closed"] == 0 or drip["shortest"] >= 1.0  # we ourselves were late with a byte


def test_closes_in_common_instants_show_a_tick_and_others_none() -> None:
    assert granularity([5.0, 5.001, 5.002, 6.0, 6.001, 6.002, 7.0, 7.001]) == pytest.approx(
        1.0, abs=0.01
    )
    assert granularity([5.0, 5.2, 5.4, 5.7, 6.1, 6.2]) is None
    assert granularity([]) is None


def test_a_few_closes_show_a_tick_by_the_gaps_between_them() -> None:
    assert granularity([5.003, 6.001, 7.004]) == 1.0
    assert granularity([5.0, 6.0]) is None  # an accident of one in twenty-five
    assert granularity([5.0, 6.0, 7.3]) is None


def finding_of(closes: Sequence[float], expected: float | None = None) -> Finding:
    trials = [Ended("silent", "closed", at=at) for at in closes]
    return summarise(QUESTIONS["echo"][1], trials, 30.0, expected)


def test_a_timeout_is_guessed_only_when_it_is_nearly_round() -> None:
    assert finding_of([5.001, 5.004]).expected == 5.0
    assert finding_of([4.999]).expected == 5.0
    assert finding_of([4.3]).expected is None
    assert finding_of([4.3], expected=4.0).words() == "late by up to 300ms"


@pytest.mark.parametrize(
    ("waits", "tick", "timeout"),
    [
        ((5.4, 5.6, 5.95), 1.0, 5.0),  # lighttpd, with keep-alive at 5 s
        ((5.822, 6.0, 6.183), 1.0, 5.5),  # 5.5 alone is at most a tick before all of them
        ((5.05, 5.3), None, 5.0),
        ((5.3, 5.6), None, None),
    ],
)
def test_a_timeout_is_guessed_by_the_tick_where_that_shows(
    waits: tuple[float, ...], tick: float | None, timeout: float | None
) -> None:
    assert guess(min(waits), max(waits), tick) == timeout


@pytest.mark.parametrize(("one_by_one", "most"), [(True, 1), (False, 3)])
def test_questions_that_are_asked_one_by_one_do_not_meet(
    one_by_one: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[str] = []
    met: list[int] = []

    class Waits:
        """A client that waits until every other that may play beside it has come."""

        def __init__(self, behaviour: Behaviour, *_: object) -> None:
            self.name = behaviour.name

        async def play(self, patience: float) -> Ended:
            waiting.append(self.name)
            while not one_by_one and len(waiting) < most:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            met.append(len(set(waiting)))
            if one_by_one:
                waiting.remove(self.name)
            return Ended(self.name)

    monkeypatch.setattr("loadgen.probe.Client", Waits)
    monkeypatch.setattr("loadgen.probe.STAGGER", 0.0)
    found = probe(parse_target("127.0.0.1:9"), Speech("echo"), 9.0, None, 1, one_by_one=one_by_one)
    assert [each.name for each in found] == [each.name for each in QUESTIONS["echo"]]
    assert max(met) == most


def test_the_questions_about_bodies_have_a_method_and_a_path_of_their_own(call: Ran) -> None:
    heads: set[bytes] = set()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.add((await reader.readline()).strip())

    more = "--body-method PUT --body-path /upload --wait 300ms --trials 1 --quiet"
    against(note, lambda at: asyncio.to_thread(call, main, "probe", f"http://{at}/", *more.split()))
    assert {b"PUT /upload HTTP/1.1", b"GET / HTTP/1.1"} <= heads


@pytest.mark.parametrize(("more", "said"), [([], True), (["--quiet"], False)])
def test_a_probe_that_is_to_be_quiet_says_nothing_of_its_progress(
    more: list[str], said: bool, call: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("loadgen.probe.probe", lambda *_, **__: [finding_of([5.0])])
    _, out, err = call(main, "probe", "--target=127.0.0.1:9", *more)
    assert ("waiting up to" in err, "idle" in out) == (said, True)


def test_the_table_says_what_is_still_open() -> None:
    text = as_text([finding_of([])], markdown=True)
    assert "still open after 30s" in text
    assert text.splitlines()[1].startswith("|--")
    polite = Ended("silent", "closed", at=5.0, said=b"HTTP/1.1 408 Request Time-out\r\n\r\n")
    assert "HTTP/1.1 408 Request Time-out + FIN" in as_text(
        [summarise(QUESTIONS["echo"][1], [polite], 30.0, None)]
    )
