"""The tools that others wrote, as demos and trials start them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import tools
from tests.helpers.attach_servers import tool


@pytest.mark.slow
def test_nginx_takes_a_folder_with_a_blank_and_a_letter_beyond_ascii(
    tmp_path: Path, port: int
) -> None:
    tool("nginx")
    folder = tmp_path / "a blank" / "Ünit"
    folder.mkdir(parents=True)
    command = tools.nginx(folder, f"server {{ listen 127.0.0.1:{port}; }}")
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
