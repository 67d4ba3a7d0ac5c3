"""gunicorn's workers for ASGI and with threads, guarded: each phase ends, nothing in use does, no pause loses any."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time

import pytest
from server_process import wait_until

from loadgen.clients import play_all
from scripts.serving import free_port, serving, tree
from scripts.uvicorn_demo.__main__ import SPEECH

pytestmark = pytest.mark.slow

ATTACKS = ["mute", "slow_headers", "slow_second_headers", "stalled_body", "unread", "silent"]
PATIENCE = 45.0
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


def connect(server):
    return socket.create_connection(server.address, PATIENCE)


def ask(server, path):
    with contextlib.suppress(OSError), connect(server) as client:
        return answered(client, path)
    return b""


def answered(client, path=b"/"):
    client.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: h\r\n\r\n")
    return until(client)


def until(client):
    said = b""
    while not said.endswith(b"hello"):
        data = client.recv(65536)
        assert data, f"closed after {said[-200:]!r}"
        said += data
    return said


def test_every_kind_of_idleness_ends_and_none_early_while_who_waits_for_an_answer_has_it(gunicorn):
    with gunicorn() as server, connect(server) as patient:
        patient.sendall(b"GET /slow?4 HTTP/1.1\r\nhost: h\r\n\r\n")
        found = asyncio.run(play_all(ATTACKS, server.address, SPEECH, PATIENCE))
        assert not [kind for kind, (ended,) in found.items() if ended.borne is None]
        assert not [kind for kind, (ended,) in found.items() if ended.borne < 1]
        until(patient)


def test_a_pause_of_the_process_loses_no_request(gunicorn):
    with gunicorn() as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(10)]
        for client in clients:
            answered(client)
        pids = tree(server.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
        time.sleep(3)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        for client in clients:
            until(client)


def test_a_stop_is_delayed_drains_and_answers_what_is_under_way(gunicorn):
    with gunicorn(DRAIN_DELAY="2s", KEEP_ALIVE="60s", FIRST_BYTE="60s", DRAIN="10s") as server:
        with connect(server) as idle, connect(server) as works:
            answered(idle)
            works.sendall(b"GET /slow?4 HTTP/1.1\r\nhost: h\r\n\r\n")
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
