"""The settings of a container, which turns the hook on by REAPER_RUN=1, and of `reaper
run`: they are judged before a server starts, in one line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reaper.run.command import HOOK
from tests.helpers.reaper_run import PATIENCE, run

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
APP = """
async def app(scope, receive, send):
    pass

def wsgi(environ, start_response):
    return []
"""
AIOHTTP = "from aiohttp import web; web.run_app(web.Application(), host='127.0.0.1', port=0)"
ANYIO = "import anyio; anyio.run(lambda: anyio.create_tcp_listener(local_host='127.0.0.1'))"
IMPORTS = "import anyio; anyio.run(anyio.sleep, 0)"
SERVERS = {
    "uvicorn": "uvicorn app:app --port 0",
    "uvicorn, two": "uvicorn app:app --port 0 --workers 2",
    "gunicorn": "gunicorn app:wsgi -b 127.0.0.1:0",
    "gunicorn threads": "gunicorn app:wsgi -k gthread --threads 2 -b 127.0.0.1:0",
    "gunicorn asgi": "gunicorn app:app -k asgi -b 127.0.0.1:0",
    "hypercorn": "hypercorn app:app -b 127.0.0.1:0",
    "hypercorn trio": "hypercorn app:app -k trio -b 127.0.0.1:0",
    "daphne": "daphne -p 0 app:app",
    "aiohttp": AIOHTTP,
    "anyio": ANYIO,
    "websockets": "import websockets.asyncio.server",
    "tornado": "import tornado.httpserver",
}
WRONG = {
    "a variable": ({"REAPER_TIMEOUTS_IDLE": "5x"}, "timeouts.idle: '5x' (from environment"),
    "a file": ({"REAPER_CONFIG": "not/there.toml"}, "not/there.toml: cannot be read"),
}


def start(
    server: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """What became of *server*, a command or a program, in a container's way."""
    (folder / "app.py").write_text(APP)
    name, *arguments = server.split()
    is_python = name in ("import", "from")
    command = [sys.executable, "-c", server] if is_python else [str(BIN / name), *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"REAPER_RUN": "1", "PYTHONPATH": str(HOOK)} | environment,
        text=True,
        capture_output=True,
        timeout=PATIENCE,
        process_group=0,  # one process speaks for its group, which is else that of all tests
    )


@pytest.mark.parametrize("server", SERVERS)
def test_no_server_starts_with_a_setting_that_cannot_be_used(server: str, tmp_path: Path) -> None:
    environment, says = WRONG["a variable"]
    done = start(SERVERS[server], tmp_path, environment)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"reaper run: {says}")
    assert done.returncode == 2


def test_no_server_starts_with_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    environment, says = WRONG["a file"]
    done = start(SERVERS["hypercorn"], tmp_path, environment)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"reaper run: {says}")
    assert done.returncode == 2


def test_who_imports_a_library_and_does_not_serve_is_left_in_peace(tmp_path: Path) -> None:
    done = start(IMPORTS, tmp_path, {"REAPER_TIMEOUTS_IDLE": "5x", "REAPER_KEEP_ALIVE": "75s"})
    assert (done.returncode, done.stderr) == (0, "")


NAMED = {
    "REAPER_KEEP_ALIVE": "did you mean REAPER_TIMEOUTS_KEEP_ALIVE?",
    "reaper_timeouts_idle": "did you mean REAPER_TIMEOUTS_IDLE?",
}


def test_a_variable_that_sets_nothing_is_named_where_a_server_starts(tmp_path: Path) -> None:
    done = start(SERVERS["websockets"], tmp_path, dict.fromkeys(NAMED, "75s"))
    assert done.stderr.splitlines() == said()
    assert done.returncode == 0


def test_reaper_run_names_it_and_its_command_does_not_say_it_again() -> None:
    words = "--", sys.executable, "-c", SERVERS["websockets"]
    done = run(*words, env=os.environ | dict.fromkeys(NAMED, "75s"))
    assert done.stderr.splitlines() == said()
    assert done.returncode == 0


def said() -> list[str]:
    """What is said of the variables `NAMED`."""
    no_effect = "no setting of reaper; it has no effect"
    return [f"reaper run: {name}: {no_effect}: {hint}" for name, hint in NAMED.items()]
