"""Single clients, as programs play them: every kind of the vocabulary against servers
that do one thing each.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from loadgen.backend import Upstream, listen
from loadgen.cli import main, rate_of
from loadgen.clients import (
    ATTACKS,
    HTTP,
    Account,
    Ended,
    Speech,
    ask,
    attack,
    behaviour,
    keep_asking,
    play,
)
from loadgen.drive.wire import Tls
from loadgen.plan.behaviours import KINDS
from loadgen.probe import QUESTIONS, as_text, checked, probe, summarise, write_junit
from loadgen.race import Result
from loadgen.units import Target, parse_target
from loadgen.vanish import _established, namespace, vanish
from tests.helpers.listeners import Handler, against
from tests.helpers.namespaces import opened

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PATIENCE = 10.0


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.3)
    writer.transport.abort()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)


async def answer_500(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK.replace(b"200", b"500"))


def play_all(kinds: list[str], at: Target, speech: Speech = HTTP) -> Awaitable[list[Ended]]:
    return asyncio.gather(*(play(kind, at, speech, patience=PATIENCE) for kind in kinds))


def test_whatever_a_client_does_it_learns_that_the_server_has_ended_it() -> None:
    kinds = [kind for kind, cls in KINDS.items() if "ws" not in cls.protocols]
    found = against(close_at_once, lambda at: play_all(kinds, at))
    ends = dict(zip(kinds, found, strict=True))
    assert {kind for kind, ended in ends.items() if ended.borne is None} <= {"reset", "leave"}
    assert ends["reset"].how == "left"
    assert set(ATTACKS) <= set(KINDS)


@pytest.mark.parametrize("kind", ["mute", "silent"])
def test_a_client_that_is_late_to_see_its_connection_up_finds_no_close_early(
    kind: str,
) -> None:
    ended = threading.Event()

    def close_in_law(listener: socket.socket) -> None:
        with listener.accept()[0]:
            time.sleep(0.5)
        ended.set()

    async def late(target: tuple[str, int]) -> Ended:
        playing = asyncio.create_task(play(kind, target, patience=PATIENCE))
        await asyncio.sleep(0)  # it has called connect
        if kind == "mute":
            time.sleep(0.4)
        else:
            assert ended.wait(PATIENCE)  # it has been closed before it asks
        return await playing

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as server:
        server.submit(close_in_law, listener)
        borne = asyncio.run(late(listener.getsockname())).borne
    assert borne is not None
    assert borne >= 0.5


def test_an_attacker_comes_back_until_it_is_told_to_stop() -> None:
    seen: list[int] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)

    ends = against(handler, lambda at: attack("mute", at, lambda: len(seen) > 2, pause=0.01))
    assert len(ends) >= 2
    assert {ended.how for ended in ends} == {"closed"}


@pytest.mark.parametrize(
    ("handler", "lost"), [(answer, ""), (answer_500, "status 500"), (close_at_once, "closed")]
)
def test_a_healthy_client_says_what_it_lost(handler: Handler, lost: str) -> None:
    assert against(handler, ask).lost == lost


def test_an_account_adds_up_what_healthy_clients_saw() -> None:
    account = Account()
    against(answer, lambda at: keep_asking(at, lambda: account.asked > 4, account))
    assert (account.asked, account.lost) == (5, [])
    assert 0 < account.worst < PATIENCE


def test_a_client_that_finds_nobody_says_why() -> None:
    assert asyncio.run(play("mute", ("127.0.0.1", 1))).lost == "connect: ECONNREFUSED"


def test_a_parameter_is_written_as_in_a_scenario() -> None:
    step = behaviour("slow_headers", 2.0, every="100ms").step(1, 1, 0.0)
    assert step is not None
    assert step.gap == pytest.approx(0.1)


def server_tls(certificate: tuple[str, str], *protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(protocols)
    return context


@pytest.mark.parametrize(
    ("tls", "lost"),
    [
        ("right", ""),
        (Tls("localhost"), "connect: CERTIFICATE_VERIFY_FAILED"),
        (Tls("x", insecure=True), ""),
    ],
)
def test_tls_is_spoken_and_the_certificate_checked(
    tls: Tls | str, lost: str, certificate: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    speech = Speech(tls=tls if isinstance(tls, Tls) else Tls("localhost", certificate[0]))
    assert against(answer, lambda at: ask(at, speech), ssl=server_tls(certificate)).lost == lost


def test_a_server_of_http_2_alone_is_named_in_one_line(certificate: tuple[str, str]) -> None:
    async def settings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(3) + b"\x04" + bytes(5))
        await reader.read()

    speech = Speech(tls=Tls("localhost", insecure=True))
    found = against(
        settings,
        lambda at: asyncio.to_thread(probe, at, speech, 0.5, {}, 1),
        ssl=server_tls(certificate, "h2"),
    )
    assert as_text(found).splitlines()[-1].startswith("the server speaks HTTP/2 only")


def test_what_was_expected_is_said_in_a_line_each_and_as_junit(tmp_path: Path) -> None:
    idle, drip = QUESTIONS["echo"][1:]
    closed = summarise(idle, [Ended("silent", "closed", at=5.001)], 9.0, 5.0)
    early = summarise(drip, [Ended("drip", "closed", at=2.0)], 9.0, 5.0)
    never = summarise(drip, [Ended("drip", "left", at=9.0)], 9.0, 5.0)
    assert checked([closed, early, never], 0.0) == [
        "ok idle: 5.001-5.001s",
        "not ok drip: 5s expected, closed after 2.000s: early by up to 3s",
        "not ok drip: 5s expected: still open after 9s",
    ]
    write_junit([closed, early], 0.0, "127.0.0.1:9", tmp_path / "out.xml")
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.find("failure") is not None for case in suite] == [False, True]


def test_a_websocket_is_upgraded_before_its_clock_starts() -> None:
    async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x89\x01p")  # and a ping at once
        pong = await reader.readexactly(7)
        writer.write(bytes((0x8A, len(pong))) + pong)
        await asyncio.sleep(0.1)

    kinds = ["pong_only", "chatty"]
    silent, chatty = against(upgrade, lambda at: play_all(kinds, at, Speech("ws", timeout=60.0)))
    assert (silent.how, chatty.how) == ("closed", "closed")
    assert silent.since >= silent.connected
    assert chatty.asked == 1


@pytest.mark.parametrize("stays", [False, True])
def test_a_backend_sees_how_long_a_pool_holds_and_reuses_its_connection(
    stays: bool,
) -> None:
    async def run() -> Upstream:
        async def pool(at: Target) -> None:
            reader, writer = await asyncio.open_connection(at.host, at.port)
            with closing(writer):
                for pause in (0.1, PATIENCE if stays else 0.3):
                    writer.write(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
                    assert b"timeout=7" in await reader.readuntil(b"ok")
                    await asyncio.sleep(pause)

        tasks: list[asyncio.Task[None]] = []
        async with asyncio.timeout(PATIENCE / 2):  # it does not wait for what stays open
            return await listen(
                parse_target("127.0.0.1:1")._replace(port=0),
                1.0,
                7.0,
                lambda at: tasks.append(asyncio.create_task(pool(at))),
            )

    found = asyncio.run(run())
    (held,) = found.connections
    assert (held.requests, held.how, len(held.gaps)) == (2, "" if stays else "FIN", 1)
    assert stays or found.idles[0] >= 0.29
    assert found.row()[3:] == ("0/1" if stays else "1/1", "2")


@pytest.mark.parametrize(("honour", "lost"), [([], {"closed": 120}), (["--honour"], {})])
def test_a_race_counts_what_is_lost_on_a_connection_that_looked_open(
    honour: list[str], lost: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=0\r\n\r\n"))
        await reader.readuntil(b"\r\n\r\n")  # and no answer: it was about to close

    how = "race --keep-alive 50ms --spread 10ms --times 120 --clients 60 --json"
    status = against(
        once, lambda at: asyncio.to_thread(main, [*how.split(), *honour, f"--target={at}"])
    )
    found = json.loads(capsys.readouterr().out)
    assert (status, found["lost"], found["lost_per_million"]) == (
        bool(lost),
        lost,
        1e6 * bool(lost),
    )
    assert (found["reused"], found["fresh"], found["announced"]) == (
        (0, 120) if honour else (120, 0)
    ) + ("timeout=0",)


@pytest.mark.parametrize(
    ("reused", "lost", "rate", "low", "high"),
    [(99, 0, None, 0, 0), (100, 0, 0.0, 0, 36_995), (10_000, 100, 10_000.0, 8_229, 12_147)],
)
def test_the_rate_of_a_race_has_an_interval_and_is_not_told_from_a_few_pairs(
    reused: int, lost: int, rate: float | None, low: float, high: float
) -> None:
    found = Result(reused=reused, lost=Counter(closed=lost))
    assert found.per_million == rate
    if found.interval is not None:
        assert found.interval == pytest.approx((low, high), abs=1)


def test_a_race_of_one_reused_pair_proves_nothing() -> None:
    found = Result(reused=1, fresh=999)
    assert (found.enough, found.per_million, found.interval) == (False, None, None)
    assert rate_of(found).startswith("1 pair tried are too few to tell a rate")
    assert Result(fresh=1000, every=True).per_million == 0.0  # the server's word was tried


def test_the_tools_of_a_namespace_are_found_beside_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/sbin/{name}" if path else None)

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr("subprocess.run", run)
    with namespace():
        assert _established(1) == set()
    assert {command[0] for command in ran} == {"/sbin/ip", "/sbin/ss"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="vanishing needs root")
def test_a_client_that_vanishes_is_kept_until_the_servers_kernel_lets_it_go() -> None:
    async def forget(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3.0)  # whatever is said, and whoever has gone
        writer.transport.abort()

    with opened():  # or it is skipped
        pass
    found = against(
        forget, lambda at: asyncio.to_thread(vanish, at, Speech("echo"), 20.0, 2), "0.0.0.0"
    )
    assert [kept.name for kept in found] == ["vanished_new", "vanished_idle"]
    assert all(each is not None for kept in found for each in kept.seconds)
