"""Where a setting acts: what a column says of it, and what is said of a setting that
does nothing there.
"""

from __future__ import annotations

import pytest

from reaper.config import ReaperConfig
from reaper.config.effects import Column, said, without_effect

ODD = Column(
    "odd",
    "a server",
    {"timeouts.body": "", "timeouts.write": "sometimes"},
    {"timeouts.handshake": "first_byte"},
)


def config(**variables: str) -> ReaperConfig:
    return ReaperConfig.load(environ={f"REAPER_{name}": value for name, value in variables.items()})


def test_what_is_set_and_does_nothing_is_named_with_what_holds_instead() -> None:
    found = without_effect(
        config(TIMEOUTS_REQUEST="5s", TIMEOUTS_HANDSHAKE="5s", TIMEOUTS_BODY="5s"), ODD
    )
    assert found == {"timeouts.handshake": "first_byte", "timeouts.request": ""}
    assert said(found) == (
        "set, but without effect here: timeouts.handshake (instead: first_byte), timeouts.request"
    )


def test_nothing_is_said_of_defaults_of_attach_and_of_what_acts() -> None:
    assert said(without_effect(config(), ODD)) == ""
    given = config(TIMEOUTS_BODY="5s", TIMEOUTS_WRITE="5s", ATTACH_IDLE="5s", SERVER_BEHIND="nginx")
    assert without_effect(given, ODD) == {}


def test_a_column_names_settings_that_there_are_and_each_once() -> None:
    with pytest.raises(ValueError, match=r"odd: timeouts\.bdy: no such setting"):
        Column("odd", "a server", {"timeouts.bdy": ""})
    with pytest.raises(ValueError, match=r"odd: timeouts\.body: acts, and does nothing"):
        Column("odd", "a server", {"timeouts.body": ""}, {"timeouts.body": "first_byte"})
