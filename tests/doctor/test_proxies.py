"""The keep-alive timeout is compared with the proxy in front, and each printed command
mends it.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from reaper.doctor.proxies import by_command, by_config, pool_by_command, pool_by_config

FILES = {
    "it is set": '[server]\nbehind = "gcp-alb"\n[timeouts]\nkeep_alive = "5s"\n',
    "it is not set": '[timeouts]\nidle = "9s"\n[server]\nbehind = "gcp-alb"\n',
    "no timeout is": '[server]\nbehind = "gcp-alb"\n',
    "the proxy only forgets": '[server]\nbehind = "nlb"\n[timeouts]\nkeep_alive = "1h"\n',
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_the_command_for_a_file_mends_it(text: str, tmp_path: Path) -> None:
    config = tmp_path / "a reaper.toml"
    config.write_text(text)
    wrong = by_config(str(config), None)
    assert wrong is not None
    subprocess.run(["sh", "-c", wrong[1]], check=True)
    assert by_config(str(config), None) is None


def test_the_proxy_that_is_said_counts_before_that_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "reaper.toml"
    config.write_text('[server]\nbehind = "httpx"\n[timeouts]\nkeep_alive = "30s"\n')
    assert by_config(str(config), None) is None
    assert by_config(str(config), "nginx") is not None


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/python3 -m uvicorn app:app",
        "/venv/bin/python /venv/bin/uvicorn app:app --timeout-keep-alive 70",
        "gunicorn --keep-alive=70 app:app",
        "/venv/bin/hypercorn --keep-alive 5 app:app",
    ],
)
def test_the_printed_command_of_a_server_suits_the_proxy(command: str) -> None:
    wrong = by_command(shlex.split(command), "nginx")
    assert wrong is not None
    said, mend = wrong
    assert "nginx's idle time of 75s" in said
    assert "keep-alive 80" in mend
    assert "70" not in mend
    assert by_command(shlex.split(mend), "nginx") is None


def test_the_timeout_of_a_server_that_does_not_say_it_is_not_guessed() -> None:
    with pytest.raises(LookupError):
        by_command(["node", "server.js"], "nginx")


TTL = (
    "proxy: keep_alive {}: Apache httpd's mod_proxy keeps an idle connection for ever without ttl="
)


def test_of_a_pool_without_an_end_it_is_said_what_it_has_to_be_told(tmp_path: Path) -> None:
    config = tmp_path / "reaper.toml"
    config.write_text('[timeouts]\nkeep_alive = "60s"\n[server]\nbehind = "apache"\n')
    assert by_config(str(config), None) is None
    for behind, number in ((None, 1), ("apache", 1), ("httpx", 0)):
        assert len(pool_by_config(str(config), behind)) == number
    command = ["gunicorn", "--keep-alive", "80", "app:app"]
    assert by_command(command, "apache") is None
    (said,) = pool_by_command(command, "apache")
    assert said.startswith(TTL.format("80s"))
    assert said.endswith("use 78")
    assert pool_by_command(command, "nginx") == []
