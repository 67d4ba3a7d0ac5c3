"""Where a setting acts: the table has a column of every setting, and names what does nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reaper.__main__ import main
from reaper.config import OPTIONS, ReaperConfig
from reaper.config.effects import EFFECTS, SERVERS, markdown, said, without_effect


def config(**variables: str) -> ReaperConfig:
    return ReaperConfig.load(environ={f"REAPER_{name}": value for name, value in variables.items()})


def test_the_table_has_a_row_for_every_setting_and_no_other() -> None:
    assert EFFECTS.keys() == OPTIONS.keys()


def test_every_setting_acts_somewhere_but_the_one_that_check_alone_reads() -> None:
    assert [path for path, effect in EFFECTS.items() if not effect.acts] == ["server.behind"]


def test_what_is_set_and_does_nothing_is_named_with_what_holds_instead() -> None:
    found = without_effect(
        config(TIMEOUTS_REQUEST="5s", TIMEOUTS_HANDSHAKE="5s", TIMEOUTS_BODY="5s"), ["hypercorn"]
    )
    assert found == {
        "timeouts.handshake": "its own ssl_handshake_timeout, 60 s",
        "timeouts.request": "",
    }
    assert said(found) == (
        "set, but without effect here: timeouts.handshake "
        "(instead: its own ssl_handshake_timeout, 60 s), timeouts.request"
    )


def test_nothing_is_said_of_defaults_of_attach_and_of_what_acts() -> None:
    assert said(without_effect(config(), SERVERS)) == ""
    given = config(TIMEOUTS_BODY="5s", ATTACH_IDLE="5s", SERVER_BEHIND="nginx")
    assert without_effect(given, ["uvicorn"]) == {}


def test_a_setting_is_named_if_it_does_nothing_in_one_of_several_servers() -> None:
    given = config(TIMEOUTS_REQUEST="5s")
    assert without_effect(given, ["http"]) == {}
    assert without_effect(given, ["http", "uvicorn"]) == {"timeouts.request": ""}


def test_the_page_has_a_row_per_setting_and_says_what_each_number_means() -> None:
    text = markdown()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "." in line.split()[1]]
    assert len(rows) == sum(not path.startswith("attach.") for path in OPTIONS)
    assert {row.count("|") for row in rows} == {len(SERVERS) + 2}
    assert all(f"({number}) " in text for number in range(1, 5))


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
