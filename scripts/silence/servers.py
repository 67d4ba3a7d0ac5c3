"""The ten servers: how each is started, and which limits it has."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 3.0
"""Seconds of each limit that a server has."""
ASGI = "loadgen.conform.apps.asgi_app:app"
WSGI = "loadgen.conform.apps.wsgi_app:app"
NGINX = """
daemon off; master_process on; worker_processes 1; error_log stderr crit;
pid {folder}/nginx.pid;
events {{ worker_connections 2000; }}
http {{
  access_log off; client_max_body_size 10m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_header_timeout 3s; client_body_timeout 3s; send_timeout 3s; keepalive_timeout 3s;
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1; }} }}
}}
"""
HAPROXY = """
global
  maxconn 2000
defaults
  mode http
  timeout connect 5s
  timeout server 60s
  timeout client 3s
  timeout http-request 3s
  timeout http-keep-alive 3s
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  server one 127.0.0.1:{backend}
"""
APACHE = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/apache.pid
Mutex file:{folder}
ErrorLog /dev/null
Listen 127.0.0.1:{port}
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
LoadModule reqtimeout_module /usr/lib/apache2/modules/mod_reqtimeout.so
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 3
Timeout 3
ProxyTimeout 60
RequestReadTimeout header=3 body=3
ProxyPass / http://127.0.0.1:{backend}/
"""
VCL = """
vcl 4.1;
backend default {{ .host = "127.0.0.1"; .port = "{backend}"; .first_byte_timeout = 60s; }}
sub vcl_recv {{ return (pass); }}
"""


@dataclass(frozen=True)
class Server:
    """A server that is tried.

    Attributes:
        command: The words that start it: `{port}` is where it listens, `{folder}` a
            folder of its own, `{backend}` where the application is, for a proxy.
        limits: The limits that it has, by the names of `reaper-loadgen conform`.
        about: How its limits are called.
        config: The file that it reads, if any, which is `{folder}/config`.
        needs: The program that has to be installed.
        stop: The signal by which it stops gracefully.
    """

    name: str
    command: str
    limits: tuple[str, ...]
    about: str
    config: str = ""
    needs: str = ""
    stop: str = "TERM"

    @property
    def proxies(self) -> bool:
        """Whether it stands before an application."""
        return "{backend}" in self.config


ALL = ("first_byte", "headers", "body", "keep_alive", "write")
PYTHON = f"{shlex.quote(sys.executable)} -m"
SERVERS = (
    Server(
        "nginx",
        "nginx -c {folder}/config -p {folder}",
        ALL,
        "`client_header_timeout`, `client_body_timeout`, `send_timeout`, `keepalive_timeout`",
        NGINX,
        "nginx",
        "QUIT",
    ),
    Server(
        "HAProxy",
        "haproxy -f {folder}/config -db",
        ALL,
        "`timeout http-request`, `http-keep-alive`, `client`",
        HAPROXY,
        "haproxy",
        "USR1",
    ),
    Server(
        "Apache",
        "apache2 -f {folder}/config -DFOREGROUND",
        ALL,
        "`RequestReadTimeout`, `KeepAliveTimeout`, `Timeout`; MPM event",
        APACHE,
        "apache2",
        "WINCH",
    ),
    Server(
        "Varnish",
        "varnishd -F -f {folder}/config -a 127.0.0.1:{port} -n {folder}/v -s malloc,64m"
        " -p timeout_idle=3 -p idle_send_timeout=3 -p send_timeout=3",
        ("first_byte", "headers", "keep_alive"),
        "`timeout_idle`, `send_timeout`",
        VCL,
        "varnishd",
    ),
    Server(
        "Node",
        f"node {HERE}/app.js {{port}}",
        ("headers", "keep_alive"),
        "`headersTimeout`, `keepAliveTimeout`; looks each 0.5 s",
        needs="node",
    ),
    Server(
        "Go",
        "{folder}/app {port}",
        ("first_byte", "headers", "keep_alive"),
        "`ReadHeaderTimeout`, `IdleTimeout`",
        needs="go",
    ),
    Server(
        "uvicorn",
        f"{PYTHON} uvicorn {ASGI} --port {{port}} --no-access-log --timeout-keep-alive 3",
        ("keep_alive",),
        "`--timeout-keep-alive`",
    ),
    Server(
        "gunicorn, threads",
        f"{PYTHON} gunicorn {WSGI} -k gthread --threads 100 --keep-alive 3 --no-control-socket"
        " -b 127.0.0.1:{port}",
        ("keep_alive",),
        "`--keep-alive`",
    ),
    Server(
        "http.server",
        f"{PYTHON} loadgen.conform.apps.http_app {{port}}",
        (),
        "none",
    ),
    Server(
        "uvicorn, guarded",
        f"{PYTHON} reaper run --first-byte 3s --headers 3s --body 3s --keep-alive 3s --write 3s"
        " --tunnel 3s --tick 500ms -- "
        f"{PYTHON} uvicorn {ASGI} --port {{port}} --no-access-log",
        (*ALL, "tunnel"),
        "`reaper run`, each of its limits",
    ),
)


def prepare(server: Server, folder: Path, port: int, backend: int) -> list[str]:
    """The words that start *server*, whose files are in *folder* then."""
    where = {"folder": folder, "port": port, "backend": backend}
    folder.mkdir(parents=True, exist_ok=True)
    if server.config:
        (folder / "config").write_text(server.config.format(**where))
    if server.name == "Go":
        subprocess.run(["go", "build", "-o", folder / "app", HERE / "app.go"], check=True)
    return [word.format(**where) for word in shlex.split(server.command)]
