"""gunicorn's workers for ASGI and with threads, guarded: each phase ends, nothing in use does, no pause loses any."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

import pytest
from server_process import wait_until
from test_uvicorn import a_pause_loses_no_request, all_end_and_none_early, connect, get, until

from scripts.serving import free_port, serving, tree

pytestmark = pytest.mark.slow

ATTACKS = ["mute", "slow_headers", "slow_second_headers", "stalled_body", "unread", "silent"]
LIMITS = dict.fromkeys(["FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "TUNNEL"], "1s")
WORKERS = {"ASGIWorker": ("tests.asgi:application",), "ThreadWorker": ("tests.wsgi:application", "--threads", "16")}


@pytest.fixture(params=WORKERS)
def gunicorn(request, tmp_path):
    @contextlib.contextmanager
    def gunicorn(**settings):
        port = free_port()
        app, *flags = WORKERS[request.param]
        command = [sys.executable, "-m", "gunicorn", app, "-b", f"127.0.0.1:{port}", "--no-control-socket", *flags]
        command += ["-k", f"reaper.gunicorn.{request.param}", "--graceful-timeout", "20"]
        limits = {f"REAPER_TIMEOUTS_{name}": value for name, value in {**LIMITS, **settings}.items()}
        environment = os.environ | {"REAPER_TICK": "250ms"} | limits
        with serving(command, tmp_path / "log", port=port, environment=environment) as server:
            wait_until(lambda: b"200 OK" in ask(server, b"/"))
            yield server

    return gunicorn


def ask(server, path):
    with contextlib.suppress(OSError), connect(server) as client:
        return answered(client, path)
    return b""


def answered(client, path=b"/"):
    client.sendall(get(path))
    return until(client)


def test_every_kind_of_idleness_ends_and_none_early_while_who_waits_for_an_answer_has_it(gunicorn):
    with gunicorn() as server, connect(server) as patient:
        patient.sendall(get(b"/slow?4"))
        asyncio.run(all_end_and_none_early(ATTACKS, server.address))
        until(patient)


def test_a_pause_of_the_process_loses_no_request(gunicorn):
    with gunicorn() as server:
        a_pause_loses_no_request(server, 10)


def test_a_stop_is_delayed_drains_and_answers_what_is_under_way(gunicorn):
    with gunicorn(DRAIN_DELAY="2s", KEEP_ALIVE="60s", FIRST_BYTE="60s", DRAIN="10s") as server:
        with connect(server) as idle, connect(server) as works:
            answered(idle)
            works.sendall(get(b"/slow?4"))
            time.sleep(0.3)
            for pid in tree(server.pid)[1:]:
                os.kill(pid, signal.SIGTERM)
            time.sleep(0.5)
            with connect(server) as newcomer:
                assert b"connection: close" in answered(newcomer).lower()
            until(works)
            assert idle.recv(1) == b""
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: server.process.poll() is not None)
