"""A rolling restart behind nginx and HAProxy, under load, as docs/howto/kubernetes.md has it: nothing is lost."""

from __future__ import annotations

import http.client
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_process import PATIENCE, Process, installed, wait_until

from scripts.serving import free_port, serving
from scripts.tools import nginx

pytestmark = pytest.mark.slow

LEAVING = ("--drain-delay", "1500ms", "--drain-idle", "300ms", "--workers", "1", "--keep-alive", "5s")

NGINX = """
    upstream pods {{
        server 127.0.0.1:{one} max_fails=0;
        server 127.0.0.1:{two} max_fails=0;
        keepalive 16; keepalive_timeout 4s;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://pods; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
"""

HAPROXY = """
defaults
    mode http
    timeout connect 2s
    timeout client 10s
    timeout server 10s
    timeout check 10s
    timeout http-keep-alive 4s
frontend front
    bind 127.0.0.1:{port}
    default_backend pods
backend pods
    option httpchk GET /ready
    http-reuse safe
    server one 127.0.0.1:{one} check inter 100ms fall 1 rise 1
    server two 127.0.0.1:{two} check inter 100ms fall 1 rise 1
"""


@contextmanager
def proxy(name: str, folder: Path, one: int, two: int) -> Iterator[int]:
    """The port of a proxy in front of two servers."""
    port, path = free_port(), folder / "haproxy.conf"
    text = (NGINX if name == "nginx" else HAPROXY).format(one=one, two=two, port=port)
    binary = installed(name)
    command = nginx(folder, text) if name == "nginx" else [binary, "-f", str(path)]
    path.write_text(text)
    with serving(command, folder / "log", port=port):
        yield port


def load(port: int, done: threading.Event, failures: list[object], answered: list[int]) -> None:
    """Uploads one after the other, which no proxy may send twice, on connections that are kept."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    while not done.is_set():
        try:
            client.request("POST", "/upload", b"x" * 100)
            response = client.getresponse()
            response.read()
            if response.status != 200:
                failures.append(response.status)
            answered.append(1)
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
            client.close()
        time.sleep(0.002)
    client.close()


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_rolling_restart_behind_a_proxy_loses_no_request(tmp_path: Path, name: str) -> None:
    ports = free_port(), free_port()
    pods = [Process("http", "--port", str(port), *LEAVING) for port in ports]
    done = threading.Event()
    failures: list[object] = []
    answered: list[int] = []
    try:
        with proxy(name, tmp_path, *ports) as port:
            time.sleep(0.5)  # until HAProxy has checked both
            clients = [threading.Thread(target=load, args=(port, done, failures, answered)) for _ in range(8)]
            for client in clients:
                client.start()
            try:
                for index, at in enumerate(ports):
                    pods[index].group(signal.SIGTERM)
                    assert pods[index].end() == 0
                    pods[index] = Process("http", "--port", str(at), *LEAVING)
                    time.sleep(1.0)  # until a proxy without checks sends it some again
                    before = len(answered)
                    wait_until(lambda before=before: len(answered) > before + 20, "an answer")
            finally:
                done.set()
                for client in clients:
                    client.join()
    finally:
        for pod in pods:
            pod.stop()
    assert not failures
    assert len(answered) > 200
