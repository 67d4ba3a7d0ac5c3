"""Guarded uvicorn servers with several workers: whichever is asked answers for all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from reaper.driver.sockets import listen_as, names_of
from reaper.servers import workers
from reaper.servers.workers import Workers, _connected
from reaper.status import SCHEMA
from reaper.top.picture import picture_of
from scripts.tools import get, metrics
from tests.helpers.program_trials import connect
from tests.helpers.server_process import PATIENCE, wait_until
from tests.servers.uvicorn.test_limits import answered, serving


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_workers_of_one_server_answer_for_each_other_and_not_for_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    slow = {"REAPER_TIMEOUTS_KEEP_ALIVE": "60s"}
    (tmp_path / "other").mkdir()
    with (
        serving(tmp_path, "HttpTools", loop, "--workers", "2", **slow) as server,
        serving(tmp_path / "other", **slow) as other,
    ):
        clients = [connect(server) for _ in range(12)]
        clients.append(connect(other))
        for client in clients:
            answered(client)

        pids: set[int] = set()

        def all_in_the_status() -> bool:
            get(server.address, "/")
            status = json.loads(get(server.address, "/status")[1])
            assert status["schema"] == SCHEMA
            phases = {row["phase"] for worker in status["workers"] for row in worker["phases"]}
            pids.update(worker["pid"] for worker in status["workers"])
            whole = len(status["workers"]) == 2 and not status["missing"] and "keep_alive" in phases
            return whole and picture_of(status).connections in (
                12,
                13,
            )  # the one that asks may be among them

        def all_in_the_metrics() -> bool:
            leases = {
                name: n
                for name, n in metrics(server.address).items()
                if name.startswith("reaper_leases{")
            }
            return {int(name.split('"')[1]) for name in leases} == pids and sum(
                leases.values()
            ) in (12, 13)

        wait_until(all_in_the_status)
        wait_until(all_in_the_metrics)
        alone = metrics(other.address)
        assert not [name for name in alone if "worker=" in name]
        assert 'reaper_lateness_seconds_bucket{le="+Inf"}' in alone
        stopped = min(pids)
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr("scripts.tools.PATIENCE", 4)

        def left_out() -> bool:
            with suppress(OSError):  # the kernel gave this one to the worker that is stopped
                assert json.loads(get(server.address, "/status")[1])["missing"] == [stopped]
                return True
            return False

        try:
            wait_until(left_out)
        finally:
            os.kill(stopped, signal.SIGCONT)
        for client in clients:
            client.close()


INODE = -os.getpid()
"""No socket's, nor that of another test run here, which would take our names."""


async def page() -> tuple[str, bytes]:
    return "text/plain", b"hello"


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> int:
    """This process, whose server listens on the socket with the inode `INODE`."""
    monkeypatch.setattr(workers, "inherited", lambda: INODE)
    monkeypatch.setattr(workers, "WAIT", PATIENCE)
    return os.getpid()


FAMILY = f"reaper-status/{os.getuid()}/{INODE}/"


@pytest.mark.anyio
async def test_a_name_that_another_process_has_taken_is_not_believed(me: int) -> None:
    asked = Workers({"/metrics": page})
    with listen_as(f"{FAMILY}{me + 1}/"):
        assert list(asked.others()) == [me + 1]
        assert await asked.ask("/metrics") == {}


@pytest.mark.anyio
async def test_a_worker_answers_all_who_ask_in_one_instant(me: int) -> None:
    asked = Workers({"/metrics": page})
    (name,) = names_of(FAMILY)
    found = await asyncio.gather(*(asked._ask(me, name, "/metrics") for _ in range(100)))
    assert found == [b"hello"] * 100


@pytest.mark.anyio
async def test_a_worker_whose_backlog_is_full_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "SOMAXCONN", 4)
    with listen_as("reaper-test/") as full:
        name = full.getsockname()[1:].decode()
        asking = [asyncio.create_task(_connected(name)) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(one.done() for one in asking) < 20
        for one in asking:
            while True:
                with suppress(BlockingIOError):
                    full.accept()[0].close()
                if one.done():
                    break
                await asyncio.sleep(0.01)
            one.result().close()
