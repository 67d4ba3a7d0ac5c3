"""The campaign: a loss is counted, a last answer is waited for, and what foreign tools
say of the HTTP server.

A tool that is not installed is named and its test skipped.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from loadgen.clients import HTTP
from scripts.campaign import __main__ as campaign
from scripts.campaign import rounds, trouble
from scripts.campaign.rounds import Trial, played, talk
from scripts.campaign.trouble import Outcome, Round
from scripts.provenance import machine
from scripts.serving import example, serving
from scripts.tools import Missing, metrics
from tests.helpers.server_process import installed

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def talked(answer: Answer, until: float) -> Outcome:
    """What a talker makes of a server that treats its connections with *answer*."""
    outcome, end = Outcome(), time.monotonic() + until
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        server = SimpleNamespace(address=listening.sockets[0].getsockname())
        given = SimpleNamespace(server=server, outcome=outcome)
        await talk(
            cast(Round, given),
            HTTP,
            lambda: time.monotonic() > end,
            shortest="400ms",
            longest="800ms",
        )
        await asyncio.sleep(0.05)
    return outcome


def test_a_client_that_the_server_ends_is_lost() -> None:
    async def closes(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    outcome = asyncio.run(talked(closes, 60.0))
    assert (len(outcome.wrong), outcome.seen["lost"]) == (1, 1)


def test_a_client_that_waits_for_its_last_answer_is_not_lost() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    outcome = asyncio.run(talked(slow, 0.1))
    assert (outcome.account.asked, outcome.wrong) == (1, [])


def test_every_trial_names_trouble_and_clients_that_there_are() -> None:
    for trial in Trial.all().values():
        arguments = dict(trial.meanwhile)
        inspect.signature(getattr(trouble, arguments.pop("do"))).bind(None, **arguments)
        for each in trial.clients:
            options = {
                name: value
                for name, value in each.items()
                if name not in ("does", "count", "protocol", "path")
            }
            inspect.signature(rounds.CLIENTS[each["does"]]).bind(None, HTTP, None, **options)
        assert trial.share or trial.interop


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page in the place of docs/reliability.md, with old figures."""
    page = tmp_path / "reliability.md"
    page.write_text(f"before\n{campaign.BEGIN}\nold\n{campaign.END}\nafter\n")
    monkeypatch.setattr(campaign, "PAGE", page)
    return page


def test_the_page_has_the_figures_of_the_report(page: Path) -> None:
    trial = {"name": "pause", "unseen": "the rest", "failures": ["3 x EOF"], "passed": False}
    campaign.document(
        {
            "about": machine(),
            "minutes": 3,
            "trials": [{**trial, "figures": {"asked": 1234}}],
        }
    )
    said = page.read_text()
    assert "| pause | **FAIL**: 3 x EOF | asked: 1,234 | the rest |" in said
    assert (said[:7], "old" in said, said[-6:]) == ("before\n", False, "after\n")


def test_a_run_of_a_few_trials_leaves_the_rows_of_the_others(page: Path) -> None:
    def documented(commit: str, only: str, **asked: int) -> None:
        trials = [
            {"name": name, "figures": {"asked": each}, "passed": True, "unseen": "the rest"}
            for name, each in asked.items()
        ]
        about = {"commit": commit, "date": "today", "cpus": 2, "python": "3.11"}
        campaign.document({"about": about, "minutes": 5.0, "only": only, "trials": trials})

    documented("a" * 40, "", pause=1, reload=1)
    documented("b" * 40, "reload,quiet", reload=2, quiet=2)
    documented("c" * 40, "reload,quiet", reload=3, quiet=3)
    said = page.read_text()
    rows = re.findall(r"^\| (\w+) \| pass \| asked: (\d)", said, re.MULTILINE)
    assert rows == [("pause", "1"), ("reload", "3"), ("quiet", "3")]
    assert re.findall(r"commit (\w)", said) == ["a", "c"]
    assert said.count("| trial |") == 1


def test_a_trial_that_cannot_be_tried_here_is_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(trial: Trial, *_: object) -> Outcome:
        if trial.name == "control group":
            raise Missing("no memory control group can be made")
        return Outcome()

    monkeypatch.setattr(campaign, "played", cannot)
    names = ["--only", "control group,scrapes", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["campaign", *names])
    assert campaign.main() == 0
    said = capsys.readouterr().out
    assert "NOT RUN: no memory control group can be made" in said
    assert said.endswith("PASS: 1 trials\nNOT RUN: 1 of 2: control group\n")


# ---- tools of others


SLOW = {"attackers": 200}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "smaller"),
    [
        ("slow headers", SLOW),
        ("slow bodies", SLOW),
        ("slow readers", SLOW),
        ("behind nginx", {"bursts": 2}),
    ],
)
def test_a_foreign_tool_finds_that(name: str, smaller: dict[str, int], tmp_path: Path) -> None:
    trial = Trial.all()[name]
    try:
        outcome = played(replace(trial, meanwhile=trial.meanwhile | smaller), tmp_path, 0.0)
    except Missing as missing:
        pytest.skip(str(missing))
    assert outcome.wrong == [], outcome.seen
    assert not trial.clients or outcome.account.asked


@pytest.mark.slow
def test_curl_reuses_the_connection_and_uploads_after_100_continue(tmp_path: Path) -> None:
    curl = installed("curl")
    with serving(example("http", "--workers", "1"), tmp_path / "log") as server:
        url = f"http://{server.target}"
        many = subprocess.run(
            [curl, "-sv", f"{url}/", f"{url}/metrics"], capture_output=True, text=True, check=True
        )
        # curl 7.88 says "Re-using existing connection", 8.23 "Reusing existing http:".
        assert re.search("Re-using existing connection|Reusing existing http:", many.stderr)
        command = [
            curl,
            "-sv",
            "-H",
            "Expect: 100-continue",
            "--data-binary",
            "@-",
            f"{url}/upload",
        ]
        upload = subprocess.run(
            command, input="x" * 500_000, capture_output=True, text=True, check=True
        )
        assert json.loads(upload.stdout)["bytes"] == 500_000
        assert "HTTP/1.1 100 " in upload.stderr


@pytest.mark.slow
def test_ab_sees_no_failure_though_it_asks_http_1_0_for_keep_alive(tmp_path: Path) -> None:
    ab = [installed("ab", "apache2-utils"), "-q", "-k", "-n", "2000", "-c", "50"]
    with serving(example("http", "--workers", "1"), tmp_path / "log") as server:
        url = f"http://{server.target}/sleep?s=0"
        done = subprocess.run([*ab, url], capture_output=True, text=True, check=True)
        after = metrics(server.address)
    figures = dict(re.findall(r"^(.*?):\s+(\d+)", done.stdout, re.MULTILINE))
    assert (figures["Complete requests"], figures["Failed requests"]) == ("2000", "0")
    assert after['http_responses_total{status="200"}'] >= 2000


# ---- make uvicorn-demo


@pytest.fixture(scope="module")
def uvicorn_demo() -> list[tuple[bool, bool]]:
    """Whether stock and guarded uvicorn closed, for each row of the demo's table."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.uvicorn_demo"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in done.stdout.splitlines()
        if line[:1] == "|"
    ]
    closed = [["still open" not in cell for cell in row[1:]] for row in rows[2:]]
    return [(stock, guarded) for stock, guarded in closed]


@pytest.mark.slow
def test_the_uvicorn_demo_shows_that_stock_closes_by_keep_alive_alone(
    uvicorn_demo: list[tuple[bool, bool]],
) -> None:
    assert len(uvicorn_demo) == 11
    assert sum(stock for stock, _ in uvicorn_demo) == 1


@pytest.mark.slow
def test_the_uvicorn_demo_shows_that_guarded_closes_by_every_timeout(
    uvicorn_demo: list[tuple[bool, bool]],
) -> None:
    assert sum(guarded for _, guarded in uvicorn_demo) == 10
