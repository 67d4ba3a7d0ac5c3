"""The ten servers of docs/silence.md, and what is written of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import marked
from scripts.silence.__main__ import BEGIN, END, PAGE, text
from scripts.silence.servers import SERVERS, Server, prepare

WRONG = {
    "kind": "asks once",
    "verdict": "wrong",
    "why": "the client lost what it asked for",
    "level": "MUST",
    "source": "RFC 9112 9.3",
}


def test_the_page_has_a_row_and_a_chapter_for_each_server() -> None:
    written = marked.read(PAGE, BEGIN, END)
    assert len(SERVERS) == 10
    for server in SERVERS:
        assert f"\n| {server.name} | {server.about} | " in written
        assert f"\n## {server.name}\n" in written


def test_the_page_says_in_short_which_limits_each_server_has() -> None:
    page = PAGE.read_text()
    columns = ("first_byte", "headers", "body", "keep_alive", "write")
    assert "| sends nothing | half a head | half a body | rests after an answer |" in page
    for server in SERVERS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {server.name} | ")][:1]
        cells = [cell.strip() for cell in row.split("|")[2:-1]]
        says = {name for name, cell in zip(columns, cells, strict=True) if cell != "-"}
        assert says == set(server.limits) & set(columns), server.name


def test_what_is_wrong_is_said_with_its_source() -> None:
    report = {"right": 7, "not_judged": 2, "kinds": [WRONG]}
    written = text({server.name: report for server in SERVERS})
    assert "| 7 | 1 | 0 | 2 |" in written
    assert "- asks once: the client lost what it asked for (MUST, RFC 9112 9.3)" in written


def test_a_server_without_a_fault_is_not_called_right_of_what_was_not_judged() -> None:
    report = {"right": 7, "not_judged": 2, "kinds": []}
    written = text({server.name: report for server in SERVERS})
    assert "Nothing is wrong of what was judged; 2 kinds of client were not." in written


@pytest.mark.parametrize(
    "server", [each for each in SERVERS if each.needs != "go"], ids=lambda each: each.name
)
def test_a_server_is_told_where_to_listen(server: Server, tmp_path: Path) -> None:
    command = prepare(server, tmp_path, 4711, 4712)
    files = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "4711" in " ".join(command) + files
    assert ("4712" in files) is server.proxies
