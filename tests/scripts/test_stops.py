"""What the tables of stops say, and of which tree. What is tried:
tests/servers/test_stops.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from scripts.stops import __main__ as stops

RELOAD: dict[str, Any] = {
    "server": "uvicorn",
    "how": "reload",
    "guarded": True,
    "stream": 0.1,
    "proper": True,
    "whole": 2,
    "answers": 2,
    "gone": 5.2,
    "back": 6.1,
    "lifespan": True,
}


def test_a_reload_says_when_the_old_process_was_gone_and_when_a_new_one_answered() -> None:
    assert stops.said(RELOAD) == (
        "stream ended after 0.1 s; 2 of 2 answers whole; "
        "old process gone after 5.2 s, a new one answers after 6.1 s"
    )
    assert stops.said(RELOAD | {"back": None}).endswith("gone after 5.2 s, no new one")


@pytest.mark.parametrize(
    ("flags", "dirty", "says"),
    [
        (["--document"], True, "changes that no commit has"),
        (["--document", "--only", "uvicorn"], False, "--only uvicorn"),
    ],
)
def test_tables_are_of_all_servers_and_of_a_commit_or_nothing_is_measured(
    flags: list[str],
    dirty: bool,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(stops, "machine", lambda: {"dirty": dirty})
    monkeypatch.setattr(stops, "measured", lambda *_, **__: pytest.fail("it measures"))
    monkeypatch.setattr("sys.argv", ["stops", *flags])
    with pytest.raises(SystemExit) as caught:
        stops.main()
    assert caught.value.code == 2
    assert says in capsys.readouterr().err
