"""A look-up runs nothing: an application's folder may have modules whose names other
packages have, and a guarded server starts there as the bare one does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reaper.servers.cards import cards
from reaper.servers.guest import Kind
from scripts.programs.trial import APPS
from tests.helpers.reaper_run import GET, ends, guarded

HTTP2 = "h2 hpack hyperframe h11 wsproto priority"
PACKAGES = {
    *f"{HTTP2} httptools uvloop trio zttp websockets anyio".split(),
    *["psutil", "pyarrow", "prometheus_client", "opentelemetry", "rich"],
}
STOCK = {
    # Of uvicorn's own: its two protocols of HTTP/1 are guarded in one module.
    "uvicorn": "httptools h11 uvloop anyio websockets",
    "gunicorn-uvicorn": "httptools h11 uvloop anyio websockets",
    "gunicorn-asgi": "uvloop anyio",
    "hypercorn": f"{HTTP2} anyio",
    "hypercorn-trio": f"{HTTP2} trio anyio",
    "sanic": "httptools uvloop websockets",
    "twisted": f"{HTTP2} anyio",
    "websockets": "websockets",
    "anyio": "anyio",
}
"""By kind, those that the bare server, or the application that it serves, imports."""
KINDS = [kind for card in cards() for kind in card.kinds]


def shadowed(folder: Path, kind: Kind) -> Path:
    """*folder*, with a module that raises for each package that *kind* leaves alone."""
    folder.mkdir()
    for name in PACKAGES - set(STOCK.get(kind.name, "").split()):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name}.py was run')\n")
    return folder


def command(kind: Kind) -> list[str]:
    """What starts it, with an application of scripts/programs/."""
    if not kind.starts:
        return [sys.executable, str(APPS / "programs.py"), kind.name, "{port}"]
    words = kind.starts.format(asgi="asgi:app", wsgi="wsgi:app", port="{port}").split()
    more = ["--no-control-socket"] if words[0] == "gunicorn" else []
    return [sys.executable, "-m", *words, *more]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_guarded_server_starts_among_modules_that_raise(kind: Kind, tmp_path: Path) -> None:
    before, said = [shadowed(tmp_path / "shadows", kind)], ["is guarded: "]
    with guarded(command(kind), tmp_path, "--inside", said=said, before=before) as (server, log):
        if "timeouts.headers" in kind.acts:
            assert b"ok" in ends(server.address[1], GET % b"/", b"ok")
        assert "was run" not in log.read_text()
