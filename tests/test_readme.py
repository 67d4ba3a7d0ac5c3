"""The README's snippets run, its table is the configuration's, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio
import trio.testing

from reaper.config.tables import rewrite

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.trio
async def test_the_three_lines_serve(monkeypatch):
    namespace: dict = {}
    exec(SNIPPETS[0], namespace)
    listening = trio.Event()
    real = trio.serve_tcp

    async def serve_on_a_free_port(handler, port, **options):
        assert port == 8080

        async def started(task_status=trio.TASK_STATUS_IGNORED):
            await real(handler, 0, host="127.0.0.1", task_status=task_status)

        async with trio.open_nursery() as nursery:
            namespace["listeners"] = await nursery.start(started)
            listening.set()

    monkeypatch.setattr(trio, "serve_tcp", serve_on_a_free_port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(namespace["main"])
        await listening.wait()
        async with await trio.testing.open_stream_to_socket_listener(namespace["listeners"][0]) as client:
            await client.send_all(b"hello")
            assert await client.receive_some() == b"hello"
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_second_snippet_reaps(autojump_clock, capsys):
    namespace: dict = {}
    exec("import reaper.trio\n" + SNIPPETS[1], namespace)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(namespace["chat"], ours)
        await theirs.send_all(b"x")
        assert await theirs.receive_some() == b"x"
    assert capsys.readouterr().out == "closed: idle\n"


def test_the_core_snippet_prints_what_the_comment_says(capsys):
    exec(SNIPPETS[2], {})
    said = re.search(r"<!-- prints: (.*?) -->", README)
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


def test_the_table_of_settings_is_the_one_the_configuration_makes():
    assert rewrite(README) == README


def test_links_and_commands_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        if "://" not in link:
            assert (ROOT / link).exists(), link
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)|^    make ([a-z-]+)", README, re.MULTILINE):
        assert f"\n{target[0] or target[1]}:" in makefile
