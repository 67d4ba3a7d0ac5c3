"""Bad input is put aside with a reason and a count, and never believed. No Spark
here.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reaper.journal.schema import DROPPED
from reaper.pipeline.arguments import aside_lines, whole
from reaper.pipeline.cli import _full
from reaper.pipeline.engine.spark import NoJava, check_java, check_version
from reaper.pipeline.places import write_text
from reaper.pipeline.read.inputs import check
from reaper.pipeline.read.runs import Timeline
from reaper.pipeline.read.span import Span
from tests.helpers.pipeline_traffic import WALL, S, journal, only

ROOT = Path(__file__).parent.parent.parent
HERE = shlex.quote(__file__)


def test_many_files_put_aside_are_one_line_and_few_are_each_their_own() -> None:
    entries = [{"path": f"{i}.parquet", "reason": "empty"} for i in range(9554)]
    assert aside_lines(entries[:2]) == [
        "put aside: 0.parquet: empty",
        "put aside: 1.parquet: empty",
    ]
    assert aside_lines(entries) == [
        "put aside: 0.parquet: empty; and 9,553 more, see put-aside.txt"
    ]


def test_a_command_that_fails_leaves_nothing_that_was_not_there_before(tmp_path: Path) -> None:
    def fail(out: Path) -> None:
        with pytest.raises(OSError, match="full"), whole(out):
            (out / "connections").mkdir(parents=True)
            (out / "connections" / "part").write_text("half")
            (out / "audit.json").write_text("half")
            raise OSError("full")

    fail(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine").write_text("kept")
    fail(tmp_path / "old")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "old",
        "old/mine",
    ]


def test_a_full_disk_is_named_and_leaves_no_half_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*audit.json'"):
        write_text(tmp_path / "audit.json", "half")
    assert list(tmp_path.iterdir()) == []
    assert "no space is left for o" in _full(Path("o"))


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    program = "from reaper.pipeline.arguments import show; show(False, {}, 'x')"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_directory_without_journals_is_named(tmp_path: Path) -> None:
    assert check([tmp_path]).nothing == [str(tmp_path)]
    assert check([tmp_path], span=Span(0, 1)).nothing == []


def write_judged(directory: Path, writer: int = 0) -> Path:
    """A journal of one file that `HOSTILE` can harm."""
    with journal(directory, writer, sequence=100) as ours:
        ours.stall(S, S)
        log = ours.open(S, 5000, "echo")
        log.touch(2 * S)
        log.reap(8 * S, 8 * S)
    return only(directory)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A directory with one good file."""
    return write_judged(tmp_path / "events", 3).parent


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def told(**values: str) -> Callable[[Path], None]:
    """*values* into the metadata."""
    given = {f"reaper.{key}".encode(): value.encode() for key, value in values.items()}
    return rewritten(
        lambda table: table.replace_schema_metadata({**table.schema.metadata, **given})
    )


def test_a_good_file_is_taken_whole_and_once_whatever_its_copy_is_called(good: Path) -> None:
    found = check([good], now_ns=WALL)
    assert (len(found.files), found.quarantined, found.files[0].rows) == (1, [], 4)
    (run,) = found.runs
    assert (run.writer, run.tick_ns, run.full, run.whole, run.log_end_ns) == (
        3,
        S,
        True,
        True,
        8 * S,
    )
    shutil.copy(only(good), good / "another-name.parquet")
    found = check([good], now_ns=WALL)
    assert len(found.files) == 1
    assert "duplicated" in found.quarantined[0]["reason"]
    assert found.files[0].path.name in found.quarantined[0]["reason"]


def test_rows_that_were_lost_after_the_last_stream_was_begun_count(good: Path) -> None:
    told(dropped_before="2", dropped="7")(only(good))
    found = check([good], now_ns=WALL)
    assert (found.dropped_rows, [run.whole for run in found.runs]) == (7, [False])


def test_a_directory_that_is_linked_into_a_journal_is_read_once(good: Path, tmp_path: Path) -> None:
    with journal(tmp_path / "elsewhere", 4) as other:
        other.open(S, 5000, "echo")
    for name in ("linked", "again"):
        (good / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(good)
    found = check([good], now_ns=WALL)
    assert ([run.writer for run in found.runs], found.quarantined) == ([3, 4], [])


def test_a_directory_that_cannot_be_read_is_no_empty_one_and_one_that_has_gone_is(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good / "closed").mkdir()
    scan = os.scandir
    error: OSError = PermissionError(13, "Permission denied", "closed")

    def denied(path: str) -> Any:
        if str(path).endswith("closed"):
            raise error
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(PermissionError, match="closed"):
        check([good], now_ns=WALL)
    error = FileNotFoundError(2, "No such file or directory", "closed")  # retention was quicker
    assert len(check([good], now_ns=WALL).files) == 1


def test_streams_that_still_grow_are_counted(good: Path) -> None:
    (good / ".growing.arrows").write_bytes(b"")
    (good / ".half.parquet.tmp").write_bytes(b"PAR1")
    found = check([good], now_ns=WALL)
    assert (len(found.files), found.quarantined, found.growing) == (1, [], 1)


def test_a_stream_that_gets_its_name_meanwhile_stops_nothing(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good / ".growing.arrows").write_bytes(b"")
    status = Path.stat

    def gone(self: Path, **options: Any) -> Any:
        if self.name == ".growing.arrows":
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return status(self, **options)

    monkeypatch.setattr(Path, "stat", gone)
    assert len(check([good], now_ns=WALL).files) == 1


def test_a_missing_or_old_java_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match=r"needs Java 17.*install.*found none"):
        check_java()
    java.parent.mkdir()
    java.touch(0o755)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    with pytest.raises(NoJava, match=r"version 8"):
        check_java()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    check_java()


ASKED = "audit --events . --out o"
LOGS = "alb, caddy, columns, combined, envoy, haproxy, iis, nginx, nginx-json, traefik\n"
PROXIES = "alb, caddy, envoy, haproxy, nginx, nginx-json, traefik\n"
CONNECT = "--out o --events hdfs://h/a --master sc://127.0.0.1:1"
WHAT_IF = "what-if --events . --out o"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("audit --events /none/such --out o", "no such file or directory: /none/such"),
        ("audit --out o", "--events"),
        (f"audit --events . --out {HERE}", f"--out {__file__}: {__file__} is not a directory"),
        (
            f"live --events . --out {HERE}/o",
            f"--out {__file__}/o: {__file__} is not a directory",
        ),
        (
            "audit --events .. --out o",
            "--out o lies in .., which is read: name a directory outside",
        ),
        ("audit --events /none --client . --out ./a/b", "no such file or directory: /none"),
        ("advise --out o", "one of --events DIR, --logs FILE and --table FILE must be given"),
        ("advise --logs x --out o", f"--logs needs --format, one of {LOGS}"),
        ("losses --logs x --out o", f"--logs needs --format, one of {PROXIES}"),
        (
            "advise --logs x",
            f"--out DIR is missing: where results go; --logs needs --format, one of {LOGS}",
        ),
        ("losses --logs x", f"where results go; --logs needs --format, one of {PROXIES}"),
        ("losses --logs x --format alb", "--out DIR is missing: where results go\n"),
        ("audit --events .", "--out DIR is missing: where results go\n"),
        ("advise --logs x --format nginx --out o --from 1h", "--expect are for --events"),
        ("advise --events . --out o --format nginx", "--format is for --logs"),
        ("advise --events . --out o --client .", "unrecognized arguments: --client ."),
        (f"{WHAT_IF} --client .", "unrecognized arguments: --client ."),
        (WHAT_IF, "nothing to compare"),
        (f"{WHAT_IF} --timeouts 5s,x", "'x' is not a duration"),
        (f"{WHAT_IF} --set tick=0s", "not longer than 0s"),
        ("advise --events . --out o --max-cut 3", "'3' is not a share"),
        ("advise --events . --out o --behind moon", "'moon'"),
        (f"{ASKED} --grace 5", "'5' is not a duration such as 250ms"),
        (f"{ASKED} --from soon", "'soon' is no instant"),
        (f"{ASKED} --to 2026-13-01", "'2026-13-01' is no instant"),
        (f"{ASKED} --from=2026-11-21 --to=2026-11-21", "--from must be before --to"),
        (f"{ASKED} --expect a/b", "'a/b' is no file"),
        (f"{ASKED} --expect ,", "',' names no server"),
        (f"{ASKED} --expect-within soon", "'soon' is not a duration"),
        ("live --out o --events nowhere", "no such file or directory: nowhere"),
        (f"live --out o --events {HERE}", "is a file"),
        ("live --out o --events hdfs://h/a", "hdfs://h/a is not a path of this machine"),
        ("live --out o --events . --engine=embedded", "use --engine spark"),
        (
            "live --out o --events . --master sc://here",
            "live does not work through Spark Connect (sc://here): give",
        ),
        *(
            (f"{command} {CONNECT}", "does not work through Spark Connect (sc://127.0.0.1:1)")
            for command in ("audit", "advise", "report", "what-if --timeouts 5s")
        ),
        (
            f"audit --out o --events {shlex.quote(f'file://{ROOT}/docs')} --master sc://127.0.0.1:1",
            "no Spark at sc:",
        ),
        ("live --out o --events . --for ever", "'ever' is not a duration"),
        ("live --out o --events . --window 0s", "'0s' is not a whole number of milliseconds"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2_and_leave_nothing(
    words: str, reason: str, pipeline: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, printed = pipeline(*shlex.split(words))
    assert (status, printed.count("\n"), list(tmp_path.iterdir())) == (2, 1, [])
    assert reason in printed


# ---- files whose rows cannot be judged


def put(column: str, kind: str, value: object) -> Callable[[Path], None]:
    """*value* into *column* of every row of *kind*; of any, where it is empty."""

    def changing(table: pa.Table) -> pa.Table:
        kinds, values = table["kind"].to_pylist(), table[column].to_pylist()
        values = [value if kind in ("", k) else old for old, k in zip(values, kinds, strict=True)]
        of = table.schema.field(column).type
        plain = pa.array(values, of.value_type if pa.types.is_dictionary(of) else of)
        new = plain.dictionary_encode() if pa.types.is_dictionary(of) else plain
        return table.set_column(table.schema.names.index(column), column, new)

    return rewritten(changing)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)


def a_year_ahead(table: pa.Table) -> pa.Table:
    """Its ends a year later, in rows that do not know the wall clock."""
    ends = pc.equal(table["kind"].cast(pa.string()), "reap")
    later = pc.add(table["t"], 365 * 24 * 3600 * S)
    for name, values in (("t", later), ("wall_offset_ns", pa.scalar(None, pa.int64()))):
        place = table.schema.get_field_index(name)
        table = table.set_column(
            place, table.schema.field(name), pc.if_else(ends, values, table[name])
        )
    return table


def no_text(path: Path) -> None:
    """A listener whose bytes are no text."""
    rewritten(put_bytes)(path)


def put_bytes(table: pa.Table) -> pa.Table:
    raw = pa.array([b"\xff\xfe"] * table.num_rows, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    return table.set_column(table.schema.get_field_index("listener"), "listener", text)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "zero-length": lambda path: path.write_bytes(b""),
    "truncated or not Parquet: ": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "truncated or not Parquet": lambda path: path.write_text("t,conn,kind\n"),
    "corrupted": flipped,
    "empty": rewritten(lambda table: table.slice(0, 0)),
    "wrong schema: column idle_ns is missing": rewritten(
        lambda table: table.drop_columns(["idle_ns"])
    ),
    "wrong schema: column t is double, expected int64": rewritten(
        lambda table: table.set_column(0, "t", table["t"].cast(pa.float64()))
    ),
    "future: its last row is 49 h ahead": put("wall_offset_ns", "", WALL + 49 * 3600 * S),
    "late: it ended": put("wall_offset_ns", "", 0),
    "future: its last row is 8,7": rewritten(a_year_ahead),
    "wrong schema: column t is there twice": rewritten(
        lambda table: table.append_column("t", table["t"])
    ),
    "wrong schema: columns t and T differ in case alone": rewritten(
        lambda table: table.append_column("T", table["t"])
    ),
    r"wrong schema: the name of column 't\x00' has a NUL": rewritten(
        lambda table: table.append_column("t\0", table["t"])
    ),
    "compressed with BROTLI, expected one of GZIP, LZ4": lambda path: pq.write_table(
        pq.read_table(path), path, compression="brotli"
    ),
    r"corrupted: listener '\udcff\udcfe' is no UTF-8": no_text,
    r"impossible row: listener 'a\x00b' has a NUL": put("listener", "", "a\0b"),
    "impossible row: activity without idle_ns": put("idle_ns", "activity", None),
    "impossible row: reap without n": put("n", "reap", None),
    "impossible row: reap without idle_sum_ns": put("idle_sum_ns", "reap", None),
    "impossible row: a stall without its length": put("idle_ns", "config", None),
    "impossible row: idle_ns is 9223372036854775807": put("idle_ns", "activity", 2**63 - 1),
    "impossible row: due_ns is -9223372036854775808": put("due_ns", "reap", -(2**63)),
    "impossible row: t is 9223372036854775807": put("t", "reap", 2**63 - 1),
    "impossible row: timeout_ms is -1": put("timeout_ms", "activity", -1),
    "impossible row: connection id -1 is negative": put("conn", "activity", -1),
    "impossible row: connection 8796093022207": put("conn", "activity", (1 << 43) - 1),
    "unknown kind 'nap'": put("kind", "activity", "nap"),
    "rows of another writer: its metadata says writer 0, it holds rows of writer 6": put(
        "conn", "reap", 6 << 43
    ),
    "rows of another run: its run begins with connection 100, it holds rows of 7": put(
        "conn", "reap", 7
    ),
    "wrong metadata: reaper.run is 'two words', expected hexadecimal digits": told(run="two words"),
    "schema version 99 is newer than 2": told(schema_version="99"),
    "wrong schema: metadata reaper.schema_version is 'many'": told(schema_version="many"),
    f"wrong metadata: reaper.tick_ns is {'9' * 20}": told(tick_ns="9" * 20),
    "wrong metadata: reaper.tick_ns is -1": told(tick_ns="-1"),
    f"wrong metadata: reaper.gap_threshold_ns is {1 << 61}": told(gap_threshold_ns=str(1 << 61)),
    "wrong metadata: reaper.writer is -5": told(writer="-5"),
    "wrong metadata: reaper.run and reaper.writer must": rewritten(
        lambda table: table.replace_schema_metadata({})
    ),
    f"wrong metadata: reaper.first_conn is {1 << 63}": told(first_conn=str(1 << 63)),
    "wrong metadata: reaper.mode is 'some'": told(mode="some"),
    "wrong metadata: reaper.anchors has an anchor": told(anchors="[[1, 2], [3]]"),
    "wrong schema: metadata reaper.anchors is no list": told(anchors="[1, NaN]"),
    "impossible row: wall_offset_ns is 9223372036854775807": put(
        "wall_offset_ns", "activity", 2**63 - 1
    ),
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_file_that_cannot_be_judged_is_put_aside_whole_and_a_good_one_stays(
    good: Path, tmp_path: Path, reason: str
) -> None:
    path = write_judged(tmp_path / "events" / "more")
    HOSTILE[reason](path)
    found = check([good], now_ns=WALL)
    assert [facts.path for facts in found.files] == [only(good)]
    ((where, why),) = (entry.values() for entry in found.quarantined)
    assert where == str(path)
    assert why.startswith(reason)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tick_ns": str(20 * S)}, "tick 20 s, mode full"),
        ({"mode": "gaps"}, "tick 1 s, mode gaps"),
        ({"gap_threshold_ns": str(9 * S)}, "gap threshold 9 s"),
    ],
)
def test_a_file_with_other_settings_than_its_run_is_put_aside(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    with journal(tmp_path, 5, rotate_bytes=1) as ours:
        for _ in range(3):
            ours.open(S, 5000, "echo").reap(7 * S, 6 * S)
            ours.flush()
    last = max(tmp_path.glob("*.parquet"))
    told(**changes)(last)
    found = check([tmp_path], now_ns=WALL)
    assert (len(found.files), found.runs[0].tick_ns, found.runs[0].full) == (2, S, True)
    ((where, why),) = (entry.values() for entry in found.quarantined)
    assert where == str(last)
    assert said in why


def test_a_row_that_tells_of_lost_rows_counts_where_the_footer_tells_of_none(
    tmp_path: Path,
) -> None:
    with journal(tmp_path, 5) as ours:
        ours.open(S, 5000, "echo").reap(7 * S, 6 * S)
        ours.config(8 * S, DROPPED)
    found = check([tmp_path], now_ns=WALL)
    assert (found.dropped_rows, found.runs[0].holed) == (1, True)


def test_what_is_named_twice_is_read_once(good: Path) -> None:
    found = check([good, only(good), good], now_ns=WALL)
    assert (len(found.files), found.quarantined) == (1, [])


def test_files_of_two_writers_are_no_copies_though_their_runs_have_one_name(
    tmp_path: Path,
) -> None:
    for writer in (5, 6):
        with journal(tmp_path / f"{writer}", writer) as ours:
            ours.open(S, 5000, "echo").reap(7 * S, 6 * S)
        told(run="ab")(only(tmp_path / f"{writer}"))
    found = check([tmp_path], now_ns=WALL)
    assert (len(found.runs), found.quarantined) == (2, [])


def ten_connections(directory: Path, sequence: int) -> None:
    """A run of writer 5 whose connections have the numbers from *sequence* on."""
    with journal(directory, 5, sequence=sequence) as ours:
        for _ in range(10):
            ours.open(S, 5000, "echo").reap(7 * S, 6 * S)


def test_a_writer_that_was_started_again_is_not_taken_for_two(tmp_path: Path) -> None:
    ten_connections(tmp_path / "a", 100)
    ten_connections(tmp_path / "b", 111)
    found = check([tmp_path / "a", tmp_path / "b"], now_ns=WALL)
    assert (len(found.files), len(found.runs), found.quarantined) == (2, 2, [])


def test_two_hosts_with_one_writer_id_are_named(tmp_path: Path) -> None:
    ten_connections(tmp_path / "a", 100)
    ten_connections(tmp_path / "b", 103)
    found = check([tmp_path / "a", tmp_path / "b"], now_ns=WALL)
    assert [facts.path for facts in found.files] == [only(tmp_path / "a")]
    (entry,) = found.quarantined
    assert entry["path"] == str(only(tmp_path / "b"))
    assert entry["reason"].startswith(f"writer id 5 is also that of {only(tmp_path / 'a')}")


# ---- what the check keeps of the rows


def test_the_check_keeps_what_a_writer_says_of_itself(tmp_path: Path) -> None:
    with journal(tmp_path, 3, sequence=100) as ours:
        ours.config(0, "tick=1s")
        ours.stall(4 * S, 2 * S)
        ours.stall(9 * S, S)
        ours.stall(9 * S, S)
        ours.open(S, 5000, "echo").timeout_ms = 4000
        ours.drain(61 * S)
    (facts,) = check([tmp_path], now_ns=WALL).files
    assert facts.stalls == [(4 * S, 2 * S), (9 * S, S)]
    still_open = 1
    assert (facts.drained, facts.own_rows) == (True, 6 + still_open)


def test_the_check_keeps_how_overdue_the_worst_silence_is(tmp_path: Path) -> None:
    with journal(tmp_path, 3, sequence=100) as ours:
        log = ours.open(S, 5000, "echo")
        log.averted(20 * S)  # a silence ends with it, and the next begins
        log.touch(7 * S)
        log.timeout_ms = 4000
        log.reap(12 * S, 11 * S)
        ours.open(S, 0, "echo").close_peer(60 * S)
        ours.open(S, 30_000, "echo").close_peer(30 * S)
    (facts,) = check([tmp_path], now_ns=WALL).files
    assert (facts.averted, facts.overdue_ns) == (1, 14 * S)


def test_a_reap_long_after_it_was_due_is_overdue_without_a_timeout(tmp_path: Path) -> None:
    with journal(tmp_path, 3) as ours:
        ours.open(S, 0, "echo").reap(12 * S, 5 * S)
    assert check([tmp_path], now_ns=WALL).files[0].overdue_ns == 7 * S


def test_a_drain_and_a_stall_belong_to_the_run_whose_numbers_they_bear(tmp_path: Path) -> None:
    with journal(tmp_path, 3, sequence=100) as ours:
        ours.stall(4 * S, 2 * S)
        ours.drain(5 * S)
    with journal(tmp_path, 3, sequence=200) as ours:
        ours.stall(40 * S, 2 * S)
        ours.stall(41 * S, 2 * S)
    found = check([tmp_path], now_ns=WALL)
    assert [run.drained for run in found.runs] == [True, False]
    assert Timeline.UNRELATED.stalls(found.runs) == {0: [(2 * S, 4 * S)], 1: [(38 * S, 41 * S)]}
    assert found.own_rows == 4


def test_a_pyspark_that_is_too_old_is_refused_before_anything_starts(tmp_path: Path) -> None:
    old = tmp_path / "old" / "pyspark"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text('__version__ = "3.5.7"')
    (tmp_path / "journal").mkdir()
    given = (
        "audit",
        "--engine",
        "spark",
        "--events",
        tmp_path / "journal",
        "--out",
        tmp_path / "o",
    )
    env = {**os.environ, "PYTHONPATH": str(old.parent)}
    ran = subprocess.run(
        [sys.executable, "-m", "reaper.pipeline", *map(str, given)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, (tmp_path / "o").exists()) == (2, False)
    assert ran.stderr.splitlines()[-1] == (
        "python -m reaper.pipeline audit: PySpark 3.5.7 is too old: the pipeline works with Spark "
        "4.0 and newer (pip install 'idle-reaper[spark]'), or without it (--engine embedded)"
    )
    assert "Traceback" not in ran.stderr


def test_the_pyspark_that_is_installed_is_new_enough() -> None:
    check_version()
