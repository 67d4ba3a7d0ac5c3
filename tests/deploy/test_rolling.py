"""A rolling restart behind nginx and HAProxy, under load, as docs/howto/kubernetes.md
has it: nothing is lost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from scripts.serving import free_port, serving
from scripts.tools import nginx
from tests.helpers.server_process import Process, installed, load, wait_until

pytestmark = pytest.mark.slow

LEAVING = (
    "--drain-delay",
    "1500ms",
    "--drain-idle",
    "300ms",
    "--workers",
    "1",
    "--keep-alive",
    "5s",
)

NGINX = """
    upstream pods {{
        server 127.0.0.1:{one} max_fails=0;
        server 127.0.0.1:{two} max_fails=0;
        keepalive 16; keepalive_timeout 4s;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://pods;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
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


def more_than(answers: list[object], count: int) -> bool:
    return len(answers) > count


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_rolling_restart_behind_a_proxy_loses_no_request(tmp_path: Path, name: str) -> None:
    ports = free_port(), free_port()
    pods = [Process("http", "--port", str(port), *LEAVING) for port in ports]
    try:
        with proxy(name, tmp_path, *ports) as port:
            time.sleep(0.5)  # until HAProxy has checked both
            with load(("127.0.0.1", port), 8, keeps=True) as answers:
                for index, at in enumerate(ports):
                    pods[index].group(signal.SIGTERM)
                    assert pods[index].end() == 0
                    pods[index] = Process("http", "--port", str(at), *LEAVING)
                    time.sleep(1.0)  # until a proxy without checks sends it some again
                    wanted = len(answers) + 20
                    wait_until(partial(more_than, answers, wanted), "an answer")
    finally:
        for pod in pods:
            pod.stop()
    assert set(answers) == {200}
    assert len(answers) > 200
