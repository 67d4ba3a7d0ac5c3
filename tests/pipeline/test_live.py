"""The pipeline over logs that grow: the same answer as over logs that stand still,
whatever happens on the way.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from html import escape
from itertools import count
from pathlib import Path
from threading import Event
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from reaper.journal import ConnectionLog, Journal
from reaper.pipeline.arguments import Fault
from reaper.pipeline.live import feed as live_feed
from reaper.pipeline.live.feed import Feed, rows_of
from reaper.pipeline.live.ledger import Ledger, ServerRead, open_ledger
from reaper.pipeline.live.page import render
from reaper.pipeline.live.run import Settings, StreamFailed, _sink, _writing, follow, read_feed
from reaper.pipeline.live.status import as_text, status
from reaper.pipeline.live.tables import FEED, idle, keep_sessions, keep_windows, windows
from reaper.pipeline.read.expected import missing
from reaper.pipeline.read.file import footer_of
from scripts.serving import tree
from tests.helpers.pipeline_traffic import MS, WALL, Clock, S, journal, on_spark, only, play, write
from tests.helpers.spark_processes import LONG, configured, environment, started, until
from tests.pipeline.test_page import loaded

NO_SPARK: Any = None
"""For what is refused before a Spark is asked."""

DELAY = 60 * S


# ---- the feed: no Spark


def feed(tmp_path: Path, *servers: str, delay: int = DELAY) -> Feed:
    directories = [tmp_path / server for server in servers or ("server",)]
    return Feed(
        tmp_path / "out", directories, delay, {"--delay": delay}, now_ns=lambda: WALL + 10_000 * S
    )


def admit_all(one: Feed) -> int:
    return sum(iter(one.admit, 0))


def fed(tmp_path: Path) -> list[tuple[int, int, str]]:
    """Instant in us since `WALL`, connection and kind of what is in the feed."""
    rows: list[tuple[int, int, str]] = []
    for path in sorted((tmp_path / "out" / "feed").glob("[0-9]*/*")):
        table = pq.ParquetFile(path).read(columns=["at", "conn", "kind"])
        at = [instant - WALL // 1000 for instant in table["at"].cast(pa.int64()).to_pylist()]
        rows += zip(at, *(table[name].to_pylist() for name in ("conn", "kind")), strict=True)
    return sorted(rows)


def opened(directory: Path, writer: int, *instants: int, **options: Any) -> None:
    """A journal with one file in which a connection is opened at each of *instants*."""
    with journal(directory, writer, **options) as ours:
        for t in instants:
            ours.open(t, 5000, "echo")


def test_each_row_enters_the_feed_once_however_often_it_is_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "server", connections=30)
    first = feed(tmp_path)
    assert admit_all(first) == 1
    rows = fed(tmp_path)
    table = pq.ParquetFile(next((tmp_path / "server").glob("*.parquet"))).read()
    own = sum(kind in {"drain", "config"} for kind in table["kind"].to_pylist())
    assert len(rows) == table.num_rows - own
    assert rows[0][0] == (table["wall_offset_ns"][0].as_py() + table["t"][0].as_py() - WALL) // 1000
    assert first.admit() == 0
    assert feed(tmp_path).admit() == 0  # a process that was started anew
    assert fed(tmp_path) == rows


def test_a_backlog_enters_in_the_order_of_time_and_in_steps_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minute in range(4):  # one server's minutes, then the other's, as a listing would give them
        opened(tmp_path / "a", minute + 1, *(minute * 60 * S + i * S for i in range(50)))
        opened(tmp_path / "b", minute + 11, *(minute * 60 * S + i * S for i in range(50)))
    monkeypatch.setattr(live_feed, "STEP_ROWS", 200)  # each file ends with what is open: 50 rows
    one = feed(tmp_path, "a", "b", delay=70 * S)
    assert [one.admit() for _ in range(5)] == [2, 2, 2, 2, 0]
    assert one.ledger.step == 4
    assert one.ledger.late == {}


def test_a_backlog_makes_no_file_late_however_long_the_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for writer in range(1, 5):
        opened(tmp_path / "server", writer, *(i * S for i in range(300 + writer)))
    opened(tmp_path / "server", 9, 400 * S)
    monkeypatch.setattr(live_feed, "STEP_ROWS", 400)
    one = feed(tmp_path)
    assert [one.admit() for _ in range(3)] == [4, 1, 0]
    assert (one.ledger.late, len(fed(tmp_path)), one.ledger.rows) == ({}, 1211, 1211)
    assert (
        len(list((tmp_path / "out" / "feed" / "000000001").iterdir())) == 2
    )  # no file of a step is much larger


@pytest.mark.parametrize(
    ("of", "where"),
    [
        (pq, "write_table"),
        (live_feed, "sync"),
        (Ledger, "commit"),
        (Feed, "_settle"),
        (None, "after"),
    ],
    ids=["a full disk", "sync", "commit", "settle", "after"],
)
def test_a_failure_anywhere_in_a_step_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Any, where: str
) -> None:
    opened(tmp_path / "server", 1, 500 * S, 600 * S)
    one = feed(tmp_path)
    one.admit()
    opened(tmp_path / "server", 2, S, 610 * S)  # one row too late, one in time

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if of is not None:
            patch.setattr(of, where, fails)
            with pytest.raises(OSError, match="No space left"):  # as it would end at a kill
                one.admit()
        else:
            one.admit()
    opened(tmp_path / "server", 3, 620 * S)  # comes before it is started again
    again = feed(tmp_path)
    done = where in {"_settle", "after"}
    assert (len(fed(tmp_path)), again.ledger.late, again.ledger.step) == (
        (3, {"echo": 1}, 2) if done else (2, {}, 1)
    )
    admit_all(again)
    assert [at for at, *_ in fed(tmp_path)] == [500_000_000, 600_000_000, 610_000_000, 620_000_000]
    assert (again.ledger.rows, again.ledger.late, again.quarantined) == (5, {"echo": 1}, {})
    assert sorted(p.name for p in (tmp_path / "out" / "feed").glob(".*")) == []


def test_the_ledger_of_many_servers_stays_small_however_many_files_they_have_written(
    tmp_path: Path,
) -> None:
    ledger = open_ledger(tmp_path, {})
    for server in range(100):
        ledger.servers[f"/var/lib/lake/server-{server:04d}"] = ServerRead(1000, 4_000_000, 0, WALL)
        for serial in range(1000, 0, -1):
            ledger.note(f"{server:012x}", serial, 0)
    ledger.commit(tmp_path)
    assert (tmp_path / "ledger.json").stat().st_size < 20_000
    assert open_ledger(tmp_path, {}) == ledger


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("ledger.json", b"SQLite format 3\x00\xff", "is no ledger"),
        ("ledger.json", b"[]", "is no ledger"),
        ("ledger.json", b'{"version": 4, "step": 1}', "is no ledger"),
        (
            "ledger.json",
            b'{"version": 9}',
            r"is of version 9, this release reads 4\): name another --out",
        ),
        (
            "ledger.json",
            b'{"version": 3, "step": 1, "runs": {}, "servers": {}, "settings": {}}',
            r"is of version 3, this release reads 4\): name another --out",
        ),
        ("checkpoint/idle/commits/0", b"", "its ledger is not there: name another --out"),
    ],
)
def test_an_output_that_cannot_be_continued_is_refused_and_left_as_it_is(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(Fault, match=reason) as refused:
        follow(NO_SPARK, [tmp_path / "server"], tmp_path, Settings())
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == content


def test_a_bad_file_is_put_aside_with_its_reason_and_stops_no_other(tmp_path: Path) -> None:
    server = tmp_path / "server"
    opened(server, 1, S, 2 * S)
    good = only(server)
    (server / "half.parquet").write_bytes(good.read_bytes()[:-100])
    (server / "nothing.parquet").write_bytes(b"")
    table = pq.read_table(good)
    kept = {key: value for key, value in table.schema.metadata.items() if key != b"reaper.anchors"}
    table = table.replace_schema_metadata({**kept, b"reaper.run": b"0123"})
    at, unknown = (
        table.schema.get_field_index("wall_offset_ns"),
        pa.nulls(table.num_rows, pa.int64()),
    )
    pq.write_table(table.set_column(at, "wall_offset_ns", unknown), server / "old.parquet")
    shutil.copy(good, server / "copy.parquet")
    opened(
        server / "ahead", 2, 120 * S
    )  # two minutes after this machine's clock, with a delay of one
    now = [WALL]
    one = Feed(tmp_path / "out", [server], DELAY, {}, now_ns=lambda: now[0])
    admit_all(one)
    assert {Path(path).name: reason.split(":")[0] for path, reason in one.quarantined.items()} == {
        "half.parquet": "truncated or not Parquet",
        "nothing.parquet": "zero-length",
        "old.parquet": "no wall clock",
        only(server / "ahead").name: "future",
    }  # a copy counts once, and is no fault
    assert one.ledger.rows == 2
    assert admit_all(one) == 0  # none is looked at again
    shutil.copy(only(server / "ahead"), server / "half.parquet")  # it was still being copied
    now[0] += 61 * S
    admit_all(one)  # what was ahead no longer is, and what was half is whole, if only a copy
    assert (one.ledger.rows, len(one.quarantined)) == (3, 2)


def test_files_that_retention_deleted_before_they_were_read_are_missed_by_number(
    tmp_path: Path,
) -> None:
    with journal(tmp_path / "server", 1, rotate_bytes=1) as ours:
        one = feed(tmp_path)
        for serial in range(1, 6):
            ours.open(serial * S, 5000, "echo")
            ours.flush()
            if serial == 1:
                admit_all(one)
    files = sorted((tmp_path / "server").glob("*.parquet"))
    kept = files[2].read_bytes()
    for file in files[2:4]:
        file.unlink()
    admit_all(one)
    assert (one.ledger.rows, one.ledger.missing_files) == (3, 2)
    files[2].write_bytes(kept)  # it was only late
    files[0].unlink()  # deleted after it was read: nothing is missed
    admit_all(one)
    assert (one.ledger.rows, one.ledger.missing_files) == (4, 1)


def test_a_file_that_fails_after_its_check_is_put_aside_and_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "server", 1, S)

    def fails(*_: object) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(live_feed, "rows_of", fails)
    one = feed(tmp_path)
    assert admit_all(one) == 1
    assert (list(one.quarantined.values()), one.ledger.rows) == (
        ["cannot be read: input/output error"],
        0,
    )


def test_a_change_of_a_timeout_enters_the_feed_and_counts_neither_as_row_nor_as_late(
    tmp_path: Path,
) -> None:
    one = feed(tmp_path)
    for writer, rows, late in ((1, 1, {}), (2, 2, {}), (3, 3, {"echo": 1})):
        with journal(tmp_path / "server", writer) as ours:
            ours.open(S if writer != 2 else 600 * S, 5000, "echo").timeout_ms = 60_000
            ours.config(2 * S, "a writer's own")
        admit_all(one)
        assert (one.ledger.rows, one.ledger.late) == (rows, late)
        assert [kind for *_, kind in fed(tmp_path)] == ["config", "open"] * min(writer, 2)


def test_rows_written_after_the_drain_are_late(tmp_path: Path) -> None:
    opened(tmp_path / "server", 1, S)
    one = feed(tmp_path)
    one.mark()
    assert one.ledger.step == 0  # there is nothing to let out
    one.admit()
    one.mark()
    assert [kind for *_, kind in fed(tmp_path)] == ["open", "marker"]
    again = feed(tmp_path)
    again.mark()
    assert again.ledger.step == 2
    opened(tmp_path / "server", 2, 50 * S)
    again.admit()
    assert again.ledger.late == {"echo": 1}


def test_an_output_begun_with_other_settings_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "server", 1, S)
    Feed(
        tmp_path / "out",
        [tmp_path / "server"],
        DELAY,
        {"--window in ms": 10_000, "--delay in ms": 60_000},
    ).admit()
    with pytest.raises(
        Fault, match="--window in ms is 20000, but this output was begun with 10000"
    ):
        follow(
            NO_SPARK,
            [tmp_path / "server"],
            tmp_path / "out",
            Settings(window_ns=20 * S, delay_ns=DELAY),
        )


def test_a_function_of_your_own_is_found_beside_you_or_refused(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "mine_of_live.py").write_text("def keep(*_): pass\nnumber = 3\n")
    monkeypatch.chdir(tmp_path)
    given: list[Any] = []

    def noted(*arguments: Any) -> dict[str, Any]:
        given.extend(arguments)
        raise Fault("far enough")

    monkeypatch.setattr("reaper.pipeline.live.run.follow", noted)
    monkeypatch.setattr(
        "reaper.pipeline.live.command.open_session", lambda *_, **__: nullcontext(NO_SPARK)
    )
    monkeypatch.setattr("reaper.pipeline.live.command.expect", lambda *_: None)
    words = ["live", "--events", tmp_path / "server", "--out", tmp_path / "out", "--each"]
    assert pipeline(*words, "mine_of_live:keep")[::2] == (
        2,
        "python -m reaper.pipeline live: far enough\n",
    )
    assert given[-1].__module__ == "mine_of_live"
    for wrong in ("mine_of_live:gone", "not_there_at_all:keep", ":", "a.b:c"):
        status, _, said = pipeline(*words, wrong)
        assert status == 2
        assert f"{wrong!r} names no function" in said
    for wrong in ("mine_of_live", "mine_of_live:number"):
        assert f"{wrong!r} cannot be called" in pipeline(*words, wrong)[2]
    assert str(tmp_path) not in sys.path


def test_what_a_function_of_your_own_raises_is_what_ends_the_run() -> None:
    steps: list[str] = []
    batch: Any = SimpleNamespace(
        persist=lambda: steps.append("persist"), unpersist=lambda: steps.append("unpersist")
    )

    def each(name: str, *_: Any) -> None:
        steps.append(name)
        raise OSError("the lake\nis dry")

    raised: list[Exception] = []
    sink = _sink(lambda *_: steps.append("keep"), "idle", each, raised)
    with pytest.raises(StreamFailed) as failed, _writing(raised):
        sink(batch, 3)
    assert str(failed.value).endswith("started again: --each raised OSError: the lake is dry")
    assert steps == ["persist", "keep", "idle", "unpersist"]


# ---- the tables: no Spark


def sunk(table: pa.Table) -> Any:
    """What a sink sees of a DataFrame."""
    return SimpleNamespace(toArrow=lambda: table)


def window_rows(*rows: tuple[int, str | None, int]) -> Any:
    start = pa.array([at * 1_000_000 for at, *_ in rows], pa.timestamp("us", "UTC"))
    counts = {
        name: pa.array([n for *_, n in rows], pa.int64())
        for name in ("opened", "reaped", "closed", "averted")
    }
    more = {"overdue": counts["opened"], "max_lateness_ns": counts["opened"]}
    return sunk(
        pa.table(
            {
                "start": start,
                "end": start,
                "listener": [name for _, name, _ in rows],
                **counts,
                **more,
            }
        )
    )


def test_a_window_is_kept_once_a_day_by_day_whatever_is_given_twice(tmp_path: Path) -> None:
    day = 86_400
    keep_windows(tmp_path, window_rows((day - 10, "echo", 1), (day, "echo", 2), (day, None, 3)))
    for _ in range(2):
        keep_windows(tmp_path, window_rows((day, None, 5), (day + 10, "echo", 7)))
    keep_windows(tmp_path, window_rows())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "1970-01-01.parquet",
        "1970-01-02.parquet",
    ]
    table = pq.read_table(tmp_path)
    kept = sorted(
        zip(table["opened"].to_pylist(), table["listener"].to_pylist(), strict=True), key=str
    )
    assert kept == [(1, "echo"), (2, "echo"), (5, None), (7, "echo")]


def test_a_batch_of_sessions_counts_once_and_files_stay_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reaper.pipeline.live.tables.PART_ROWS", 5)
    for number in (3, 4, 4, 7, 8, 8, 9, 9):
        rows = sunk(pa.table({"conn": [number] * (0 if number == 7 else 3)}))
        keep_sessions(tmp_path, rows, number)
    assert len(list(tmp_path.iterdir())) == 2
    assert pq.read_table(tmp_path)["conn"].to_pylist() == [3] * 3 + [4] * 3 + [8] * 3 + [9] * 3


# ---- the page: no Spark


def drawn(
    tmp_path: Path, one: Feed, silent: Any = MappingProxyType({})
) -> tuple[dict[str, Any], str]:
    summary = status(one, tmp_path / "out", 10 * S, lambda: WALL + 700 * S, silent)
    return summary, render(summary, tmp_path / "out", 5 * S)


def test_the_page_says_so_while_there_is_nothing_to_show(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / ".reaper-1.arrows").write_bytes(b"")
    one = feed(tmp_path)
    admit_all(one)
    summary, page = drawn(tmp_path, one)
    assert (summary["complete"], "<svg" in page) == (True, False)
    assert "Waiting for the first rows" in page
    assert "1 stream(s) are being written" in page


def test_the_page_is_whole_in_itself_asks_for_itself_and_names_what_it_lacks(
    tmp_path: Path,
) -> None:
    opened(tmp_path / "server", 1, 600 * S, server="web-1")
    one = feed(tmp_path)
    one.admit()
    opened(tmp_path / "server", 2, S)
    with journal(tmp_path / "server", 3, Clock(600 * S), server="idle") as ours:
        ours.config(600 * S, "alive")
    (tmp_path / "server" / "<half>.parquet").write_bytes(b"PAR1")
    one.admit()
    (tmp_path / "out" / "windows").mkdir()
    at = (WALL // S) + 590
    keep_windows(
        tmp_path / "out" / "windows",
        window_rows((at, "echo", 3), (at + 10, "<b>", 4), (at + 10, None, 1)),
    )
    newest = {
        name: [(at, at)] for name, at in feed(tmp_path).ledger.names.items()
    }  # as a process knows it later
    lost = missing(["web-1", "idle", "<web-3>"], newest, 15 * 60 * S, WALL + 700 * S)
    assert lost == [{"server": "<web-3>", "reason": "no file of it"}]
    summary, page = drawn(tmp_path, one, lost)
    text = as_text({**summary, "new_rows": 2, "dropped_by_watermark": 0})
    assert not summary["complete"]
    for words in (
        "server <web-3> was expected: no file of it",
        "1 row(s) came later than --delay allows",
        "<half>",
    ):
        assert words in text
        assert escape(words) in page
    assert "&lt;b&gt;" in page
    assert '<meta http-equiv="refresh" content="5">' in page
    assert (loaded(page), page.count("<svg")) == ([], 4)


# ---- the stream


def kept(table: pa.Table) -> list[tuple[Any, ...]]:
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: tuple((value is not None, value) for value in row))


def tables(out: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What a reader who knows nothing of Spark finds."""
    return {name: kept(pq.read_table(out / name)) for name in ("windows", "idle")}


def batch(
    real_spark: Any, *directories: Path, window: int = 10 * S
) -> dict[str, list[tuple[Any, ...]]]:
    """The answer over the same files as they lie there."""
    paths = [path for directory in directories for path in directory.rglob("[!.]*.parquet")]
    found = [rows_of(footer_of(path, path.stat().st_size)) for path in paths]
    events = real_spark.createDataFrame(pa.concat_tables(found), FEED)
    frames = {"windows": windows(events, window, DELAY), "idle": idle(events, DELAY)}
    return {name: kept(frame.toArrow()) for name, frame in frames.items()}


def names_of(servers: list[Path]) -> set[str]:
    """The names of all runs, as the files have them."""
    files = [path for server in servers for path in server.glob("*.parquet")]
    return {pq.read_schema(path).metadata[b"reaper.run"].decode() for path in files}


def fleet(root: Path) -> list[Path]:
    """Four servers whose workers all have the same writer id and the same first
    connection; the last in gaps mode, with a second worker whose connections' timeouts
    change.
    """
    with journal(root / "server3", 1, mode="gaps") as ours:
        touches = "; ".join(f"touch {tenth / 10}" for tenth in range(300))  # which leave no row
        play(f"open 0 5; {touches}; close_peer 30", 100 * S, ours, listener="gaps")
        play("open 0 5; reap 6 5", 100 * S, ours, listener="gaps")
    with journal(root / "server3", 2) as ours:
        for changes in ("3600; touch 30; close_peer 31", "0; touch 50; retime 5", "0"):
            play(f"open 0 5; touch 2; retime {changes}", 100 * S, ours, listener="retimed")
    usual = ["open 0 5; touch 2; close_peer 4", "open 0 5; touch 2; reap 8 7"] * 3
    in_use = (
        "open 0 5; touch 2; retime 0; touch 92"  # for a minute and a half: silent, and never idle
    )
    # before the reaper noticed
    came_back = "open 0 5; touch 2; touch 10; averted 15; touch 15; close_app 16"
    for server in range(3):
        with journal(root / f"server{server}", 1) as ours:
            for serial, script in enumerate([*usual, in_use, came_back]):
                play(
                    script,
                    (server * 40 + serial) * S,
                    ours,
                    listener="echo" if serial % 3 else None,
                )
    return [root / f"server{server}" for server in range(4)]


@on_spark
def test_live_equals_batch_whether_it_ran_through_or_was_stopped_between(
    real_spark: Any, tmp_path: Path
) -> None:
    servers = fleet(tmp_path)
    leftover = tmp_path / "once" / "checkpoint" / "idle" / "offsets"
    leftover.mkdir(parents=True)
    (leftover / ".0.tmp").touch()  # killed while the first batch was written down
    passed: dict[str, list[tuple[Any, ...]]] = {"windows": [], "idle": []}

    def each(name: str, rows: Any, number: int) -> None:
        assert number >= 0
        passed[name] += kept(rows.toArrow())

    once = Settings(delay_ns=DELAY, drain=True)
    through = follow(real_spark, servers, tmp_path / "once", once, each=each)
    assert through["complete"]
    assert through["dropped_by_watermark"] == 0
    expected = batch(real_spark, *servers)
    assert tables(tmp_path / "once") == expected
    assert sorted(passed["idle"], key=str) == sorted(expected["idle"], key=str)
    assert {*passed["windows"]} >= {*expected["windows"]}  # a window comes again as it grows
    assert {row[0] for row in passed["idle"]} == names_of(servers)
    page = (Path(__file__).parents[2] / "docs" / "pipeline-live.md").read_text()
    for name in expected:
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}/`"))
        columns = pq.read_table(tmp_path / "once" / name).column_names
        assert {f"`{column}`" for column in columns} <= {*re.findall("`[a-z_]+`", line)}
    growing = tmp_path / "growing"
    for number, source in enumerate(servers):
        shutil.copytree(source, growing / source.name)
        if number % 2:
            last = follow(
                real_spark, [growing], tmp_path / "out", Settings(delay_ns=DELAY, drain=number == 3)
            )
    assert tables(tmp_path / "out") == expected
    assert last["listeners"] == through["listeners"]
    of = through["listeners"]
    figures = ("opened", "reaped", "closed", "averted", "overdue", "idle", "idle_uncertain")
    assert [of["echo"][name] for name in figures] == [15, 6, 9, 3, 3, 9, 0]
    assert (of["(unnamed)"]["opened"], of["retimed"]["idle"]) == (9, 1)
    assert (of["gaps"]["idle"], of["gaps"]["idle_uncertain"]) == (2, 2)
    assert max(row[-1] for row in expected["windows"] if row[-1] is not None) == S  # lateness
    found = sorted(
        (row["conn"], row["outcome"])
        for row in pq.read_table(tmp_path / "out" / "idle").to_pylist()
    )
    assert (
        len({row[0] for row in expected["idle"]}) == 5
    )  # five runs, though four have the same connections' numbers
    assert [how for conn, how in found if conn >> 43 == 2] == ["ended", "idle", "in_use"]


@on_spark
def test_rows_that_come_too_late_are_kept_apart_and_the_rest_equals_batch(
    real_spark: Any, tmp_path: Path
) -> None:
    opened(tmp_path / "a", 1, *(t * S for t in range(100, 200, 10)))
    settings = Settings(delay_ns=DELAY)
    assert follow(real_spark, [tmp_path / "a", tmp_path / "b"], tmp_path / "out", settings)[
        "complete"
    ]
    opened(
        tmp_path / "b", 2, 20 * S, 129 * S, 130 * S
    )  # the newest was 190: at 130 or before it is too late
    opened(tmp_path / "c", 3, 131 * S, 150 * S)
    servers = [tmp_path / name for name in "abc"]
    last = follow(real_spark, servers, tmp_path / "out", Settings(delay_ns=DELAY, drain=True))
    assert (last["late_rows"], last["dropped_by_watermark"], last["complete"]) == (3, 0, False)
    assert last["servers"][str(tmp_path / "b")]["late"] == 3
    assert tables(tmp_path / "out") == batch(real_spark, tmp_path / "a", tmp_path / "c")


@on_spark
def test_a_step_that_goes_while_it_is_listed_ends_no_query(real_spark: Any, tmp_path: Path) -> None:
    feed, stop = tmp_path / "feed {1,2}", Event()
    feed.mkdir()
    began = Event()

    def step_by_step() -> None:
        for number in count():
            (feed / f"{number:09d}").mkdir()
            if number > 20:
                (feed / f"{number - 20:09d}").rmdir()
                began.set()
            if stop.is_set():
                return

    with ThreadPoolExecutor() as pool, ExitStack() as ending:
        ending.callback(stop.set)
        steps = pool.submit(step_by_step)
        assert began.wait(60)
        writer = read_feed(real_spark, feed).writeStream.trigger(processingTime="1 millisecond")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(lambda *_: None).start()
        ending.callback(query.stop)
        for _ in range(5):
            query.processAllAvailable()
    assert steps.result() is None


# ---- a real process, killed


def started_live(events: list[Path], out: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    argv = [
        sys.executable,
        "-m",
        "reaper.pipeline",
        "live",
        "--events",
        *map(str, events),
        "--out",
        str(out),
    ]
    argv += [
        "--for",
        "forever",
        "--every",
        "100ms",
        "--window",
        "1s",
        "--delay=60s",
        "--master",
        "local[2]",
        "--quiet",
    ]
    conf = configured(out.parent, **{"spark.sql.shuffle.partitions": "1"})
    return started(argv, out.parent / "stderr", env=environment(SPARK_CONF_DIR=str(conf)))


def begun(out: Path) -> bool:
    """A batch was begun and is not committed."""
    offsets, commits = (out.glob(f"checkpoint/*/{name}/[0-9]*") for name in ("offsets", "commits"))
    return bool({(p.parts[-3], p.name) for p in offsets} - {(p.parts[-3], p.name) for p in commits})


def stopped_amid_a_batch(live: subprocess.Popen[bytes], out: Path) -> bool:
    """Whether *live* stands still, and has not committed what it has begun. It is let
    run on where it has: a pause of this process is longer than many a batch.
    """
    if step_of(out) <= 1 or not begun(out):
        return False
    os.killpg(live.pid, signal.SIGSTOP)
    if stands_still(live.pid) and begun(out):
        return True
    os.killpg(live.pid, signal.SIGCONT)
    return False


def stands_still(pid: int) -> bool:
    """Whether each thread of a process and of those that it has started stops, which
    has got SIGSTOP. Where Java has just begun a process (vfork), that one is stopped
    before its exec, for which the thread waits that began it: it never stops.
    """
    deadline = time.monotonic() + 5
    while not states(pid) <= {*"TZX"}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def states(pid: int) -> set[str]:
    """Of the threads of a process and of those that it has started; "?" where one has
    ended meanwhile.
    """
    try:
        stats = [
            (thread / "stat").read_text()
            for each in tree(pid)
            for thread in Path(f"/proc/{each}/task").iterdir()
        ]
    except OSError:
        return {"?"}
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def step_of(out: Path) -> int:
    """Of the ledger; 0: there is none yet."""
    ledger = out / "ledger.json"
    return json.loads(ledger.read_text())["step"] if ledger.exists() else 0


def serve(directory: Path, mode: str, stop: Event) -> None:
    """A made-up server in real time whose journal rotates often: ten rounds a second,
    in which a connection that was silent for its timeout is reaped, and any other may
    speak, leave, or say nothing.
    """
    chance, timeout_ms, living = random.Random(mode), 600, list[ConnectionLog]()
    options: dict[str, Any] = {
        "mode": mode,
        "gap_threshold": 0.2,
        "tick": 0.1,
        "flush": 0.1,
        "rotate_seconds": 1.0,
    }
    with Journal(directory, writer=1, **options) as ours:
        while not stop.wait(0.1):
            living += [
                ours.open(time.monotonic_ns(), timeout_ms, chance.choice(["echo", "http"]))
                for _ in range(4)
            ]
            for log in living:
                now, what = time.monotonic_ns(), chance.random()
                if now >= (due := log.last_ns + timeout_ms * MS):
                    log.reap(now, due, "idle")
                elif what < 0.02:
                    log.close_peer(now)
                elif what < 0.3:
                    log.touch(now, 10)
            living = [log for log in living if not log.ended]


@on_spark
def test_a_kill_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    real_spark: Any, tmp_path: Path
) -> None:
    servers, out, stop = [tmp_path / "server1", tmp_path / "server2"], tmp_path / "out", Event()
    said = tmp_path / "stderr"
    with ThreadPoolExecutor() as pool, ExitStack() as ending:
        ending.callback(stop.set)
        for server in servers:
            server.mkdir()
        writing = [
            pool.submit(serve, *side, stop) for side in zip(servers, ("full", "gaps"), strict=True)
        ]
        with started_live(servers, out) as live:
            until(lambda: stopped_amid_a_batch(live, out), live, said)
        assert begun(out)
        steps = step_of(out)
        with started_live(servers, out) as live:  # and now it is asked to stop
            until(lambda: step_of(out) > steps, live, said)
            with pytest.raises(Fault, match=f"another live .process {live.pid}. is at work"):
                follow(real_spark, servers, out, Settings())
            os.killpg(live.pid, signal.SIGINT)  # as a terminal does
            assert live.wait(LONG) == 0
    assert [each.result() for each in writing] == [None, None]
    assert "Traceback" not in said.read_text()
    last = follow(real_spark, servers, out, Settings(window_ns=S, delay_ns=60 * S, drain=True))
    assert (last["complete"], last["dropped_by_watermark"]) == (True, 0), last
    found = tables(out)
    assert found == batch(real_spark, *servers, window=S)
    rows = [
        pq.read_table(path)["kind"].to_pylist()
        for server in servers
        for path in server.glob("*.parquet")
    ]
    assert (
        sum(row[3] for row in found["windows"]) == sum(kinds.count("open") for kinds in rows) > 100
    )
    assert len(found["idle"]) > 100
