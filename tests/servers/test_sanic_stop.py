"""How long Sanic waits for its clients as it stops: `timeouts.drain`, if that is set
and Sanic's own is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sanic import Sanic
from sanic.server.protocols.http_protocol import HttpProtocol

from reaper.config import ReaperConfig
from reaper.servers.sanic.phases import OWN_GRACE, stops
from tests.helpers.attach_servers import accepts
from tests.helpers.program_trials import connect
from tests.helpers.reaper_run import guarded
from tests.helpers.server_process import wait_until

PROGRAM = """
import asyncio, sys
from sanic import Sanic, text

app = Sanic("waits")

@app.get("/")
async def answer(request):
    print("asked", flush=True)
    await asyncio.sleep(3600)

if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), single_process=True, motd=False, access_log=False)
"""


def test_the_default_is_sanics_own() -> None:
    assert Sanic("default").config.GRACEFUL_SHUTDOWN_TIMEOUT == OWN_GRACE


@pytest.mark.parametrize(
    ("ours", "own", "expected"),
    [({}, OWN_GRACE, OWN_GRACE), ({"drain": "4s"}, OWN_GRACE, 4.0), ({"drain": "4s"}, 9.0, 9.0)],
)
def test_whichever_is_set_holds_and_sanics_own_first(
    ours: dict[str, str], own: float, expected: float
) -> None:
    overrides = {f"timeouts.{name}": value for name, value in ours.items()}
    config = ReaperConfig.load(environ={}, overrides=overrides | {"timeouts.drain_idle": "3s"})
    sanic = SimpleNamespace(GRACEFUL_SHUTDOWN_TIMEOUT=own)
    later: list[float] = []
    loop = SimpleNamespace(call_later=lambda seconds, *_: later.append(seconds))
    protocol: Any = SimpleNamespace(app=SimpleNamespace(config=sanic), loop=loop)
    assert stops(protocol, HttpProtocol.close_if_idle, config) is False
    assert (sanic.GRACEFUL_SHUTDOWN_TIMEOUT, later) == (expected, [min(3.0, expected / 2)])


@pytest.mark.slow
def test_a_stop_waits_no_longer_than_drain_for_an_answer(tmp_path: Path) -> None:
    program = tmp_path / "waits.py"
    program.write_text(PROGRAM)
    limits = ["--tick", "100ms", "--drain", "1s", "--drain-idle", "100ms"]  # none for its request
    command = [sys.executable, str(program), "{port}"]
    with guarded(command, tmp_path, limits=limits) as (server, log):
        wait_until(lambda: accepts(server.address[1]))
        with connect(server) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            wait_until(lambda: "asked" in log.read_text())
            server.stop()
            server.process.wait(OWN_GRACE - 3)
