"""The time that is asked about, and the servers that ought to be there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from reaper.journal.layout import ANY
from reaper.journal.places import Place
from reaper.journal.ship import Shipper
from reaper.pipeline.read.expected import server_names, silent
from reaper.pipeline.read.inputs import Inputs, check
from reaper.pipeline.read.span import Span, instant_ns
from tests.conftest import Ran
from tests.helpers.pipeline_traffic import WALL, Clock, S, journal

LATER = WALL + 100 * 3600 * S
MINUTE = 60 * S
HOUR = 3600 * S


def opened(directory: Path, server: str, *minutes: int, apart: int = 1, **options: Any) -> None:
    """Of *server*: for each of *minutes* a file of its own run, with three connections
    that end, a minute *apart*.
    """
    for minute in minutes:
        at = minute * MINUTE
        writer = crc32(f"{server} {minute}".encode()) % (1 << 20)
        with journal(directory, writer, Clock(at), server=server, **options) as ours:
            for connection in range(3):
                t = at + connection * apart * MINUTE
                ours.open(t, 5000, "echo").close_peer(t + S)
            ours.drain(t + S)


def asked(since: int | None = None, until: int | None = None) -> Span:
    """Bounds in minutes."""
    return Span(*(None if minute is None else WALL + minute * MINUTE for minute in (since, until)))


def found(directory: Path, *minutes: int | None) -> Inputs:
    """What a check takes of *directory* for the time that is asked about."""
    return check([directory], now_ns=LATER, span=asked(*minutes))


def starts(inputs: Inputs) -> list[int]:
    """In minutes."""
    return sorted((facts.bounds[0] - WALL) // MINUTE for facts in inputs.files if facts.bounds)


# ---- the time that is asked about


def shipped(journal: Path, lake: Path) -> Path:
    Shipper(journal, Place(str(lake))).once()
    return lake


@pytest.mark.parametrize("of", ["journal", "lake"])
def test_only_files_that_may_hold_a_row_of_the_time_are_taken(tmp_path: Path, of: str) -> None:
    opened(tmp_path / "journal", "web-1", 0, 100, 200, 300)
    if of == "lake":
        shipped(tmp_path / "journal", tmp_path / "lake")
    for minutes, files in (
        ((), [0, 100, 200, 300]),
        ((100, 101), [100]),
        ((102, 103), [100]),
        ((103, 200), []),
        ((103, 201), [200]),
        ((200, None), [200, 300]),
        ((None, 100), [0]),
    ):
        inputs = found(tmp_path / of, *minutes)
        assert (starts(inputs), inputs.quarantined) == (files, []), minutes


def test_hours_that_are_ruled_out_are_not_even_opened(tmp_path: Path) -> None:
    opened(tmp_path / "journal", "web-1", 0, 300)
    lake = shipped(tmp_path / "journal", tmp_path / "lake")
    first, last = sorted(lake.rglob("*.parquet"))
    first.write_bytes(b"damaged")
    (last.parent / "lost.parquet").write_bytes(b"")
    inputs = found(lake, 290, None)
    assert (starts(inputs), inputs.outside) == ([300], 0)
    assert [entry["path"] for entry in inputs.quarantined] == [str(last.parent / "lost.parquet")]


def test_a_file_of_many_hours_is_read_for_each_of_them(tmp_path: Path) -> None:
    opened(tmp_path / "journal", "web-1", 0, apart=200)
    lake = shipped(tmp_path / "journal", tmp_path / "lake")
    (path,) = lake.rglob("*.parquet")
    assert path.parent == lake / ANY
    assert [starts(found(lake, minute, minute + 1)) for minute in (0, 100, 200, 400, 402)] == [
        [0]
    ] * 4 + [[]]


def test_rows_that_were_lost_before_the_time_are_not_missing_from_it(tmp_path: Path) -> None:
    clock = Clock()
    with journal(tmp_path, 1, clock, queue_rows=3, rotate_bytes=1) as ours:
        for hour in range(3):
            clock.now = hour * HOUR
            for connection in range(3 + 2 * (hour < 2)):
                ours.open(clock.now + connection * S, 5000, "echo")
            ours.flush()
    assert found(tmp_path).dropped_rows == 4
    assert [found(tmp_path, hour * 60, hour * 60 + 60).dropped_rows for hour in range(3)] == [
        2,
        2,
        0,
    ]


def test_a_time_begins_with_its_first_instant_and_ends_before_its_last() -> None:
    span = Span(5, 9)
    assert [
        span.meets(bounds) for bounds in ((1, 4), (1, 5), (6, 7), (8, 20), (9, 20), (1, 20))
    ] == [*(False, True, True, True, False, True)]
    assert span.meets(None)


def test_an_instant_is_utc_unless_it_says_otherwise_and_may_be_so_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert instant_ns("2026-11-21") == 1795219200 * S
    for text in ("2026-11-21T09:30", "2026-11-21T09:30Z", "2026-11-21 10:30+01:00"):
        assert instant_ns(text) == 1795253400 * S
    monkeypatch.setattr("reaper.pipeline.read.span.time.time_ns", lambda: LATER)
    assert instant_ns("90m") == LATER - 90 * MINUTE


# ---- servers that are expected


def missing(
    directory: Path, *expected: str, since: int | None = None, until: int | None = None
) -> dict[str, str]:
    found = silent(
        expected, check([directory], now_ns=LATER).files, 15 * MINUTE, asked(since, until)
    )
    return {entry["server"]: entry["reason"] for entry in found}


def test_a_server_without_a_file_is_missed_by_name(tmp_path: Path) -> None:
    opened(tmp_path, "web-1", 0)
    assert missing(tmp_path, "web-1") == {}
    assert missing(tmp_path, "web-3", "web-1", "web-2") == {
        "web-3": "no file of it",
        "web-2": "no file of it",
    }


def test_a_server_that_fell_silent_or_was_silent_between_is_missed(tmp_path: Path) -> None:
    opened(tmp_path, "steady", *range(0, 200, 10))
    opened(tmp_path, "ended", 0, 10, 20)
    opened(tmp_path, "paused", 0, 10, *range(80, 200, 10))
    opened(tmp_path, "new", *range(150, 200, 10))
    assert missing(tmp_path, "steady", "ended", "paused", "new") == {
        "ended": "no row from 2026-09-21 14:35:21 UTC to 2026-09-21 17:25:21 UTC, 2.83 h",
        "paused": "no row from 2026-09-21 14:25:21 UTC to 2026-09-21 15:33:20 UTC, 68 min",
    }
    assert list(missing(tmp_path, "ended", "paused", until=25)) == []
    assert list(missing(tmp_path, "paused", "new", since=100)) == ["new"]
    assert list(missing(tmp_path, "steady", until=300)) == ["steady"]


def test_a_file_without_the_wall_clock_speaks_for_its_server_at_any_time(tmp_path: Path) -> None:
    opened(tmp_path, "web-1", 0, 100)
    files = check([tmp_path], now_ns=LATER).files
    files[0].bounds = None
    assert silent(["web-1"], files, 15 * MINUTE, Span()) == []


def test_names_come_from_a_file_or_from_the_argument(tmp_path: Path) -> None:
    path = tmp_path / "servers"
    path.write_text("web-1\n\n# the old ones\nweb-2  # soon to go\nweb-1\n")
    assert server_names(str(path)) == server_names("web-1, web-2,") == ("web-1", "web-2")
    path.write_bytes(b"\xff")
    for wrong in (str(path), "", " , ", str(tmp_path / "none")):
        with pytest.raises(argparse.ArgumentTypeError):
            server_names(wrong)


# ---- the commands


def test_an_audit_of_an_hour_of_the_lake_misses_a_server_and_does_not_pass(
    pipeline: Ran, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for server, minutes in (
        ("web-1", (0, 10, 20, 180, 700)),
        ("web-2", (0, 10, 180)),
    ):  # on two days
        opened(tmp_path / server, server, *minutes)
        shipped(tmp_path / server, lake)
    asked = ["audit", "--events", lake, "--out", tmp_path / "out", "--json"]
    asked += ["--from", "2026-09-21T14:10", "--to", "2026-09-21T14:38", "--expect"]
    status, said, _ = pipeline(*asked, "web-1,web-2")
    passed = json.loads(said)
    assert (status, passed["connections"], passed["files"]["read"], passed["silent_servers"]) == (
        0,
        15,
        5,
        [],
    )
    status, said, _ = pipeline(*asked, "web-1,web-2,web-3", "--expect-within", "12m")
    assert status == 1
    assert json.loads(said)["reasons"] == [
        (
            "server web-2 was expected: no row from 2026-09-21 14:25:21 UTC to 2026-09-21 "
            "14:38:00 UTC, 12.7 min"
        ),
        "server web-3 was expected: no file of it",
    ]


def test_every_answer_names_the_servers_it_misses_and_the_rows_that_were_dropped(
    pipeline: Ran, tmp_path: Path
) -> None:
    opened(tmp_path / "lake", "web-1", 0)
    for words in ("what-if --timeouts 2s", "advise"):
        if words == "advise":
            with journal(tmp_path / "lake", 7, Clock(), queue_rows=2) as ours:
                for connection in range(3):
                    ours.open(connection * S, 5000, "echo")
        out = tmp_path / words.split()[0]
        given = ("--events", tmp_path / "lake", "--out", out, "--expect", "web-1,web-3", "--json")
        status, said, _ = pipeline(*words.split(), *given)
        summary, text = json.loads(said), next(out.glob("*.txt")).read_text()
        assert (status, summary["silent_servers"]) == (
            1,
            [{"server": "web-3", "reason": "no file of it"}],
        )
        assert "server web-3 was expected: no file of it" in text
    assert summary["dropped_rows"] == 1
    assert "the writers dropped 1 row(s): figures are of what is left" in text


def test_each_thing_that_the_journals_lack_is_named() -> None:
    assert not any(Inputs().lacking().values())
    inputs = Inputs(
        quarantined=[{"path": "a"}],
        dropped_rows=1,
        silent=[{"server": "web"}],
        holes=[{"run": "a"}],
    )
    lacking = inputs.lacking()
    assert list(lacking) == ["quarantined", "dropped_rows", "holes", "silent_servers"]
    assert all(lacking.values())
