"""Tools that others wrote, for demos, trials and benchmarks: where they are, and the
least that they need.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
from pathlib import Path

PATIENCE = 60.0
"""Seconds for an answer."""
NGINX = """
daemon off; pid "{folder}/nginx.pid"; error_log "{folder}/error.log" info; {main}
events {{ worker_connections {most}; }}
http {{
    access_log off; client_body_temp_path "{folder}/body"; proxy_temp_path "{folder}/proxy";
    fastcgi_temp_path "{folder}/fastcgi"; uwsgi_temp_path "{folder}/uwsgi";
    scgi_temp_path "{folder}/scgi";
    {http}
}}
"""


class Missing(RuntimeError):
    """A tool is not installed; the message names it, and the Debian package it comes
    in.
    """


def tool(name: str, package: str = "") -> str:
    """Where the command *name* is; daemons are not on every PATH. Raises Missing."""
    found = shutil.which(name) or shutil.which(
        name, path="/usr/sbin:/sbin:/usr/bin:/usr/local/sbin"
    )
    if found is None:
        raise Missing(f"{name} is not installed (Debian: apt-get install {package or name})")
    return found


def nginx(
    folder: Path, http: str, *, main: str = "master_process off;", most: int = 4096
) -> list[str]:
    """The command of an nginx that serves *http* and writes in *folder* alone. Raises
    Missing.
    """
    command = tool("nginx")
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, http=http, main=main, most=most))
    return [command, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)]


def certificate(folder: Path) -> tuple[str, str]:
    """(certificate, key): files in *folder*, self-signed for 127.0.0.1 and localhost.
    Raises Missing.
    """
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = [
        tool("openssl"),
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += [
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1,DNS:localhost",
    ]
    subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def limited(command: list[str], **limits: int) -> list[str]:
    """*command* with rlimits, both hard and soft: fsize=..., nofile=... Raises
    Missing.
    """
    flags = [f"--{name}={most}:{most}" for name, most in limits.items()]
    return [tool("prlimit", "util-linux"), *flags, *command] if limits else command


def get(address: tuple[str, int], target: str) -> tuple[int, bytes]:
    """One GET on a connection of its own: status and body."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def metrics(address: tuple[str, int]) -> dict[str, float]:
    """The counters of our HTTP server, by name with labels."""
    lines = get(address, "/metrics")[1].decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}
