"""The table of what holds a connection of HTTP/2: written from figures that are
kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.http2 import KINDS
from scripts import holds, marked

CLOSED = {"how": "closed", "borne": 3.04, "said": "GOAWAY 0"}
HELD = {"how": "left", "borne": None, "said": ""}


def report() -> dict[str, Any]:
    """As the command measures it, with one client of each kind."""
    about = {"date": "2026-11-27", "cpus": 2, "python": "CPython", "commit": "0" * 40}
    each = [
        {"server": server, "guarded": guarded, "kind": kind, "ends": [CLOSED if guarded else HELD]}
        for server in holds.SERVERS
        for guarded in (True, False)
        for kind in holds.HOLDS
    ]
    return {"about": about | {"load_before": 1, "load_after": 1}, "trials": 1, "holds": each}


def rows(text: str) -> list[tuple[str, ...]]:
    """The client and the limit of each row of the tables in *text*."""
    lines = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| ")]
    return [tuple(line) for line in lines]


def test_the_page_has_a_row_for_each_client_guarded_and_stock() -> None:
    shown = marked.read(holds.PAGE, holds.BEGIN, holds.END)
    assert rows(shown) == rows(holds.table(report()))


def test_a_table_says_what_became_of_the_clients_of_its_servers() -> None:
    guarded, stock = holds.table(report()).split("Stock:")
    assert (guarded.count("GOAWAY, 3.0 s"), guarded.count("held |")) == (60, 0)
    assert (stock.count("GOAWAY"), stock.count("held |")) == (0, 60)


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
        holds.document(report())
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
