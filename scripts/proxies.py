"""Proxies and pools of connections, measured: when they close an idle connection, and what the keep-alive race costs.

    python -m scripts.proxies pools      # each in front of `reaper-loadgen probe --listen`
    python -m scripts.proxies race       # `reaper-loadgen race`, direct and through nginx and haproxy
    python -m scripts.proxies tls        # `reaper-loadgen probe` of https:// and wss://

One rule: *the measured tables of docs/howto/proxies.md and docs/probe.md are printed by this program*. What is not
installed is named.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadgen.backend import HEADINGS, Upstream, listen
from loadgen.clients import HTTP, Speech, ask
from loadgen.drive.protocols import Paths
from loadgen.drive.wire import Tls
from loadgen.probe import aligned, probe
from loadgen.race import Result, race
from loadgen.units import parse_target

from .serving import ROOT, free_port, serving

TIMES, CLIENTS, KEEP_ALIVE, TICK = 10_000, 250, 3.0, 0.1
NGINX = """daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 4000; }}
http {{
    access_log off; client_body_temp_path {dir}/1; proxy_temp_path {dir}/2; fastcgi_temp_path {dir}/3;
    uwsgi_temp_path {dir}/4; scgi_temp_path {dir}/5;
    upstream app {{ server 127.0.0.1:{backend}; keepalive 1000; }}
    server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
        proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; {more} }} }}
}}
"""
HAPROXY = """global
    maxconn 4000
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    http-reuse always
    {more}
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    server s 127.0.0.1:{backend} pool-max-conn 4000
"""
APACHE = """ServerName localhost
ServerRoot {dir}
PidFile {dir}/pid
ErrorLog {dir}/error.log
Listen 127.0.0.1:{port}
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
ProxyPass / http://127.0.0.1:{backend}/
"""
CADDY = """{{
    admin off
}}
http://127.0.0.1:{port} {{
    reverse_proxy 127.0.0.1:{backend}
}}
"""
TWICE = """
import asyncio, time
async def main():
    {body}
asyncio.run(main())
"""
URL = "http://127.0.0.1:{backend}/"
HTTPX = """import httpx
    async with httpx.AsyncClient() as client:
        await client.get('{url}')
        await asyncio.sleep({pause})
        await client.get('{url}')
        await asyncio.sleep({wait})"""
AIOHTTP = """import aiohttp
    async with aiohttp.ClientSession() as client:
        await (await client.get('{url}')).read()
        await asyncio.sleep({pause})
        await (await client.get('{url}')).read()
        await asyncio.sleep({wait})"""
REQUESTS = """import requests
    client = requests.Session()
    client.get('{url}')
    time.sleep({pause})
    client.get('{url}')
    time.sleep({wait})"""
PYTHON_POOLS = {"httpx": HTTPX, "aiohttp's client": AIOHTTP, "requests (urllib3)": REQUESTS}
UNDICI = ("await (await fetch('{url}')).text(); await new Promise(r => setTimeout(r, 1000 * {pause}));"
          "await (await fetch('{url}')).text(); setTimeout(() => {{}}, 1000 * {wait})")  # fmt: skip


def proxy_command(name: str, folder: Path, port: int, backend: int, more: str = "") -> list[str] | None:
    """How *name* is started in front of *backend*; None: it is not installed."""
    texts = {"nginx": NGINX, "haproxy": HAPROXY, "apache2": APACHE, "caddy": CADDY, "varnishd": ""}
    binary = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        return None
    config = folder / f"{name}.conf"
    config.write_text(texts[name].format(dir=folder, port=port, backend=backend, more=more))
    return {
        "nginx": [binary, "-c", str(config), "-p", str(folder)],
        "haproxy": [binary, "-f", str(config)],
        "apache2": [binary, "-f", str(config), "-DFOREGROUND"],
        "caddy": [binary, "run", "--config", str(config), "--adapter", "caddyfile"],
        "varnishd": [binary, "-F", "-n", str(folder / "v"), "-a", f"127.0.0.1:{port}", "-b", f"127.0.0.1:{backend}",
                     "-p", "vcl_req_method=GET"][:-2],
    }[name]  # fmt: skip


@contextmanager
def proxy(name: str, backend: int, more: str = "") -> Iterator[int | None]:
    """Its port; None: it is not installed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        port = free_port()
        command = proxy_command(name, Path(folder), port, backend, more)
        if command is None:
            yield None
            return
        environment = os.environ | {"HOME": folder, "APACHE_RUN_DIR": folder}
        stack.enter_context(serving(command, Path(folder) / "log", port=port, environment=environment))
        yield port


async def held(backend: int, wait: float, pauses: tuple[float, ...], front: int) -> Upstream:
    """What the proxy at *front* does with its connections, asked after each of *pauses*."""

    async def asking() -> None:
        for pause in pauses:
            await asyncio.sleep(pause)
            await ask(("127.0.0.1", front))

    tasks: list[asyncio.Task[None]] = []
    return await listen(
        parse_target(f"127.0.0.1:{backend}"), wait, None, lambda _: tasks.append(asyncio.create_task(asking()))
    )


def pools(wait: float) -> list[list[str]]:
    """The table: each proxy and pool that is installed, asked once, and again at 95 % of what it then took."""
    table = [["who", *HEADINGS[:3]]]
    for name in ("nginx", "haproxy", "apache2", "varnishd", "caddy"):
        backend = free_port()
        with proxy(name, backend) as front:
            if front is None:
                print(f"{name} is not installed", file=sys.stderr)
                continue
            first = asyncio.run(held(backend, wait, (0.0,), front))
            pause = 0.95 * first.idles[0] if first.idles else 0.5 * wait
            second = asyncio.run(held(backend, pause + 2.0, (0.0, pause), front))
            table.append([name, *reuse(first, second)])
            print(table[-1], file=sys.stderr, flush=True)
    node = shutil.which("node")
    commands = {name: lambda body: [sys.executable, "-c", TWICE.format(body=body)] for name in PYTHON_POOLS}
    for name, text in {**PYTHON_POOLS, "Node's undici": UNDICI}.items():
        if name not in PYTHON_POOLS and node is None:
            continue
        found = []
        for pause in (0.1, 0.0):
            backend = free_port()
            pause = pause or (0.95 * found[0].idles[-1] if found[0].idles else 0.5 * wait)
            body = text.format(url=URL.format(backend=backend), pause=pause, wait=wait)
            command = commands[name](body) if name in commands else [str(node), "--input-type=module", "-e", body]
            found.append(asyncio.run(run_pool(backend, command, wait if len(found) == 0 else pause + 2.0)))
        table.append([name, *reuse(found[0], found[1])])
        print(table[-1], file=sys.stderr, flush=True)
    return table


async def run_pool(backend: int, command: list[str], wait: float) -> Upstream:
    """What the pool in *command* does."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        return await listen(
            parse_target(f"127.0.0.1:{backend}"), wait, None,
            lambda _: started.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)),
        )  # fmt: skip
    finally:
        for process in started:
            process.kill()
            process.wait()


def reuse(first: Upstream, second: Upstream) -> list[str]:
    """The row: how long it holds, and whether it reuses just before."""
    return [first.row()[0], second.row()[1], first.row()[2]]


APP = """
import asyncio
async def app(scope, receive, send):
    await asyncio.sleep(0.15)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


def races(times: int) -> list[list[str]]:
    """The table: requests lost per million, stock and guarded, direct and through proxies, the header believed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "raced.py").write_text(APP)
        lanes: dict[tuple[str, str, str], tuple[int, list[Result]]] = {}
        for server, http in (("stock", "httptools"), ("guarded", "reaper.uvicorn:HttpTools")):
            port = free_port()
            command = [sys.executable, "-m", "uvicorn", "raced:app", "--app-dir", folder, "--lifespan", "off"]
            command += ["--http", http, "--timeout-keep-alive", f"{KEEP_ALIVE:g}", "--port", str(port)]
            command += ["--no-access-log", "--backlog", "4096"]
            environment = os.environ | {
                "REAPER_TIMEOUTS_KEEP_ALIVE": f"{KEEP_ALIVE:g}s",
                "REAPER_REAPER_TICK": f"{TICK}s",
            }
            stack.enter_context(serving(command, Path(folder) / server, port=port, environment=environment))
            for between in ("", "nginx", "haproxy"):
                front = stack.enter_context(proxy(between, port)) if between else port
                if front is not None:
                    for believed in ("-",) if between else ("no", "yes"):
                        lanes[server, between or "-", believed] = (front, [])
        for done in range(0, times, CLIENTS):  # in turn, so that the noise of the machine is everybody's
            for (_, between, believed), (front, found) in lanes.items():
                found.append(asyncio.run(
                    race(parse_target(f"127.0.0.1:{front}"), HTTP, KEEP_ALIVE + TICK / 2, min(CLIENTS, times - done),
                         spread=TICK, clients=CLIENTS, honour=believed == "yes", anew=between != "-", method="POST",
                         seed=done)
                ))  # fmt: skip
            print(f"{done + CLIENTS:,} of {times:,}", file=sys.stderr, flush=True)
    table = [["server", "in between", "header believed", "pairs", "on a new connection", "lost", "of a million"]]
    for (server, between, believed), (_, found) in lanes.items():
        pairs, fresh = sum(one.reused + one.fresh for one in found), sum(one.fresh for one in found)
        lost = sum(one.lost.total() for one in found)
        counts = [f"{pairs:,}", f"{fresh:,}" if between == "-" else "-", f"{lost:,}", f"{1e6 * lost / pairs:,.0f}"]
        table.append([f"{server} ({found[0].announced or 'announces nothing'})", between, believed, *counts])
    return table


NGINX_TLS = """daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 1000; }}
http {{
    access_log off; client_body_temp_path {dir}/1; proxy_temp_path {dir}/2; fastcgi_temp_path {dir}/3;
    uwsgi_temp_path {dir}/4; scgi_temp_path {dir}/5;
    keepalive_timeout 5s; client_header_timeout 3s; client_body_timeout 4s;
    server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem;
        location / {{ proxy_pass http://127.0.0.1:9; }} location = / {{ return 200 "hello"; }} }}
}}
"""
GUARDED = {"FIRST_BYTE": "3s", "HEADERS": "3s", "BODY": "4s", "KEEP_ALIVE": "5s", "TUNNEL": "6s", "MAX_AGE": "0s"}
SOCKETS = """
async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


def over_tls(wait: float) -> list[list[str]]:
    """The table: what each server does with each question over https and wss; `-`: still open after *wait* seconds."""
    columns: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "probed.py").write_text(SOCKETS)
        made = ["-out", str(folder / "cert.pem"), "-keyout", str(folder / "key.pem")]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", *made],
            check=True, capture_output=True,
        )  # fmt: skip
        files = {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
        uvicorn = [sys.executable, "-m", "uvicorn", "probed:app", "--app-dir", name, "--timeout-keep-alive", "5"]
        uvicorn += ["--ssl-certfile", files["cert"], "--ssl-keyfile", files["key"], "--no-access-log"]
        hypercorn = [sys.executable, "-m", "hypercorn", "probed:app", "--keep-alive", "5", "--read-timeout", "5"]
        hypercorn += ["--certfile", files["cert"], "--keyfile", files["key"]]
        servers = {
            "nginx": ["nginx", "-c", str(folder / "tls.conf"), "-p", name],
            "uvicorn": uvicorn,
            "uvicorn, guarded": [*uvicorn, "--http", "reaper.uvicorn:Auto"],
            "hypercorn": hypercorn,
        }
        for server, command in servers.items():
            port = free_port()
            (folder / "tls.conf").write_text(NGINX_TLS.format(dir=name, port=port))
            command = command + (["--bind", f"127.0.0.1:{port}"] if server == "hypercorn" else [])
            command = command + (["--port", str(port)] if server.startswith("uvicorn") else [])
            environment = os.environ | {f"REAPER_TIMEOUTS_{key}": value for key, value in GUARDED.items()}
            environment["PYTHONPATH"] = name
            stack.enter_context(serving(command, folder / "log", port=port, environment=environment, cwd=folder))
            column = columns.setdefault(server, {})
            for protocol in ("http", "ws") if server != "nginx" else ("http",):
                speech = Speech(protocol, Paths("/"), Tls("localhost", insecure=True))
                for found in probe(parse_target(f"127.0.0.1:{port}"), speech, wait, {}, 4):
                    column[found.name] = found.observed() if found.closed else "-"
            print(server, column, file=sys.stderr, flush=True)
    names = dict.fromkeys(question for column in columns.values() for question in column)
    return [["question", *columns], *([name, *(column.get(name, "") for column in columns.values())] for name in names)]


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m scripts.proxies", description="Measure proxies and pools.")
    tables = parser.add_subparsers(required=True, metavar="TABLE")
    for name, make, kind, default, unit in (
        ("pools", pools, float, 130.0, "SECONDS"),
        ("race", races, int, TIMES, "TIMES"),
        ("tls", over_tls, float, 12.0, "SECONDS"),
    ):
        table = tables.add_parser(name, help=(make.__doc__ or "").split(":")[1].split(";")[0].strip(" ."))
        table.add_argument("much", nargs="?", type=kind, default=default, metavar=unit, help="default %(default)s")
        table.set_defaults(make=make)
    given = parser.parse_args()
    print("\n".join(aligned(given.make(given.much), markdown=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
