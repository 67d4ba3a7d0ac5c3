"""Claims about `reaper deploy`: what it prints is in deploy/, and its own tool accepts
it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reaper.__main__ import main
from reaper.deploy import FILES, SERVERS, text
from tests.helpers.server_process import PATIENCE, ROOT, installed

if TYPE_CHECKING:
    from tests.conftest import Ran

DEPLOY = ROOT / "deploy"
OTHERS = [name for name in SERVERS if name != "uvicorn"]


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("systemd", "systemd/reaper-uvicorn.service"),
        ("systemd --for uvicorn", "systemd/reaper-uvicorn.service"),
        ("systemd --for attach", "systemd/reaper-attach@.service"),
        ("docker", "docker/app.Dockerfile"),
        ("prometheus", "prometheus/alerts.yml"),
        ("grafana", "grafana/dashboard.json"),
    ],
)
def test_it_prints_a_file_of_deploy(words: str, file: str, call: Ran) -> None:
    assert call(main, "deploy", *words.split()) == (0, (DEPLOY / file).read_text(), "")


@pytest.mark.parametrize("words", ["", "nomad", "systemd --for apache", "grafana --for uvicorn"])
def test_what_it_does_not_have_is_one_line_and_status_2(words: str, call: Ran) -> None:
    status, out, err = call(main, "deploy", *words.split())
    assert (status, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("kind", ["systemd", "docker"])
@pytest.mark.parametrize("server", OTHERS)
def test_a_file_for_another_server_speaks_of_no_uvicorn(kind: str, server: str) -> None:
    said = text(kind, server)
    assert "uvicorn" not in said
    assert said.replace(", ", " ").replace('"', "").count(SERVERS[server]) == 1


@pytest.mark.parametrize("server", SERVERS)
def test_unit_and_container_start_the_same_program(server: str) -> None:
    (line,) = re.findall(r"^ExecStart=\S+ (.*)$", text("systemd", server), re.MULTILINE)
    entry, command = (
        json.loads(found)
        for found in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text("docker", server), re.MULTILINE)
    )
    within = line.replace("/srv/app/.venv/bin/", "").replace(
        " --config /etc/reaper/reaper.toml", ""
    )
    assert ["python", *within.split()] == entry + command


@pytest.mark.slow
@pytest.mark.parametrize("server", [*SERVERS, "attach"])
def test_systemd_accepts_the_unit_of_each_server(server: str, tmp_path: Path) -> None:
    said = text("systemd", server)
    for folder in ("/opt/reaper", "/srv/app"):
        said = said.replace(f"{folder}/.venv/bin/python", f'"{sys.executable}"')
        said = said.replace(folder, str(tmp_path))
    unit = tmp_path / ("reaper-attach@80.service" if server == "attach" else "reaper-app.service")
    unit.write_text(said)
    command = [installed("systemd-analyze", "systemd"), "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(text("prometheus"))
    command = [installed("promtool", "prometheus"), "check", "rules", "alerts.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_every_kind_has_its_files() -> None:
    for files in FILES.values():
        assert all((DEPLOY / file).is_file() for file in files.values())
    assert "panels" in json.loads(text("grafana"))
