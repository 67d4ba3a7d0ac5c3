"""Guarded uvicorn servers with several workers: whichever is asked answers for all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import suppress

import pytest

from reaper.driver.sockets import listen_as, names_of
from reaper.servers import workers
from reaper.servers.workers import Workers, _connected
from reaper.status import SCHEMA
from reaper.top.picture import picture_of
from scripts.tools import get, metrics
from tests.helpers.server_process import PATIENCE, wait_until
from tests.servers.test_uvicorn import answered, connect, serving


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_workers_of_one_server_answer_for_each_other_and_not_for_another_server(
    tmp_path, monkeypatch, loop
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


def test_workers_ask_none_but_their_own_and_all_of_them_when_many_ask_at_once(monkeypatch) -> None:
    """A process of another pid has taken names of both kinds; a hundred scrapes come in one
    instant.
    """

    async def page() -> tuple[str, bytes]:
        return "text/plain", b"hello"

    async def program(listening: socket.socket) -> None:
        monkeypatch.setattr(workers, "inherited", lambda: 4711)
        monkeypatch.setattr(workers, "WAIT", PATIENCE)
        asked = Workers({"/metrics": page})
        me = os.getpid()
        family = f"reaper-status/{os.getuid()}/4711/"
        with listen_as(f"{family}{me + 1}/"):
            assert list(asked.others()) == [me + 1]
            assert await asked.ask("/metrics") == {}
        (name,) = names_of(family)
        assert (
            await asyncio.gather(*(asked._ask(me, name, "/metrics") for _ in range(100)))
            == [b"hello"] * 100
        )
        monkeypatch.setattr(socket, "SOMAXCONN", 4)
        with listen_as("reaper-test/") as full:
            asking = [
                asyncio.create_task(_connected(full.getsockname()[1:].decode())) for _ in range(20)
            ]
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

    with socket.create_server(("127.0.0.1", 0)) as listening:
        asyncio.run(program(listening))
