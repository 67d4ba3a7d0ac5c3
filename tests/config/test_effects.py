"""Where a setting acts: the table has a column of every setting, and names what does
nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reaper.__main__ import main
from reaper.config import OPTIONS, ReaperConfig
from reaper.config.effects import EFFECTS, SERVERS, said, without_effect
from reaper.config.pages import COLUMNS, PAGES, page, summary


def config(**variables: str) -> ReaperConfig:
    return ReaperConfig.load(environ={f"REAPER_{name}": value for name, value in variables.items()})


def test_the_table_has_a_row_for_every_setting_and_no_other() -> None:
    assert EFFECTS.keys() == OPTIONS.keys()


def test_every_setting_acts_somewhere_but_the_one_that_check_alone_reads() -> None:
    assert [path for path, effect in EFFECTS.items() if not effect.acts] == ["server.behind"]


def test_what_is_set_and_does_nothing_is_named_with_what_holds_instead() -> None:
    found = without_effect(
        config(TIMEOUTS_REQUEST="5s", TIMEOUTS_HANDSHAKE="5s", TIMEOUTS_BODY="5s"), ["tornado"]
    )
    assert found == {
        "timeouts.handshake": "first_byte",
        "timeouts.request": "",
    }
    assert said(found) == (
        "set, but without effect here: timeouts.handshake (instead: first_byte), timeouts.request"
    )


def test_nothing_is_said_of_defaults_of_attach_and_of_what_acts() -> None:
    assert said(without_effect(config(), SERVERS)) == ""
    given = config(TIMEOUTS_BODY="5s", ATTACH_IDLE="5s", SERVER_BEHIND="nginx")
    assert without_effect(given, ["uvicorn"]) == {}


def test_a_setting_is_named_if_it_does_nothing_in_one_of_several_servers() -> None:
    given = config(TIMEOUTS_REQUEST="5s")
    assert without_effect(given, ["http"]) == {}
    assert without_effect(given, ["http", "uvicorn"]) == {"timeouts.request": ""}


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in *text* that begin with a setting, as their cells."""
    cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return [row for row in cells if row and row[0] in EFFECTS]


def test_the_summary_has_a_column_per_group_and_a_row_for_each_setting() -> None:
    found = rows(summary())
    others = {server for servers in COLUMNS.values() for server in servers}
    acting = [
        path
        for path, effect in EFFECTS.items()
        if effect.acts & others and not path.startswith("attach.")
    ]
    assert [row[0] for row in found] == acting
    assert {len(row) for row in found} == {1 + len(COLUMNS)}
    assert {cell for row in found for cell in row[1:]} == {"yes", "partly", "-"}


def test_a_server_has_a_page_and_each_page_says_of_every_setting_whether_it_acts() -> None:
    assert sorted(server for servers in PAGES.values() for server in servers) == sorted(SERVERS)
    for name, servers in PAGES.items():
        found = rows(page(name))
        for path in EFFECTS:
            told = [row for row in found if row[0] == path]
            acting = [row for row in told if len(row) == 4]
            assert len(acting) == sum(server in EFFECTS[path].acts for server in servers), path
            if not path.startswith(("attach.", "server.")):
                assert len(told) == len(servers), path


def test_what_does_nothing_has_its_reason_on_the_page() -> None:
    for name in PAGES:
        assert all(row[-1].endswith(".") for row in rows(page(name)) if len(row) == 2), name


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


def test_check_refuses_a_server_that_the_table_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "--for", "apache"])
    assert caught.value.code == 2
    assert "--for" in capsys.readouterr().err
