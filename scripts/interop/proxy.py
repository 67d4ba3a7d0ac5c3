"""Behind nginx as a reverse proxy with keep-alive upstreams, under wrk, with idle timeouts crossing all the time.

One rule: *nginx counts*. A 502 in its access log is a request that our close has cost; bursts of requests come at
pauses about as long as the idle timeouts, so that many meet a connection that is about to be closed.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

from ..serving import free_port, serving
from .tools import OUT, metrics, server, tool

BURSTS = 8
BURST = 1  # seconds of wrk
CLIENTS = 50
TICK = "100ms"
PINGS = 12

CASES = {
    # name: seconds after which nginx and we close idle connections, method, whether a 502 is our fault
    "nginx closes first": (1.0, 2.0, "GET", True),
    "nginx closes first, POST": (1.0, 2.0, "POST", True),
    "both at once": (1.0, 1.0, "GET", True),
    "we close first": (60.0, 1.0, "GET", True),
    # nginx must not send a POST twice: a race that neither side can close.
    "we close first, POST": (60.0, 1.0, "POST", False),
}

CONFIG = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log info;
events {{ worker_connections 4096; }}
http {{
  log_format status '$status $upstream_addr $request_method';
  access_log {folder}/access.log status;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream ours {{ server {host}:{port}; keepalive 64; keepalive_timeout {idle}s; }}
  map $http_upgrade $going {{ default upgrade; '' ''; }}
  server {{
    listen 127.0.0.1:{listen}; keepalive_requests 100000;
    location / {{
      proxy_pass http://ours; proxy_http_version 1.1; proxy_read_timeout 30s;
      proxy_set_header Connection $going; proxy_set_header Upgrade $http_upgrade;
    }}
  }}
}}
"""

POST = 'wrk.method = "POST"\nwrk.body = "hello"\n'


def run(bursts: int = BURSTS) -> dict[str, object]:
    """Every case with so many bursts, then a tunnel under pings. Raises Missing."""
    nginx, wrk = tool("nginx", "nginx"), tool("wrk", "wrk")
    cases = {name: _bursts(nginx, wrk, name, bursts) for name in CASES}
    tunnel = _tunnel(nginx)
    return {"cases": cases, "tunnel": tunnel, "passed": tunnel["passed"] and all(c["passed"] for c in cases.values())}


def _bursts(nginx: str, wrk: str, name: str, bursts: int) -> dict[str, object]:
    theirs, ours, method, counts = CASES[name]
    draw = random.Random(name)
    folder = _folder(name)
    script = folder / "method.lua"
    script.write_text(POST if method == "POST" else "")
    target = "/upload" if method == "POST" else "/"
    said = ""
    flags = ("--tick", TICK, "--keep-alive", f"{ours:g}s", "--max-requests", "0")
    with server(*flags, log=f"{folder.name}.log") as address:
        listen = free_port()
        with serving(_nginx(nginx, folder, address, theirs, listen), folder / "nginx.log", port=listen):
            for _ in range(bursts):
                command = [wrk, "-t1", f"-c{CLIENTS}", f"-d{BURST}s", "-s", str(script)]
                said += subprocess.run(
                    [*command, f"http://127.0.0.1:{listen}{target}"], capture_output=True, text=True, check=True
                ).stdout
                time.sleep(ours * draw.uniform(0.9, 1.2))
        after = metrics(address)
    (folder / "wrk.txt").write_text(said)
    statuses = Counter(line.split()[0] for line in (folder / "access.log").read_text().splitlines())
    retried = sum("," in line.split()[1] for line in (folder / "access.log").read_text().splitlines())
    # What nginx notes about its own clients, wrk hanging up at the end of a burst, also ends in "upstream".
    errors = [
        line for line in _log(folder).splitlines() if " upstream, client:" in line and "client prematurely" not in line
    ]
    answered = statuses.total() - statuses["499"]  # wrk hangs up on what is in flight at the end of a burst
    return {
        "answered": answered,
        "502": statuses["502"],
        "neither_200_nor_502": answered - statuses["200"] - statuses["502"],
        "retried_by_nginx": retried,
        "upstream_errors": len(errors),
        "upstream_connections": after["http_connections_opened_total"],
        "reaped_keep_alive": after.get('reaper_reaped_total{reason="keep_alive"}', 0),
        "passed": not counts or statuses["200"] == answered > 0,
    }


def _tunnel(nginx: str) -> dict[str, object]:
    """A tunnel through nginx lives far beyond its idle timeout while pings go through it."""
    folder = _folder("tunnel")
    timeout = 1.0
    with server("--tick", TICK, "--tunnel", f"{timeout:g}s", log="tunnel.log") as address:
        listen = free_port()
        nginx_server = serving(_nginx(nginx, folder, address, 60, listen), folder / "nginx.log", port=listen)
        with nginx_server, socket.create_connection(("127.0.0.1", listen), timeout=10) as client:
            client.sendall(b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
            switched = b" 101 " in client.recv(65536)
            echoed = 0
            for number in range(PINGS):
                time.sleep(timeout / 2)
                client.sendall(b"%04d" % number)
                echoed += client.recv(65536) == b"%04d" % number
            start = time.monotonic()
            ended = client.recv(65536) == b""
            after = time.monotonic() - start
    passed = switched and echoed == PINGS and ended and after >= timeout * 0.99
    return {"pings_echoed": echoed, "of": PINGS, "closed_after_silence_s": round(after, 3), "passed": passed}


def _folder(name: str) -> Path:
    folder = OUT / ("proxy-" + re.sub(r"\W+", "-", name))
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("access.log", "error.log"):
        (folder / old).unlink(missing_ok=True)
    return folder


def _nginx(nginx: str, folder: Path, address: tuple[str, int], idle: float, listen: int) -> list[str]:
    path = folder / "nginx.conf"
    path.write_text(CONFIG.format(folder=folder, host=address[0], port=address[1], idle=f"{idle:g}", listen=listen))
    return [nginx, "-p", str(folder), "-c", str(path)]


def _log(folder: Path) -> str:
    return (folder / "error.log").read_text()
