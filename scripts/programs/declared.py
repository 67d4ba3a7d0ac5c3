"""The programs: how each is installed, started on a port, asked, and told to reload.

In words that are started, and in files, `{port}` is where a program shall listen,
`{dir}` a folder of its own with the files of apps/ in it, `{bin}` the folder of its
Python, `{backend}` the port of a server behind it, which answers as apps/asgi.py does,
and `{slow}` the seconds of a slow answer.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from reaper.servers.cards import cards

from .asks import (
    FTP,
    GRPC,
    HTTP,
    MEMCACHED,
    MQTT,
    PAGES,
    POSTGRES,
    REDIS,
    SMTP,
    SSH,
    WEBSOCKET,
    Asks,
)

Reload = signal.Signals | str | None
"""How a program is told to reload: by a signal, by a changed file (its name), by a
command (it has a blank), or not at all.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A program as its own pages say that it is started.

    Attributes:
        name: In the table.
        command: Its words, with blanks between them.
        pip: What is installed with pip, pinned; the first names the version in the
            table.
        apt: The Debian package, if it is one.
        asks: What it is sent.
        reload: How it reloads.
        files: Written into `{dir}` before the start.
        setup: Commands that are run before the start.
        environment: On top of ours.
        tested: Whether the tests of `reaper run` start it, too, from the packages of
            the tests.
    """

    name: str
    command: str
    pip: tuple[str, ...] = ()
    apt: str = ""
    asks: Asks = HTTP
    reload: Reload = None
    files: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tested: bool = False


HUP, USR1, USR2 = signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
UVICORN = ("uvicorn[standard]==0.54.0", "anyio==4.16.0")
GUNICORN = ("gunicorn==27.0.1", "anyio==4.16.0")
HYPERCORN = ("hypercorn[trio]==0.18.0", "anyio==4.16.0")
FASTAPI = ("fastapi[standard]==0.165.0",)
AS_POSTGRES = "setpriv --reuid postgres --regid postgres --clear-groups"
LISTEN = "gunicorn -b 127.0.0.1:{port} --no-control-socket"

NGINX = """daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log; worker_processes 2; user root;
events {{ }}
http {{
    access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{
        proxy_pass http://127.0.0.1:{backend}; proxy_buffering off; }} }}
}}
"""
HAPROXY = """global
defaults
    mode http
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen all
    bind 127.0.0.1:{port}
    server one 127.0.0.1:{backend}
"""
APACHE = """ServerName localhost
ServerRoot {dir}
PidFile {dir}/pid
Listen 127.0.0.1:{port}
User www-data
Group www-data
ErrorLog {dir}/error.log
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule reqtimeout_module /usr/lib/apache2/modules/mod_reqtimeout.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
ProxyPass / http://127.0.0.1:{backend}/ flushpackets=on
RequestReadTimeout header=20-40,minrate=500
RequestReadTimeout body=10,minrate=500
"""
LIGHTTPD = """server.modules = ("mod_proxy")
server.document-root = "{dir}"
server.bind = "127.0.0.1"
server.port = {port}
server.stream-response-body = 2
proxy.server = ("" => (("host" => "127.0.0.1", "port" => {backend})))
"""
CADDY = """{{
    admin unix//{dir}/admin
}}
http://127.0.0.1:{port}, http://localhost:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{backend} {{
        flush_interval -1
    }}
}}
"""

LIBRARIES = {
    kind.name: card.needs[0].tested[1]
    for card in cards()
    for kind in card.kinds
    if card.family and not kind.starts and "timeouts.headers" in kind.acts
}
"""Servers that speak HTTP and are started by a program of apps/programs.py, and the
releases that were tested.
"""

PROGRAMS = (
    Program("uvicorn", "uvicorn asgi:app --port {port}", UVICORN, tested=True),
    Program("uvicorn, workers", "uvicorn asgi:app --port {port} --workers 2", UVICORN, reload=HUP),
    Program(
        "uvicorn --reload",
        "uvicorn asgi:app --port {port} --reload --reload-dir {dir}",
        UVICORN,
        reload="asgi.py",
    ),
    Program(
        "fastapi run",
        "fastapi run {dir}/fastapi_app.py --host 127.0.0.1 --port {port}",
        FASTAPI,
    ),
    Program(
        "fastapi dev",
        "fastapi dev {dir}/fastapi_app.py --port {port}",
        FASTAPI,
        reload="fastapi_app.py",
    ),
    Program(
        "litestar run",
        "litestar --app litestar_app:app run --port {port}",
        ("litestar[standard]==2.25.0",),
    ),
    Program("datasette", "datasette --memory --port {port}", ("datasette==0.65.5",), asks=PAGES),
    Program(
        "mcp, streamable HTTP", "python {dir}/programs.py mcp {port}", ("mcp==2.3.0",), asks=PAGES
    ),
    Program(
        "gradio",
        "python {dir}/gradio_app.py {port}",
        ("gradio==6.31.0",),
        asks=PAGES,
        environment={"GRADIO_ANALYTICS_ENABLED": "False"},
    ),
    Program("nicegui", "python {dir}/nicegui_app.py {port}", ("nicegui==3.18.0",), asks=PAGES),
    Program(
        "marimo run",
        "marimo run {dir}/marimo_app.py --headless --host 127.0.0.1 --port {port} --no-token",
        ("marimo==0.25.2",),
        asks=PAGES,
    ),
    Program(
        "gunicorn, uvicorn's worker",
        f"{LISTEN} -k uvicorn.workers.UvicornWorker asgi:app",
        (*GUNICORN, *UVICORN),
        reload=HUP,
        tested=True,
    ),
    Program("gunicorn, asgi", f"{LISTEN} -k asgi asgi:app", GUNICORN, reload=HUP),
    Program(
        "gunicorn, threads", f"{LISTEN} --threads 8 wsgi:app", GUNICORN, reload=HUP, tested=True
    ),
    Program("gunicorn, sync", f"{LISTEN} --workers 8 wsgi:app", GUNICORN, reload=HUP),
    Program(
        "gunicorn, gevent",
        f"{LISTEN} -k gevent wsgi:app",
        ("gunicorn[gevent]==27.0.1", "gevent==26.9.0"),
        reload=HUP,
    ),
    Program("hypercorn", "hypercorn -b 127.0.0.1:{port} asgi:app", HYPERCORN, tested=True),
    Program("hypercorn, trio", "hypercorn -k trio -b 127.0.0.1:{port} asgi:app", HYPERCORN),
    Program(
        "quart run",
        "quart --app quart_app run --port {port}",
        ("quart==0.22.0", "anyio==4.16.0"),
    ),
    Program(
        "quart-trio",
        "python {dir}/programs.py quart_trio {port}",
        ("quart-trio==0.12.0", "anyio==4.16.0"),
    ),
    Program("daphne", "daphne -b 127.0.0.1 -p {port} asgi:app", ("daphne==4.2.3", "anyio==4.16.0")),
    Program(
        "aiohttp", "python {dir}/programs.py aiohttp {port}", ("aiohttp==3.14.5",), tested=True
    ),
    *(
        Program(
            name,
            f"python {{dir}}/programs.py {name} {{port}}",
            (f"{name}=={release}",),
            tested=True,
        )
        for name, release in LIBRARIES.items()
    ),
    Program(
        "websockets",
        "python {dir}/programs.py websockets {port}",
        ("websockets==17.4",),
        asks=WEBSOCKET,
    ),
    Program("anyio", "python {dir}/programs.py anyio {port}", ("anyio==4.16.0",)),
    Program(
        "jupyter server",
        "jupyter server --allow-root --no-browser --ip 127.0.0.1 --port {port}"
        " --ServerApp.root_dir={dir} --IdentityProvider.token=",
        ("jupyter-server==2.21.1",),
        asks=PAGES,
    ),
    Program(
        "streamlit run",
        "streamlit run {dir}/streamlit_app.py --server.headless true --server.address 127.0.0.1"
        " --server.port {port} --browser.gatherUsageStats false",
        ("streamlit==1.67.0",),
        asks=PAGES,
    ),
    Program(
        "bokeh serve",
        "bokeh serve {dir}/bokeh_app.py --address 127.0.0.1 --port {port}",
        ("bokeh==3.9.2",),
        asks=PAGES,
    ),
    Program(
        "granian",
        "granian --interface asgi --port {port} asgi:app",
        ("granian==2.8.7", "anyio==4.16.0"),
        reload=HUP,
    ),
    Program("flask run", "flask --app flask_app run --port {port}", ("flask==3.1.3",)),
    Program(
        "flask run --debug",
        "flask --app flask_app run --debug --port {port}",
        ("flask==3.1.3",),
        reload="flask_app.py",
    ),
    Program(
        "django runserver",
        "python {dir}/django_app.py runserver 127.0.0.1:{port}",
        ("django==5.2.19",),
        reload="django_app.py",
        tested=True,
    ),
    Program("dash", "python {dir}/dash_app.py {port}", ("dash==4.4.1",), asks=PAGES),
    Program(
        "waitress",
        "waitress-serve --listen 127.0.0.1:{port} --threads 8 wsgi:app",
        ("waitress==3.0.2",),
    ),
    Program("cherrypy", "python {dir}/cherrypy_app.py {port}", ("cherrypy==18.10.0",)),
    Program(
        "http.server",
        "python -m http.server --directory {dir} --bind 127.0.0.1 {port}",
        asks=PAGES,
    ),
    Program(
        "twist web",
        "twist web --listen tcp:{port}:interface=127.0.0.1 --path {dir}",
        ("twisted==26.10.0",),
        asks=PAGES,
        tested=True,
    ),
    Program(
        "aiosmtpd",
        "aiosmtpd -n -l 127.0.0.1:{port} -c smtp.Slow",
        ("aiosmtpd==1.4.6",),
        asks=SMTP,
    ),
    Program("asyncssh", "python {dir}/ssh.py {port}", ("asyncssh==2.24.1",), asks=SSH),
    Program(
        "pyftpdlib",
        "python -m pyftpdlib -i 127.0.0.1 -p {port} -d {dir}",
        ("pyftpdlib==2.2.0",),
        asks=FTP,
    ),
    Program("grpc.aio", "python {dir}/grpc_app.py {port}", ("grpcio==1.85.3",), asks=GRPC),
    Program("node, http", "node {dir}/node_app.js {port}", apt="nodejs"),
    Program(
        "nginx",
        "nginx -p {dir} -e {dir}/error.log -c {dir}/nginx.conf",
        apt="nginx",
        reload=HUP,
        files={"nginx.conf": NGINX},
        tested=True,
    ),
    Program(
        "haproxy",
        "haproxy -W -db -f {dir}/haproxy.cfg",
        apt="haproxy",
        reload=USR2,
        files={"haproxy.cfg": HAPROXY},
        tested=True,
    ),
    Program(
        "apache2",
        "apache2 -D FOREGROUND -f {dir}/apache2.conf",
        apt="apache2",
        reload=USR1,
        files={"apache2.conf": APACHE},
    ),
    Program(
        "lighttpd",
        "lighttpd -D -f {dir}/lighttpd.conf",
        apt="lighttpd",
        reload=USR1,
        files={"lighttpd.conf": LIGHTTPD},
    ),
    Program(
        "caddy",
        "caddy run --config {dir}/Caddyfile",
        apt="caddy",
        reload="caddy reload --force --config {dir}/Caddyfile --address unix//{dir}/admin",
        files={"Caddyfile": CADDY},
    ),
    Program(
        "uwsgi",
        "uwsgi --plugin python3 --master --die-on-term --http-socket 127.0.0.1:{port} --threads 8"
        " --wsgi-file {dir}/wsgi.py --callable app",
        apt="uwsgi-plugin-python3",
        reload=HUP,
    ),
    Program(
        "redis",
        "redis-server --bind 127.0.0.1 --port {port} --save  --dir {dir}",
        apt="redis-server",
        asks=REDIS,
        tested=True,
    ),
    Program(
        "memcached", "memcached -u nobody -l 127.0.0.1 -p {port}", apt="memcached", asks=MEMCACHED
    ),
    Program(
        "mosquitto",
        "mosquitto -c {dir}/mosquitto.conf",
        apt="mosquitto",
        asks=MQTT,
        reload=HUP,
        files={"mosquitto.conf": "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n"},
    ),
    Program(
        "postgres",
        f"{AS_POSTGRES} postgres -D {{dir}}/data -p {{port}} -k {{dir}} -h 127.0.0.1",
        apt="postgresql",
        asks=POSTGRES,
        reload=HUP,
        setup=(
            "chown -R postgres {dir}",
            f"{AS_POSTGRES} initdb -D {{dir}}/data -A trust --no-sync",
        ),
    ),
)
"""In the order of the table. `--save` of redis is followed by an empty word."""
