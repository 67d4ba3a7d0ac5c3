"""uvicorn, guarded, and programs that are not ours: slowhttptest attacks it, nginx and wrk use it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scripts.serving import free_port, serving

pytestmark = pytest.mark.slow

PATIENCE = 60.0
ATTACKERS = 50
ATTACKS = {"headers": ("-H",), "body": ("-B", "-s", "100000", "-u", "/echo"), "read": ("-X", "-u", "/some?8000000")}
ESTABLISHED, CLOSE_WAIT = "01", "08"


def needs(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


@contextlib.contextmanager
def uvicorn(tmp_path, http="reaper.uvicorn:HttpTools", **settings):
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.asgi:application", "--http", http]
    environment = os.environ | {f"REAPER_{name}": value for name, value in settings.items()}
    log = tmp_path / "uvicorn.log"
    with serving([*command, "--no-access-log", "--port", str(port)], log, port=port, environment=environment) as server:
        yield server


@contextlib.contextmanager
def attacked(server, folder):
    """slowhttptest's attacks on *server*, for the length of the block: the process of each, and what it says."""
    running = {}
    try:
        for name, flags in ATTACKS.items():
            path = () if "-u" in flags else ("-u", "/")
            urls = [f"http://{server.target}{part}" if part.startswith("/") else part for part in (*flags, *path)]
            rate = ("-c", str(ATTACKERS), "-r", str(ATTACKERS), "-i", "1", "-l", f"{PATIENCE:g}", "-p", "5")
            log = folder / f"{name}.log"
            with log.open("wb") as output:
                running[name] = subprocess.Popen(["slowhttptest", *urls, *rate], stdout=output, stderr=output), log
        yield running
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait(PATIENCE)


def held(server):
    """Connections that *server*'s end of the kernel holds open."""
    wanted = f"0100007F:{server.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1] == wanted and row[3] in (ESTABLISHED, CLOSE_WAIT) for row in rows)


def ask(server):
    """What a healthy client is answered."""
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        heard = b""
        while data := client.recv(1000):
            heard += data
    return heard


def ask_again_and_again(server, heard, over):
    while not over.wait(0.05):
        heard.append(ask(server))


@needs("slowhttptest")
def test_slow_attackers_stay_on_stock_and_are_gone_from_guarded_whose_healthy_client_is_served_throughout(tmp_path):
    second = dict.fromkeys(("TIMEOUTS_HEADERS", "TIMEOUTS_BODY", "TIMEOUTS_WRITE", "TIMEOUTS_KEEP_ALIVE"), "2s")
    grace = dict.fromkeys(("LIMITS_MIN_IN_GRACE", "LIMITS_MIN_OUT_GRACE"), "2s")
    folders = [tmp_path / "stock", tmp_path / "guarded"]
    with contextlib.ExitStack() as stack:
        stock = stack.enter_context(uvicorn(folders[0], "httptools"))
        guarded = stack.enter_context(uvicorn(folders[1], TICK="250ms", **second, **grace))
        stack.enter_context(attacked(stock, folders[0]))
        attacks = stack.enter_context(attacked(guarded, folders[1]))
        heard = []
        over = threading.Event()
        healthy = threading.Thread(target=ask_again_and_again, args=(guarded, heard, over))
        healthy.start()
        try:
            most = 0
            until = time.monotonic() + PATIENCE / 2  # the attackers hold out for longer
            crowd = ATTACKERS * len(ATTACKS)
            while most < crowd * 0.5 or held(guarded):
                assert time.monotonic() < until, f"guarded holds {held(guarded)} after {most}; stock {held(stock)}"
                most = max(most, held(guarded))
                time.sleep(0.2)
            assert held(stock) >= crowd
        finally:
            over.set()
            healthy.join(PATIENCE)
        assert len(heard) > 3
        assert all(answer.endswith(b"hello") for answer in heard)
        for name in ("headers", "body"):  # one that does not read does not see that it was closed
            process, said = attacks[name]
            process.wait(PATIENCE)
            assert "No open connections left" in said.read_text(), said.read_text()[-1000:]
        log = guarded.said()
    assert log.count("closed: headers") >= ATTACKERS * 0.9
    assert len(re.findall("closed: (?:body|min_in_rate)", log)) >= ATTACKERS * 0.9
    assert len(re.findall("closed: (?:write|min_out_rate)", log)) >= ATTACKERS * 0.9
