"""What becomes of a guarded server when it, or a package below it, has renamed what a
guest reads: nothing of it is changed, that is said, and its clients are answered.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypercorn.asyncio.tcp_server
import pytest
from hypercorn.protocol.h2 import H2Protocol, StreamBuffer

from reaper.foreign import missing
from reaper.run import report
from reaper.servers.cards import card_of
from reaper.servers.guest import Visit
from reaper.servers.hypercorn.names import ON_ASYNCIO
from scripts.programs.trial import APPS
from scripts.serving import ROOT
from tests.helpers.http2_clients import talking
from tests.helpers.hypercorn_here import CHANGED
from tests.helpers.reaper_run import GET, ends, guarded, run

HYPERCORN = [sys.executable, "-m", "hypercorn", "asgi:app", "-b", "127.0.0.1:{port}"]


def renamed(folder: Path, package: str, *names: str) -> Path:
    """Put a copy of the installed *package* into *folder*, in whose source *names* are
    others.
    """
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    shutil.copytree(
        spec.submodule_search_locations[0],
        folder / package,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for path in (folder / package).rglob("*.py"):
        text = path.read_text()
        for name in names:
            text = text.replace(name, f"{name}_renamed")
        path.write_text(text)
    return folder


@pytest.mark.slow
def test_an_answer_of_an_aiohttp_that_has_renamed_its_fields_is_not_cut(tmp_path: Path) -> None:
    copy = renamed(tmp_path / "copy", "aiohttp", "_current_request", "_request_in_progress")
    command = [sys.executable, str(APPS / "programs.py"), "aiohttp", "{port}"]
    lost = "RequestHandler._current_request, RequestHandler._request_in_progress"
    said = ["is not guarded: it has no", lost]
    with guarded(command, tmp_path, "--inside", said=said, before=[copy]) as (server, _):
        assert b"ok" in ends(server.address[1], GET % b"/slow", b"ok")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_preamble_len", ["is guarded: "]),  # nothing here depends on it
        ("outbound_flow_control_window", ["is not guarded: h2 ", "has no H2Stream.outbound_"]),
    ],
)
def test_a_client_of_hypercorn_is_answered_though_h2_has_renamed_a_field(
    name: str, said: list[str], tmp_path: Path
) -> None:
    copy = renamed(tmp_path / "copy", "h2", name)
    tick = ["--tick", "100ms"]  # and limits that no client overruns whose machine holds it up
    with (
        guarded(HYPERCORN, tmp_path, "--inside", said=said, limits=tick, before=[copy]) as (
            server,
            _,
        ),
        talking(server) as client,
    ):
        client.is_answered("/")


@pytest.mark.slow
def test_strict_refuses_a_hypercorn_whose_h2_has_renamed_a_field(tmp_path: Path) -> None:
    copy = renamed(tmp_path / "copy", "h2", "outbound_flow_control_window")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(copy), str(APPS), str(ROOT)])}
    words = [word.format(port=0) for word in HYPERCORN]
    done = run("--inside", "--strict", "--", *words, env=environment)
    assert done.returncode == 2
    assert "does not fit: h2 " in done.stderr


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (H2Protocol, "_window_updated"),
        (StreamBuffer, "pop"),
        (hypercorn.asyncio.tcp_server.TCPServer, "_initiate_server_close"),
    ],
)
def test_no_method_of_a_hypercorn_that_lacks_one_is_changed(
    kind: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(report, "_say", lambda message, text: said.append(message))
    monkeypatch.setattr(kind, f"{name}_renamed", vars(kind)[name], raising=False)
    for each in list(vars(kind).values()):  # those that call it call it by its new name
        if hasattr(each, "__code__") and name in each.__code__.co_names:
            names = tuple(
                f"{name}_renamed" if old == name else old for old in each.__code__.co_names
            )
            monkeypatch.setattr(each, "__code__", each.__code__.replace(co_names=names))
    monkeypatch.delattr(kind, name)
    before = {each: dict(vars(each)) for each in CHANGED}
    module = hypercorn.asyncio.tcp_server
    Visit(card_of("hypercorn"), report, strict=False).guard(module)
    assert {each: dict(vars(each)) for each in CHANGED} == before
    assert [message["why"] for message in said] == [missing(ON_ASYNCIO, "hypercorn")]
    assert f"{kind.__name__}.{name}" in said[0]["why"]
