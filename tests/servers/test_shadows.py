"""A look-up runs nothing: an application's folder may have modules whose names other
packages have, and a guarded server starts there as the bare one does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.reaper_run import GET, ends, guarded

GUNICORN = [sys.executable, "-m", "gunicorn", "--no-control-socket", "-b", "127.0.0.1:{port}"]
STARTS = {
    "asgi": [*GUNICORN, "-k", "asgi", "asgi:app"],
    "threads": [*GUNICORN, "--threads", "4", "wsgi:app"],
}
NEVER = ("h2", "hpack", "hyperframe", "h11", "httptools", "trio", "wsproto", "zttp")
"""Packages that gunicorn imports only for what is not asked for here."""


def shadowed(folder: Path) -> Path:
    """*folder*, with a module that raises for each of `NEVER`."""
    folder.mkdir()
    for name in NEVER:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name}.py was run')\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", STARTS)
def test_a_guarded_gunicorn_starts_among_modules_that_raise(kind: str, tmp_path: Path) -> None:
    before = [shadowed(tmp_path / "shadows")]
    said = ["is guarded: "]
    with guarded(STARTS[kind], tmp_path, "--inside", said=said, before=before) as (server, log):
        assert b"ok" in ends(server.address[1], GET % b"/", b"ok")
        assert "was run" not in log.read_text()
