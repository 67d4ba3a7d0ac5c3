"""An application that says itself for how long its connections are kept is not
contradicted in the same answer: `Keep-Alive` stands there once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.attach_servers import accepts
from tests.helpers.reaper_run import GET, ends, guarded
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.slow

ASGI = """
async def app(scope, receive, send):
    assert scope["type"] == "http"  # so servers know that there is no lifespan
    headers = [(b"content-length", b"2"), (b"Keep-Alive", b"timeout=99")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})
"""
WSGI = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2"), ("Keep-Alive", "timeout=99")])
    return [b"ok"]
"""
AIOHTTP = """
import sys
from aiohttp import web

async def answer(request):
    return web.Response(text="ok", headers={"Keep-Alive": "timeout=99"})

app = web.Application()
app.router.add_get("/", answer)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
SANIC = """
import sys
from sanic import Sanic, text

app = Sanic("own")

@app.get("/")
async def answer(request):
    return text("ok", headers={"Keep-Alive": "timeout=99"})

if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), single_process=True, motd=False, access_log=False)
"""
SERVERS = {
    "hypercorn": (ASGI, "-m hypercorn own:app -b 127.0.0.1:{port}"),
    "hypercorn, trio": (ASGI, "-m hypercorn -k trio own:app -b 127.0.0.1:{port}"),
    "gunicorn, asgi": (ASGI, "-m gunicorn -k asgi own:app -b 127.0.0.1:{port}"),
    "gunicorn, threads": (WSGI, "-m gunicorn -k gthread --threads 2 own:app -b 127.0.0.1:{port}"),
    "daphne": (ASGI, "-m daphne -p {port} own:app"),
    "aiohttp": (AIOHTTP, "{folder}/own.py {port}"),
    "sanic": (SANIC, "{folder}/own.py {port}"),
}


@pytest.mark.parametrize("server", SERVERS)
def test_an_answer_names_the_time_once(server: str, tmp_path: Path) -> None:
    """gunicorn's threads let no application say it: then it is ours."""
    program, words = SERVERS[server]
    (tmp_path / "own.py").write_text(program)
    command = [sys.executable, *words.replace("{folder}", str(tmp_path)).split()]
    with guarded(command, tmp_path, "--keep-alive", "30s", before=[tmp_path]) as (running, _):
        wait_until(lambda: accepts(running.address[1]))
        said = ends(running.address[1], GET % b"/", b"ok").lower()
        assert said.endswith(b"ok")
        assert said.count(b"keep-alive: timeout=") == 1
        assert (b"keep-alive: timeout=99" in said) is (server != "gunicorn, threads")
