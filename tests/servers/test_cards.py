"""The cards of the servers: what is derived from them, and that a card is all that
there is to say of a server.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from reaper.__main__ import main
from reaper.config import OPTIONS
from reaper.driver.served import HTTP_LIMITS, Served
from reaper.foreign import PYTHON
from reaper.servers import cards, readers
from reaper.servers.guest import Card, Kind
from reaper.servers.pages import groups, page, servers, summary
from tests.house.test_layers import ROOT

CARDS = pytest.mark.parametrize("card", cards.cards(), ids=lambda card: card.name)
ROOMS = {path.parent.name for path in (ROOT / "reaper" / "servers").glob("*/card.py")}


def test_every_room_that_changes_a_server_has_a_card() -> None:
    assert {path.parent.name for path in (ROOT / "reaper/servers").glob("*/changes.py")} == ROOMS
    assert len(cards.cards()) == len(ROOMS)


@CARDS
def test_a_card_is_found_by_the_name_of_each_of_its_kinds(card: Card) -> None:
    for kind in card.kinds:
        assert cards.column(kind.name) is kind
        assert cards.columns()[kind.name] is kind


def test_names_that_begin_a_column_are_those_of_rooms() -> None:
    others = {column.name for columns in readers.PAGES.values() for column in columns}
    assert {name.partition("-")[0] for name in cards.columns() if name not in others} == ROOMS


@CARDS
def test_the_names_of_a_card_come_from_a_package_that_was_tested(card: Card) -> None:
    assert card.name == card.needs[0].package
    assert {table.package for table in card.tables} <= {card.name, PYTHON, "h2"}


SERVED = [
    (room, kind) for room, card in cards.rooms().items() for kind in card.kinds if kind.serves
]
BY_METHOD = {
    "be_last": {"timeouts.max_age", "limits.max_age_jitter", "timeouts.drain_idle"},
    "phase": {"timeouts.write", "timeouts.vanished"},
}
"""Settings that act because the class of a server overrides a method."""
OF_HTTP = {f"timeouts.{phase.value}" for phase in HTTP_LIMITS}


@pytest.mark.parametrize(("room", "kind"), SERVED, ids=[kind.name for _, kind in SERVED])
def test_what_acts_in_a_server_is_what_its_class_overrides(room: str, kind: Kind) -> None:
    module, _, name = kind.serves.partition(":")
    found: type[Served] = getattr(import_module(f"reaper.servers.{room}.{module}"), name)
    for method, settings in BY_METHOD.items():
        overrides = getattr(found, method) is not getattr(Served, method)
        assert settings <= kind.acts.keys() if overrides else settings.isdisjoint(kind.acts), method
    speaks_http = found.made_terms.__func__ is Served.made_terms.__func__  # type: ignore[attr-defined]
    assert (kind.acts.keys() >= OF_HTTP) is speaks_http


def test_every_class_of_a_served_connection_stands_in_a_card() -> None:
    classes = {f"{room}.{kind.serves.replace(':', '.')}" for room, kind in SERVED}
    known = {
        f"{path.parent.name}.{path.stem}.{node.name}"
        for room in cards.rooms()
        for path in (ROOT / "reaper" / "servers" / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and {ast.unparse(base) for base in node.bases}
        & {"Served", "OnTransport", "Plain", "Hypercorn"}
    }
    assert classes == known


def test_every_setting_acts_somewhere_but_the_one_that_check_alone_reads() -> None:
    acting = {path for column in cards.columns().values() for path in column.acts}
    assert set(OPTIONS) - acting == {"server.behind"}


MOST_PARTLY = 20
"""Cells of docs/run.md that say `partly`: it is to go down."""


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in *text* that begin with a setting, as their cells."""
    cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return [row for row in cells if row and row[0] in OPTIONS]


def test_the_summary_has_a_column_for_each_kind_and_a_row_for_each_setting() -> None:
    found = rows(summary())
    for columns in groups():
        others = {path for each in columns for path in each.acts}
        acting = [path for path in OPTIONS if path in others and not path.startswith("attach.")]
        table, found = found[: len(acting)], found[len(acting) :]
        assert [row[0] for row in table] == acting
        assert {len(row) for row in table} == {1 + len(columns)}
        assert len(columns) <= 7
    assert not found
    kinds = {kind.name for card in cards.cards() for kind in card.kinds}
    assert {each.name for columns in groups() for each in columns} == {*kinds, "outside"}
    assert {cell for row in rows(summary()) for cell in row[1:]} == {"yes", "partly", "-"}


def test_a_cell_that_is_partly_has_its_case_on_the_page() -> None:
    for columns in groups():
        for each in columns:
            for path in each.acts:
                assert each.cell(path) != "partly" or each.acts[path], path
    assert summary().count("partly") <= MOST_PARTLY


def test_a_server_has_a_page_and_each_page_says_of_every_setting_whether_it_acts() -> None:
    for name, columns in cards.pages().items():
        found = rows(page(name))
        for path in OPTIONS:
            told = [row for row in found if row[0] == path]
            acting = [row for row in told if len(row) == 4]
            assert len(acting) == sum(path in column.acts for column in columns), path
            if not path.startswith(("attach.", "server.")):
                assert len(told) == len(columns), path


def test_what_does_nothing_has_its_reason_on_the_page() -> None:
    for name in cards.pages():
        assert all(row[-1].endswith(".") for row in rows(page(name)) if len(row) == 2), name


@CARDS
def test_a_server_has_its_row_in_the_table_of_what_is_done(card: Card) -> None:
    assert servers().count(f"| [{card.title}](settings/{card.page}.md) |") == 1


def test_check_names_what_does_nothing_in_the_server_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("REAPER_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "reaper.toml"
    path.write_text('[timeouts]\nrequest = "5s"\nkeep_alive = "7s"\n')
    assert main(["check", str(path), "--for", "sanic", "--changed"]) == 0
    assert "warning: timeouts.request: no effect in sanic\n" in capsys.readouterr().out
    assert main(["check", str(path), "--changed"]) == 0
    assert "no effect" not in capsys.readouterr().out


def test_check_refuses_a_server_that_has_no_card(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "--for", "apache"])
    assert caught.value.code == 2
    assert "--for" in (said := capsys.readouterr().err)
    assert "gunicorn-gthread" in said


def test_help_of_check_names_every_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = "".join(capsys.readouterr().out.split())
    assert ",".join(cards.columns()) in said


IMPORTED = """
import sys
try: {code}
except SystemExit: pass
from reaper.servers import cards
print([name for name in sys.modules if name.endswith(".card")])
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {tops}))
"""


def imported(code: str) -> list[str]:
    """The cards that *code* imports, and the packages of servers, as printed."""
    tops = sorted({place.partition(".")[0] for card in cards.cards() for place in card.changes})
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(code=code, tops=set(tops))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-2:]


@pytest.mark.parametrize(
    ("code", "which"),
    [
        ("import reaper", []),
        ("from reaper.__main__ import main; main(['--help'])", []),
        ("from reaper.servers.cards import column; column('sanic')", ["reaper.servers.sanic.card"]),
    ],
    ids=["import", "help", "one"],
)
def test_no_card_is_imported_that_is_not_needed(code: str, which: list[str]) -> None:
    assert imported(code) == [str(which), "[]"]


def test_a_card_imports_nothing_of_its_server() -> None:
    found, packages = imported("from reaper.servers.cards import cards; cards()")
    assert found.count(".card") == len(ROOMS)
    assert packages == "[]"
