"""The table of what holds a connection of HTTP/2: written from figures that are
kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.http2 import KINDS
from scripts import holds

CLOSED = {"how": "closed", "borne": 3.04, "said": "GOAWAY 0"}
HELD = {"how": "left", "borne": None, "said": ""}


def test_the_page_shows_the_figures_that_are_kept_and_no_others() -> None:
    kept = json.loads(holds.KEPT.read_text())
    shown = holds.PAGE.read_text().partition(holds.BEGIN)[2].partition(holds.END)[0]
    assert shown.strip() == holds.table(kept)


def test_every_client_of_the_load_generator_that_speaks_http2_is_in_the_table() -> None:
    assert set(holds.HOLDS) == set(KINDS)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([CLOSED, {**CLOSED, "borne": 3.21}], "GOAWAY, 3.0 to 3.2 s"),
        ([CLOSED, CLOSED], "GOAWAY, 3.0 s"),
        ([HELD, HELD], "held"),
        ([HELD, CLOSED, HELD], "2: held; 1: GOAWAY, 3.0 s"),
        ([{**CLOSED, "said": ""}], "close, 3.0 s"),
        ([{**CLOSED, "how": "reset", "said": ""}], "reset, 3.0 s"),
        ([{**HELD, "said": "RST_STREAM 8"}], "held"),
    ],
)
def test_what_became_of_clients_of_one_kind_is_said_in_words(
    ends: list[dict[str, Any]], words: str
) -> None:
    assert holds.said(ends) == words


def test_a_page_without_the_marks_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    monkeypatch.setattr(holds, "PAGE", page)
    with pytest.raises(SystemExit, match="lacks the mark"):
        holds.document(json.loads(holds.KEPT.read_text()))
    assert page.read_text() == "nothing\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--trials", "0"], "--trials 0: must be 1 or more"),
     (["--document", "--only", "hypercorn"], "--only must not be given"),
     (["--only", "nginx"], "nginx")],
)  # fmt: skip
def test_a_wrong_argument_is_named_and_nothing_measured(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["holds", *words])
    with pytest.raises(SystemExit) as ended:
        holds.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
