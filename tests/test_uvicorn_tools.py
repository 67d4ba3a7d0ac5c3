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

import pytest

from scripts.serving import free_port, serving

pytestmark = pytest.mark.slow

PATIENCE = 60.0
ATTACKERS = 100
ATTACKS = {"headers": ("-H",), "body": ("-B", "-s", "100000", "-u", "/echo"), "read": ("-X", "-u", "/big")}


def needs(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


@contextlib.contextmanager
def uvicorn(tmp_path, **settings):
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.asgi:application", "--http", "reaper.uvicorn:HttpTools"]
    environment = os.environ | {f"REAPER_{name}": value for name, value in settings.items()}
    log = tmp_path / "uvicorn.log"
    with serving([*command, "--no-access-log", "--port", str(port)], log, port=port, environment=environment) as server:
        yield server


@needs("slowhttptest")
def test_slow_attackers_are_gone_while_a_healthy_client_is_served_throughout(tmp_path):
    second = dict.fromkeys(("TIMEOUTS_HEADERS", "TIMEOUTS_BODY", "TIMEOUTS_WRITE", "TIMEOUTS_KEEP_ALIVE"), "2s")
    grace = dict.fromkeys(("LIMITS_MIN_IN_GRACE", "LIMITS_MIN_OUT_GRACE"), "2s")
    with uvicorn(tmp_path, TICK="250ms", **second, **grace) as server:
        said = {}

        def attack(name, flags):
            path = () if "-u" in flags else ("-u", "/")
            url = [f"http://{server.target}{part}" if part.startswith("/") else part for part in (*flags, *path)]
            rate = ("-c", str(ATTACKERS), "-r", str(ATTACKERS), "-i", "1", "-l", "15", "-p", "5")
            command = ["slowhttptest", *url, *rate]
            said[name] = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout

        attacks = [threading.Thread(target=attack, args=item) for item in ATTACKS.items()]
        for one in attacks:
            one.start()
        answered = 0
        while any(one.is_alive() for one in attacks):
            with socket.create_connection(server.address, timeout=PATIENCE) as client:
                client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
                heard = b""
                while data := client.recv(1000):
                    heard += data
            assert heard.endswith(b"hello")
            answered += 1
            time.sleep(0.1)
        assert answered > 10
        log = server.log.read_text()
    for name in ("headers", "body"):  # one that does not read does not see that it was closed
        assert "No open connections left" in said[name], said[name][-1000:]
    assert log.count("closed: headers") >= ATTACKERS * 0.9
    assert len(re.findall("closed: (?:body|min_in_rate)", log)) >= ATTACKERS * 0.9
    assert len(re.findall("closed: (?:write|min_out_rate)", log)) >= ATTACKERS * 0.9


@needs("nginx", "wrk")
def test_behind_nginx_there_is_no_bad_gateway(tmp_path):
    """nginx keeps its connections for less long than the server behind it, as it should."""
    port = free_port()
    with uvicorn(tmp_path, TIMEOUTS_KEEP_ALIVE="5s", TICK="250ms") as server:
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log; worker_processes 1;\n"
            "events { worker_connections 512; }\n"
            f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n"
            f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
            f"upstream app {{ server {server.target}; keepalive 64; keepalive_timeout 2s; }}\n"
            f"server {{ listen 127.0.0.1:{port};\n"
            "location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ''; } } }\n"
        )
        command = ["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
        with serving(command, tmp_path / "nginx.log", port=port):
            for _ in range(2):
                url = f"http://127.0.0.1:{port}/"
                load = ["wrk", "-t1", "-c64", "-d2s", url]
                said = subprocess.run(load, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
                assert "Non-2xx" not in said, said
                assert int(re.search(r"(\d+) requests in", said)[1]) > 100
                time.sleep(2.5)  # long enough for nginx to give up its idle connections, and no longer
