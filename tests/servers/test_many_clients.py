"""The limits per client address of docs/howto/many-clients.md, as it has them, beside
uvicorn.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.serving import free_port, serving
from scripts.tools import nginx
from tests.helpers import namespaces
from tests.helpers.one_and_others import tried
from tests.helpers.server_process import ROOT, installed

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "howto" / "many-clients.md"
LIMIT = 100
MORE = 50
HONEST = 5


def command(name: str, folder: Path, front: int, back: int) -> list[str]:
    """The command of a proxy with the configuration of the page."""
    installed(name)
    language = "text" if name == "haproxy" else name
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{front}").replace(
        "127.0.0.1:8000", f"127.0.0.1:{back}"
    )
    if name == "nginx":
        return nginx(folder, text)
    (folder / "haproxy.conf").write_text(text)
    return [name, "-f", str(folder / "haproxy.conf")]


def app(port: int, *before: str) -> list[str]:
    """The command of a guarded uvicorn, which every word of *before* precedes."""
    words = "uvicorn tests.helpers.asgi:application --http reaper.uvicorn:HttpTools"
    words += f" --timeout-graceful-shutdown 1 --port {port}"
    return [*before, sys.executable, "-m", *words.split()]


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_client_with_too_many_connections_is_refused_and_others_are_answered(
    tmp_path: Path, name: str
) -> None:
    front, back = free_port(), free_port()
    proxy = command(name, tmp_path, front, back)
    with (
        serving(app(back), tmp_path / "app", port=back, environment=dict(os.environ)),
        serving(proxy, tmp_path / "proxy", port=front),
    ):
        assert tried(front, LIMIT + MORE, HONEST) == {"refused": MORE, "answered": HONEST}


def test_the_kernel_refuses_too_many_connections_of_a_client_by_the_page(
    tmp_path: Path,
) -> None:
    """In a network namespace, so that no connection of anybody else is counted."""
    installed("nft", "nftables")
    (rules,) = re.findall(r"```\n(table inet.*?)```", PAGE.read_text(), re.DOTALL)
    clients = "-m", "tests.helpers.one_and_others", "8000", str(LIMIT + MORE), str(HONEST)
    with namespaces.opened() as link:
        subprocess.run([*link.server, "nft", "-f", "-"], input=rules, text=True, check=True)
        with serving(app(8000, *link.server), tmp_path / "app", says=re.compile("running on")):
            said = subprocess.run(
                [*link.server, sys.executable, *clients],
                cwd=ROOT, capture_output=True, text=True, check=True,
            )  # fmt: skip
    assert json.loads(said.stdout) == {"refused": MORE, "answered": HONEST}
