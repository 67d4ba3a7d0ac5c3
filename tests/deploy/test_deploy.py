"""What is in `deploy/`: rules, dashboard, units and containers name what exists, and
are accepted by their tools.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from reaper.config.settings import OPTIONS
from reaper.deploy import text as printed
from scripts.serving import free_port, serving
from scripts.tools import get
from server_example.__main__ import main as server_main
from tests.helpers.server_process import PATIENCE, ROOT, installed, server, wait_until

DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
NAME = re.compile(r"\b(?:reaper|http)_[a-z_]+\b")


def expressions() -> list[str]:
    """Every query of the dashboard, as Prometheus is asked it by Grafana for an hour,
    all instances.
    """
    found = [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    ]
    for variable, value in {
        "$__rate_interval": "1m",
        "$__range": "1h",
        "$job": ".*",
        "$instance": ".*",
    }.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of all metrics that a real server exports, with everything switched on."""
    pytest.importorskip("psutil")
    pytest.importorskip("pyarrow")
    flags = (
        "--pressure",
        "--journal",
        str(tmp_path_factory.mktemp("journal")),
        "--drain-idle",
        "0s",
    )
    with server("http", *flags) as process:
        text = get(process.address, "/metrics")[1].decode()
    return set(re.findall(r"^(?:# TYPE )?([a-z]\w+)", text, re.MULTILINE))


@pytest.mark.slow
def test_every_metric_that_the_rules_the_dashboard_and_the_page_name_is_exported(
    exported: set[str],
) -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    listed = "".join(re.findall(r"^\| (`(?:reaper|http)_.*?) \|", page, re.MULTILINE))
    families = {name for name in exported if not name.endswith(("_bucket", "_sum", "_count"))}
    assert set(re.findall(r"`([a-z]\w+)", listed)) == families
    for expression in [*expressions(), *(rule["expr"] for rule in rules())]:
        names = set(NAME.findall(expression))
        assert names
        assert names <= exported, expression


@pytest.mark.slow
def test_promtool_accepts_configuration_and_rules_and_their_tests_pass() -> None:
    promtool = installed("promtool", "prometheus")
    for words in (
        "check rules alerts.yml",
        "check config prometheus.yml",
        "test rules alerts.test.yml",
    ):
        command = [promtool, *words.split()]
        done = subprocess.run(
            command, cwd=PROMETHEUS, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_of_every_rule_it_is_tested_when_it_fires_and_when_it_is_silent() -> None:
    told = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load((PROMETHEUS / "alerts.test.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    for rule in rules():
        assert {(rule["alert"], True), (rule["alert"], False)} <= set(told), rule["alert"]


@pytest.mark.slow
def test_a_real_prometheus_scrapes_a_real_server_and_answers_every_query(tmp_path: Path) -> None:
    prometheus, port = installed("prometheus", "prometheus"), free_port()
    flags = (
        "--pressure",
        "--journal",
        str(tmp_path / "journal"),
        "--idle",
        "100ms",
        "--keep-alive",
        "100ms",
    )
    quick = (
        "--first-byte",
        "100ms",
        "--tick",
        "50ms",
        "--drain-idle",
        "0s",
        "--status",
        "127.0.0.1:0",
    )
    with server("http", "--workers", "2", *flags, *quick) as process:
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        target = process.says("^status on ").split("/")[2]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
        command = [
            prometheus,
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
        ]
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        with serving(command, tmp_path / "log", port=port) as running:
            clients = [
                socket.create_connection(process.address, timeout=PATIENCE) for _ in range(20)
            ]
            missing = set(expressions())
            until = time.monotonic() + PATIENCE
            while missing and time.monotonic() < until:
                get(process.address, "/")
                time.sleep(0.5)
                with suppress(OSError):
                    missing = {
                        query for query in missing if not api(port, "query", query=query)["result"]
                    }
            for client in clients:
                client.close()
            assert not missing, running.said()
            loaded = api(port, "rules")["groups"][0]["rules"]
            assert {rule["name"] for rule in loaded} == {rule["alert"] for rule in rules()}
            wait_until(
                lambda: (
                    {rule["health"] for rule in api(port, "rules")["groups"][0]["rules"]} == {"ok"}
                )
            )


def api(port: int, path: str, **query: str) -> Any:
    return json.loads(
        get(("127.0.0.1", port), f"/api/v1/{path}?{urllib.parse.urlencode(query)}")[1]
    )["data"]


UNITS = {
    "reaper-server.socket": "reaper-server.socket",
    "reaper-server.service": "reaper-server.service",
    "reaper-uvicorn.service": "reaper-uvicorn.service",
    "reaper-attach@8000.service": "reaper-attach@.service",
}


def unit(name: str) -> str:
    return (DEPLOY / "systemd" / name).read_text()


def value(text: str, key: str) -> str:
    found: list[str] = re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)
    (only,) = found
    return only


def default(name: str) -> float:
    """The default of a setting, in seconds."""
    seconds: Any = OPTIONS[name].default
    return float(seconds)


def test_the_page_installs_pyarrow_for_the_journal_of_the_unit_of_attach() -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    (extras,) = re.findall(r"/opt/reaper/\.venv/bin/pip install '/path/to/reaper\[(.*?)\]'", page)
    assert "--journal" in unit("reaper-attach@.service")
    assert set(extras.split(",")) == {"attach", "journal"}


@pytest.mark.slow
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name, source in UNITS.items():
        text = unit(source)
        for folder in ("/opt/reaper", "/srv/app"):
            text = text.replace(f"{folder}/.venv/bin/python", f'"{sys.executable}"')
            text = text.replace(folder, str(tmp_path))
        (tmp_path / name).write_text(text)
    command = [
        installed("systemd-analyze", "systemd"),
        "verify",
        *(str(tmp_path / name) for name in UNITS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_outlasts_the_drain_and_the_servers_own_watchdog() -> None:
    text = unit("reaper-server.service")
    assert float(value(text, "TimeoutStopSec")) > default("timeouts.drain")
    assert float(value(text, "WatchdogSec")) / 2 > default("server.watchdog") / 2 + 5


def accepts(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the server's command line knows all of *arguments*: with one too many it
    names that one only.
    """
    with pytest.raises(SystemExit):
        server_main([*arguments, "--one-too-many"])
    return capsys.readouterr().err.strip().endswith("unrecognized arguments: --one-too-many")


def test_every_command_that_the_files_name_is_one_that_the_server_accepts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = value(unit("reaper-server.service"), "ExecStart")
    assert accepts(line.partition("server_example ")[2].split(), capsys)
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    entry, command = (
        json.loads(line.split(" ", 1)[1])
        for line in lines
        if line.startswith(("ENTRYPOINT", "CMD"))
    )
    assert entry == ["python", "-m", "server_example"]
    assert accepts(command, capsys)
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text()
    spec, hook = (
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    )
    (container,) = spec["spec"]["containers"]
    assert container["args"][:3] == ["python", "-m", "server_example"]
    assert accepts(container["args"][3:], capsys)
    assert "preStop" in hook["lifecycle"]


def test_the_container_names_files_and_extras_that_exist() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    for name in " ".join(re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)).split():
        assert (ROOT / name).exists(), name
    (extras,) = re.findall(r"'\.\[(.*)\]'", text)
    assert set(extras.split(",")) <= set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )


def test_compose_names_services_files_and_settings_that_exist() -> None:
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for mount in service.get("volumes", ()):
            assert (DEPLOY / "docker" / mount.split(":")[0]).exists(), mount
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:9180"]}]
    assert set(services["server"]["environment"]) <= {
        found.environment for found in OPTIONS.values()
    }


# ---- a systemd of its own: process 1 of new namespaces, with our units alone, on lo

SYSTEMD = "/lib/systemd/systemd"

BOOT = """
set -e
mount -t cgroup2 none /sys/fs/cgroup
for each in /run /var/lib /etc/systemd/system /etc/reaper /opt /srv; do mkdir -p $each; mount -t tmpfs tmpfs $each; done
mkdir -p /opt/python /opt/reaper /srv/app
mount --bind {prefix} /opt/python
mount --bind {root} /opt/reaper
mount -t tmpfs tmpfs /opt/reaper/.venv
mkdir -p /opt/reaper/.venv/bin /opt/reaper/.venv/lib /etc/systemd/system/trial.target.wants
printf 'home = /opt/python/bin\\n' > /opt/reaper/.venv/pyvenv.cfg
ln -s /opt/python/bin/{python} /opt/reaper/.venv/bin/python
mount --bind {lib} /opt/reaper/.venv/lib
{pointers}
ln -s /opt/reaper/.venv /srv/app/.venv
cp -r {given}/etc-reaper/. /etc/reaper/
cp {given}/app.py /srv/app/
cp {given}/units/* /etc/systemd/system/
chmod -R a+rX /srv /etc/reaper
ip link set lo up
touch {given}/console
exec > {given}/console 2>&1
container=trial exec {systemd} --system --unit=trial.target --log-target=kmsg --show-status=no < /dev/null
"""

TRIAL = """[Unit]
After={after}
[Service]
Type=oneshot
ExecStart="{python}" {given}/script.py
ExecStopPost={systemctl} exit --force --force
"""


def pointers(directory: Path) -> Iterator[str]:
    """Commands that let the units' `.venv` point to /opt/reaper instead of to the
    checkout, which a unit cannot see if it lies below /tmp or /root: PrivateTmp and
    ProtectHome hide those.
    """
    for number, path in enumerate((Path(sys.prefix) / "lib").glob("*/site-packages/__editable__*")):
        if path.is_file():
            copy = directory / f"pointer-{number}"
            copy.write_text(path.read_text().replace(str(ROOT), "/opt/reaper"))
            copy.chmod(0o644)
            inside = Path("/opt/reaper/.venv") / path.relative_to(sys.prefix)
            yield f"mount --bind {copy} {shlex.quote(str(inside))}"


def booted(directory: Path, units: dict[str, str], script: str, files: dict[str, str]) -> str:
    """Boot with *units*, run *script* (Python) once they have been started, and return
    what it printed.

    Args:
        files: What lies in `/etc/reaper`, by name; `app.py` in `/srv/app`.
    """
    if not (
        Path(SYSTEMD).exists()
        and shutil.which("unshare")
        and shutil.which("ip")
        and os.geteuid() == 0
    ):
        pytest.skip(
            "needs root, systemd, unshare and ip (Debian: apt-get install systemd iproute2)"
        )
    for name in ("units", "etc-reaper"):
        (directory / name).mkdir()
    directory.chmod(0o755)
    started, output = " ".join(units), directory / "output"
    trial = TRIAL.format(
        after=started, python=sys.executable, given=directory, systemctl=shutil.which("systemctl")
    )
    target = f"[Unit]\nWants={started} trial.service\n"
    said = f"[Service]\nStandardOutput=append:{output}\nStandardError=append:{output}\n"
    # of a Python whose home the unit may not see
    said += "Environment=LD_LIBRARY_PATH=/opt/python/lib\n"
    for name, text in {**units, "trial.service": trial, "trial.target": target}.items():
        # What a booted system has by now, and this one never gets.
        text = text.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n", 1).replace(
            "[Service]\n", said, 1
        )
        (directory / "units" / name).write_text(text)
    for name, text in files.items():
        (directory / ("app.py" if name == "app.py" else f"etc-reaper/{name}")).write_text(text)
    (directory / "script.py").write_text(script)
    boot = BOOT.format(
        prefix=shlex.quote(sys.base_prefix),
        python=f"python{sys.version_info.major}.{sys.version_info.minor}",
        lib=shlex.quote(f"{sys.prefix}/lib"),
        root=shlex.quote(str(ROOT)),
        pointers="\n".join(pointers(directory)),
        given=directory,
        systemd=SYSTEMD,
    )
    namespaces = [
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--cgroup",
        "--net",
        "--uts",
        "--ipc",
    ]
    command = ["unshare", *namespaces, "bash", "-c", boot]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if not output.exists():
        said = (directory / "console").read_text() if (directory / "console").exists() else ""
        pytest.skip(f"no systemd can be started here: {done.stderr[-300:]}{said[-300:]}")
    return output.read_text()


APP = """
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})
"""
ASK = """
import http.client, pathlib, socket, subprocess, time
def ask(port: int):
    while True:
        try:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            client.request("GET", "/")
            response = client.getresponse()
            response.read()
            return client, response.status
        except OSError:
            time.sleep(0.1)
for port in (8080, 8000):
    client, status = ask(port)
    client.sock.settimeout(10)
    print(port, status, client.sock.recv(1), flush=True)  # kept for a second, then closed
def state(unit):
    return subprocess.run(["systemctl", "is-active", unit], capture_output=True, text=True).stdout.strip()
while state("reaper-attach@8000") != "active" or not list(pathlib.Path("/var/lib/private/reaper-attach").iterdir()):
    time.sleep(0.1)
print(state("reaper-server"), state("reaper-uvicorn"), state("reaper-attach@8000"), flush=True)
"""
SETTINGS = '[timeouts]\nkeep_alive = "1s"\nkeep_alive_margin = "0s"\ndrain_idle = "0s"\n[attach]\nidle = "5s"\n'


@pytest.mark.slow
def test_the_units_start_and_serve_under_a_real_systemd(tmp_path: Path) -> None:
    files = {"reaper.toml": SETTINGS, "app.py": APP}
    said = booted(
        tmp_path, {name: unit(source) for name, source in UNITS.items()}, ASK, files
    ).splitlines()
    assert {"8080 200 b''", "8000 200 b''", "active active active"} <= set(said), "\n".join(said)


WSGI = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]
"""
LIMIT = '[timeouts]\nfirst_byte = "1s"\n'


@pytest.mark.slow
def test_a_silent_client_of_gunicorns_unit_is_closed_under_a_real_systemd(tmp_path: Path) -> None:
    ask = ASK.partition("for port in")[0] + (
        "print(ask(8000)[1])\n"
        "silent = socket.create_connection(('127.0.0.1', 8000), timeout=10)\n"
        "print('silent', silent.recv(1), flush=True)\n"
    )
    units = {"reaper-app.service": printed("systemd", "gunicorn")}
    said = booted(tmp_path, units, ask, {"reaper.toml": LIMIT, "app.py": WSGI})
    assert {"200", "silent b''"} <= set(said.splitlines()), said
    assert "ERROR" not in said
