"""The journal: what is appended is found in the files, whatever happens in between."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from reaper import IdleReaper, InvalidArgument
from reaper.journal import Journal, peer_key
from reaper.journal.files import recover
from reaper.journal.leases import LeaseLog
from reaper.journal.schema import COLUMNS, SEQUENCE_BITS, STILL_OPEN, connection_id

S = 1_000_000_000
ROOT = Path(__file__).parent.parent.parent


def make(directory: Path, **options: Any) -> Journal:
    return Journal(directory, **{"writer": 7, "background": False, **options})


def rows(directory: Path) -> list[dict[str, Any]]:
    """Every row of every Parquet file in *directory*, in order of files, by column
    name. Without those that tell of an open connection once more.
    """
    return [row for row in every_row(directory) if row["reason"] != STILL_OPEN]


def every_row(directory: Path) -> list[dict[str, Any]]:
    return [
        row
        for path in sorted(directory.glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def metadata(path: Path) -> dict[str, str]:
    return {
        key.decode(): value.decode() for key, value in (pq.read_schema(path).metadata or {}).items()
    }


def test_a_closed_journal_is_parquet_with_checksums_and_nothing_hidden(tmp_path: Path) -> None:
    with make(tmp_path, mode="full", tick=0.5) as journal:
        log = journal.open(1 * S, 5000, "echo", peer=42)
        log.touch(2 * S, 10)
        log.touch(4 * S)
        log.reap(10 * S, 9 * S, "idle")
    assert journal.close() == journal.close()  # once more writes nothing
    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"]
    found = rows(tmp_path)
    assert [row["kind"] for row in found] == ["open", "activity", "activity", "reap"]
    assert [row["idle_ns"] for row in found] == [None, 1 * S, 2 * S, 6 * S]
    assert {row["conn"] for row in found} == {log.conn}
    assert (found[0]["peer"], found[1]["nbytes"], found[1]["listener"]) == (42, 10, "echo")
    end = found[-1]
    assert (end["due_ns"], end["n"], end["idle_sum_ns"], end["timeout_ms"]) == (
        9 * S,
        2,
        3 * S,
        5000,
    )
    (path,) = tmp_path.iterdir()
    assert pq.read_schema(path).names == [column.name for column in COLUMNS]
    said = metadata(path)
    assert (said["reaper.tick_ns"], said["reaper.server"]) == (str(S // 2), socket.gethostname())
    corrupt = bytearray(path.read_bytes())
    corrupt[40] ^= 0xFF  # within the first data page
    path.write_bytes(corrupt)
    with pytest.raises(OSError, match=r"(?i)checksum|crc|corrupt"):
        pq.read_table(path, page_checksum_verification=True)


def test_gaps_mode_writes_only_silences_beyond_the_threshold_and_counts_the_others(
    tmp_path: Path,
) -> None:
    with make(tmp_path, gap_threshold=1.0) as journal:
        log = journal.open(0, 60_000)
        for t in (S, S + 1, 3 * S, 3 * S + 5):  # gaps of exactly 1 s, 1 ns, nearly 2 s, 5 ns
            log.touch(t)
        log.close_app(4 * S)
    found = rows(tmp_path)
    assert [(row["kind"], row["idle_ns"]) for row in found[1:-1]] == [("activity", 2 * S - 1)]
    end = found[-1]
    assert (end["n"], end["idle_sum_ns"]) == (4, 2 * S - 1)
    assert end["t"] - end["idle_ns"] - end["idle_sum_ns"] == S + 6  # the sum of the short ones


@pytest.mark.parametrize(("mode", "changes"), [("full", [0, 60_000, 5000]), ("gaps", [])])
def test_a_change_of_the_timeout_has_a_row_in_full_mode_and_none_in_gaps_mode(
    tmp_path: Path, mode: str, changes: list[int]
) -> None:
    with make(tmp_path, mode=mode) as journal:
        log = journal.open(0, 5000, "echo")
        log.touch(2 * S)
        for timeout in (0, 0, 60_000):
            log.timeout_ms = timeout
        log.touch(4 * S)
        log.timeout_ms = None  # a deadline: no timeout that a reader could judge by
        log.timeout_ms = 5000
        log.reap(9 * S, 9 * S)
        log.timeout_ms = 7000  # it has ended
    found = [row for row in rows(tmp_path) if row["kind"] == "config"]
    assert [(row["reason"], row["timeout_ms"], row["conn"]) for row in found] == [
        ("retime", timeout, log.conn) for timeout in changes
    ]
    order = [
        row["t"] // 1000 for row in rows(tmp_path)
    ]  # each change is some ns after what came before it
    assert order == sorted(order)
    assert [row["timeout_ms"] for row in rows(tmp_path) if row["kind"] == "activity"] == [
        5000,
        60_000,
    ]


# ---- what is open when a file is finished


def told(directory: Path) -> list[tuple[Any, ...]]:
    """What the files tell of open connections: (t, conn, idle, timeout, due, n,
    idle_sum).
    """
    names = ("t", "conn", "idle_ns", "timeout_ms", "due_ns", "n", "idle_sum_ns")
    return sorted(
        tuple(row[name] for name in names)
        for row in every_row(directory)
        if row["reason"] == STILL_OPEN
    )


@pytest.mark.parametrize("mode", ["gaps", "full"])
def test_a_file_ends_with_a_row_per_open_connection(tmp_path: Path, mode: str) -> None:
    with make(tmp_path, mode=mode, rotate_bytes=1) as journal:
        first, second = journal.open(0, 30_000, "echo"), journal.open(0, 5000)
        first.touch(2 * S)
        assert journal.flush()
        second.close_peer(3 * S)
        journal.awake(60 * S)
    rotated, last = (2 * S, first.conn, 0), (60 * S, first.conn, 58 * S)
    assert [row[:3] for row in told(tmp_path)] == [rotated, (2 * S, second.conn, 2 * S), last]
    assert [row[3:] for row in told(tmp_path)][::2] == [(30_000, 32 * S, 1, 2 * S)] * 2
    assert journal.close().rows == len(rows(tmp_path)) == 4
    (listener,) = {row["listener"] for row in every_row(tmp_path) if row["conn"] == first.conn}
    assert listener == "echo"


def test_a_loop_that_stands_still_leaves_no_connection_silent_for_longer(tmp_path: Path) -> None:
    with make(tmp_path, clock_ns=lambda: 999 * S) as journal:
        silent = journal.open(0, 5000)
        journal.open(4 * S, 5000).close_peer(6 * S)  # here the loop was seen for the last time
    assert [row[:3] for row in told(tmp_path)] == [(6 * S, silent.conn, 6 * S)]


def test_files_finished_in_a_hurry_tell_of_open_connections_no_more_than_of_others(
    tmp_path: Path,
) -> None:
    with make(tmp_path, rotate_bytes=1) as journal:
        logs = [journal.open(0, 5000) for _ in range(10)]
        assert journal.flush()
        for t in range(1, 10):
            logs[0].touch(2 * t * S)
            assert journal.flush()
        assert len(told(tmp_path)) == 10
        logs[0].touch(20 * S)
        assert journal.flush()
        assert len(told(tmp_path)) == 20
    assert len(told(tmp_path)) == 30


def test_what_is_told_of_an_open_connection_is_behind_no_row_that_waits(tmp_path: Path) -> None:
    journal = make(tmp_path)
    log = journal.open(0, 5000)
    journal.flush()
    late: list[Any] = []

    def look(known: Any) -> None:
        late.append(journal.open(S, 5000))  # the loop goes on meanwhile

    journal.witness(look)
    journal.close()
    assert [row[1] for row in told(tmp_path)] == [log.conn]


@pytest.mark.parametrize("mode", ["gaps", "full"])
def test_an_open_lease_is_told_of_by_what_it_knows_itself(tmp_path: Path, mode: str) -> None:
    core = IdleReaper(tick=1.0)
    with make(tmp_path, mode=mode) as journal:
        keeper = LeaseLog(core, journal)
        leases = [core.register(uid, timeout=30.0, now=0.0) for uid in "abc"]
        for lease in leases:
            keeper.opened(lease, 0.0)
        for second in range(1, 21):
            core.advance(float(second))
            if second <= 7:
                leases[0].touch()
        leases[1].suspend()
        keeper.ended(leases[2], 20.0, by_peer=True)
        keeper.stalled(20.0, 0.0)
    found = {row[1]: (row[0], row[2] // S, row[3]) for row in told(tmp_path)}
    active, suspended = (lease.log.conn for lease in leases[:2])  # type: ignore[attr-defined]
    assert found == {active: (20 * S, 13, 30_000), suspended: (20 * S, 20, 0)}


@pytest.mark.parametrize("mode", ["gaps", "full"])
def test_a_silent_connection_with_another_timeout_is_due_no_earlier_than_that_came(
    tmp_path: Path, mode: str
) -> None:
    core = IdleReaper(tick=1.0)
    with make(tmp_path, mode=mode) as journal:
        keeper = LeaseLog(core, journal)
        lease = core.register("a", timeout=3600.0, now=0.0)
        keeper.opened(lease, 0.0)
        for second in range(1, 301):
            core.advance(float(second))
        lease.retime(1.0, now=300.25)
        (expiry,) = core.advance(301.0)
        keeper.reaped(lease, expiry)
    opened, change, reap = every_row(tmp_path)
    assert (change["reason"], change["t"], change["idle_ns"]) == ("retime", 300.25 * S, 300.25 * S)
    assert (change["timeout_ms"], change["due_ns"]) == (1000, opened["t"] + 3600 * S)
    assert (reap["timeout_ms"], reap["due_ns"], reap["idle_ns"]) == (1000, 300.25 * S, 301 * S)


def test_a_change_among_short_silences_has_no_row_in_gaps_mode(tmp_path: Path) -> None:
    with make(tmp_path) as journal:
        log = journal.open(0, 5000)
        log.touch(S)
        log.retime(S + 5, 10_000)
        log.retime(S + 6, 10_000)
        log.close_app(2 * S)
    assert [(row["kind"], row["timeout_ms"]) for row in every_row(tmp_path)] == [
        ("open", 5000),
        ("close_app", 10_000),
    ]


def test_off_writes_nothing_and_starts_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "none", mode="off") as journal:
        log = journal.open(0, 5000)
        log.touch(10 * S)
        log.reap(20 * S, 19 * S)
        assert journal.flush()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "some"),
        ("gap_threshold", float("nan")),
        ("tick", 0.0),
        ("flush", -1.0),
        ("rotate_bytes", 0),
        ("rotate_seconds", float("inf")),
        ("retain_bytes", 0),
        ("writer", 1 << 20),
        ("sequence", 0),
        ("queue_rows", True),
        ("clock_ns", lambda: 1.5),
        ("clock_ns", lambda: len),
    ],
)
def test_a_bad_argument_is_refused_by_name_and_value(
    tmp_path: Path, option: str, value: Any
) -> None:
    shown = value() if callable(value) else value
    with pytest.raises(InvalidArgument, match=rf"{option}.*{shown!r}"):
        make(tmp_path / "none", **{option: value})
    assert not (tmp_path / "none").exists()


def test_connection_ids_carry_their_writer() -> None:
    assert connection_id(2**20 - 1, 2**43 - 1) == 2**63 - 1


def test_no_connection_id_is_given_twice_by_servers_that_share_a_writer_id(
    tmp_path: Path,
) -> None:
    """Started in one millisecond, or after the wall clock has stepped back, in one
    directory.
    """
    ids: set[int] = set()
    for wall in (1_700_000_000 * S, 1_700_000_000 * S, 1_699_999_999 * S, 1_700_000_001 * S):
        with make(tmp_path, writer=7, wall_ns=lambda wall=wall: wall) as journal:
            own = [journal.open(t, 1).conn for t in range(6000)]
        assert {conn >> SEQUENCE_BITS for conn in own} == {7}
        assert own[-1] == own[0] + 5999
        ids.update(own)
    assert len(ids) == 24_000
    first = [int(metadata(path)["reaper.first_conn"]) for path in tmp_path.glob("*.parquet")]
    assert len(set(first)) == 4
    assert ids.isdisjoint(first)


def test_both_sides_of_a_connection_compute_the_same_peer_key() -> None:
    key = peer_key(("127.0.0.1", 40000), ("127.0.0.1", 80))
    assert key == peer_key(("::ffff:127.0.0.1", 40000, 0, 0), ("::ffff:127.0.0.1", 80, 0, 0))
    assert key != peer_key(("127.0.0.1", 80), ("127.0.0.1", 40000))
    assert key != peer_key(("127.0.0.1", 40000), ("127.0.0.2", 80))
    assert 0 <= key < 2**63
    assert peer_key(("fe80::1%eth0", 5), ("::1", 1)) == peer_key(("fe80::1%3", 5), ("::1", 1))
    with pytest.raises(InvalidArgument, match="localhost"):
        peer_key(("localhost", 1), ("127.0.0.1", 2))


def test_a_stream_becomes_parquet_when_it_is_big_enough(tmp_path: Path) -> None:
    journal = Journal(tmp_path, rotate_bytes=20_000, flush=0.001)
    for serial in range(5):
        for _ in range(1000):
            journal.open(serial, 1)
        assert journal.flush()
    assert journal.close().rows == 5000
    assert len(list(tmp_path.glob("*.parquet"))) > 1
    assert len(rows(tmp_path)) == 5000


def test_the_oldest_files_go_when_all_are_too_big_and_the_newest_stays(tmp_path: Path) -> None:
    for serial in range(4):
        journal = make(tmp_path, retain_bytes=1, server="web-1")
        for _ in range(100):
            journal.open(serial, 1)
        statistics = journal.close()
    assert statistics.deleted == 1
    assert {row["t"] for row in rows(tmp_path)} == {3}
    assert {metadata(path)["reaper.server"] for path in tmp_path.iterdir()} == {"web-1"}


# ---- crashes


def left(directory: Path, content: bytes | bytearray, serial: int = 1) -> Path:
    """A stream of *content* that a crash left in *directory*."""
    path = directory / f".reaper-1-w0000007-ab-{serial:06d}.arrows"
    path.write_bytes(content)
    return path


def test_a_stream_cut_anywhere_gives_back_every_whole_batch(tmp_path: Path) -> None:
    whole, counts = a_stream(), []
    for cut in [*range(0, len(whole), 97), len(whole)]:
        directory = tmp_path / f"cut{cut}"
        directory.mkdir()
        left(directory, whole[:cut])
        recover(directory)
        assert not list(directory.glob(".*"))
        counts.append(len(rows(directory)))
    assert counts == sorted(counts)
    assert set(counts) == {0, 10, 20, 30}


def flushed(directory: Path) -> Journal:
    """A journal with one row, flushed and not closed."""
    journal = make(directory)
    journal.open(0, 1)
    journal.flush()
    return journal


def test_a_stream_that_a_living_process_holds_is_not_recovered(tmp_path: Path) -> None:
    journal = flushed(tmp_path)
    code = (
        "import sys, pathlib; from reaper.journal.files import recover; "
        "print(recover(pathlib.Path(sys.argv[1])))"
    )
    assert python(code, tmp_path).stdout == "[]\n"
    journal.close()


def test_a_stream_that_is_parquet_already_is_deleted(tmp_path: Path) -> None:
    journal = flushed(tmp_path)
    (stream,) = tmp_path.glob(".*.arrows")
    content = stream.read_bytes()
    assert journal.close().rows == len(rows(tmp_path)) == 1
    stream.write_bytes(content)  # as a crash between rename and deletion leaves it
    make(tmp_path).close()
    assert len(rows(tmp_path)) == 1
    assert not list(tmp_path.glob(".*"))


KILLED = """
import os, signal, sys
from reaper.journal import Journal
journal = Journal(sys.argv[1], mode="full", flush=0.001)
log = journal.open(0, 1000, "echo")
for t in range(1, 100_001):
    log.touch(t)
    if t == 90_000:
        journal.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_kill_9_amid_100_000_events_loses_at_most_what_was_not_flushed(tmp_path: Path) -> None:
    assert python(KILLED, tmp_path).returncode == -signal.SIGKILL
    assert not rows(tmp_path)
    statistics = make(tmp_path).close()
    assert (statistics.recovered, statistics.errors) == (1, 0)
    times = [row["t"] for row in rows(tmp_path)]
    assert times == list(range(len(times)))  # no hole, no double: all that is missing is a tail
    assert len(times) > 90_000
    (path,) = tmp_path.glob("*.parquet")
    assert metadata(path)["reaper.recovered"] == "1"


# ---- a file system that fails, a writer that dies


FULL_DISK = """
import resource, signal, sys
from reaper.journal import Journal

def most(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most(200_000)
journal = Journal(sys.argv[1], flush=0.01)
for t in range(50):
    for _ in range(1000):
        journal.open(t, 1)
    journal.flush()
full = journal.statistics()
assert full.alive and full.dropped > 0 and full.errors > 0, full
assert full.rows + full.dropped == 50_000, full
assert "File too large" in full.last_error, full
most(0)
stays_full = Journal(sys.argv[2], background=False)
for t in range(5):
    stays_full.open(t, 1)
assert stays_full.close().dropped == 5
most(resource.RLIM_INFINITY)
journal.open(99, 1)
assert journal.flush()
print(journal.close().rows)
"""


@pytest.mark.slow
def test_a_full_disk_costs_rows_that_are_counted(
    tmp_path: Path,
) -> None:
    directory, full = tmp_path / "journal", tmp_path / "full"
    done = python(FULL_DISK, directory, full)
    assert done.returncode == 0, done.stderr
    assert "rows are dropped and counted" in done.stderr  # and it says so
    found = rows(directory)
    assert len(found) == int(done.stdout)
    assert found[-1]["t"] == 99
    assert not list(directory.glob(".*"))


def test_where_the_disk_stays_full_the_name_of_an_empty_file_says_what_was_lost(
    tmp_path: Path,
) -> None:
    directory, full = tmp_path / "journal", tmp_path / "full"
    done = python(FULL_DISK, directory, full)
    assert done.returncode == 0, done.stderr
    marks = [
        (path.name.rpartition("-lost-")[2], path.stat().st_size) for path in full.glob("*.parquet")
    ]
    assert marks == [("5.parquet", 0)]


def test_a_dead_writer_costs_rows_that_are_counted_and_stops_nothing(tmp_path: Path) -> None:
    journal = make(tmp_path, queue_rows=10)  # no thread at all is the deadest
    for t in range(25):
        journal.open(t, 1)
    statistics = journal.statistics()
    assert (statistics.pending, statistics.dropped, statistics.alive) == (10, 15, False)
    assert journal.close().rows == 10


@pytest.mark.parametrize(
    ("fails", "lost"),
    [("writer.Writer._batch", 1), ("files.pq.write_table", 0)],
    ids=["writing", "making Parquet"],
)
def test_an_unforeseen_error_is_logged_and_costs_only_what_was_in_hand(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails: str,
    lost: int,
) -> None:
    journal = make(tmp_path, rotate_bytes=1)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(f"reaper.journal.{fails}", fail)
        journal.open(0, 1)
        assert journal.flush() is not bool(lost)
        assert rows(tmp_path) == []
    assert "MemoryError: none left" in caplog.text
    journal.open(1, 1)
    assert journal.flush()
    statistics = journal.close()
    assert (statistics.dropped, statistics.recovered, statistics.errors) == (lost, 1 - lost, 1)
    assert sorted(row["t"] for row in rows(tmp_path)) == [0, 1][lost:]


@pytest.mark.parametrize("renamed", [True, False])
def test_a_directory_that_goes_is_made_again_and_what_went_with_it_counts_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, renamed: bool
) -> None:
    directory, elsewhere = tmp_path / "deep" / "journal", tmp_path / "elsewhere"
    journal = make(directory)
    for t in range(5):
        journal.open(t, 1)
    assert journal.flush()
    directory.rename(elsewhere)
    if not renamed:
        shutil.rmtree(elsewhere)
    for t in range(5, 8):
        journal.open(t, 1)
    assert not journal.flush()  # it says that something was lost
    statistics = journal.close()
    assert (statistics.rows, statistics.dropped) == (3, 5)
    assert "5 rows were lost" in caplog.text
    assert [row["t"] for row in rows(directory)] == [5, 6, 7]
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]
    if renamed:
        recover(elsewhere)
        assert [row["t"] for row in rows(elsewhere)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [2**40, "many", -(2**31) - 1, object()])
def test_a_bad_row_costs_itself_and_not_its_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: Any
) -> None:
    journal = make(tmp_path, mode="full")
    log = journal.open(0, 1)
    for t in range(1, 101):
        log.touch(t, bad if t in {17, 60, 61} else t)
    assert not journal.flush()  # it says that something was lost
    log.touch(101, 1)
    assert journal.flush()
    statistics = journal.close()
    assert (statistics.rows, statistics.dropped, statistics.errors) == (99, 3, 1)
    assert [row["t"] for row in rows(tmp_path)] == [t for t in range(102) if t not in {17, 60, 61}]
    assert "3 rows could not be written" in caplog.text
    assert "3 rows were lost" in caplog.text


def test_rows_lost_after_the_last_stream_have_a_file_of_their_own(tmp_path: Path) -> None:
    journal = make(tmp_path, rotate_bytes=1, gap_threshold=1e-9)
    log = journal.open(0, 1)
    log.close_app(5)  # what is open would have a row in the last file, too
    assert journal.flush()
    for t in (10, 20, 30):
        log.touch(t, 2**40)
    assert journal.close().dropped == 3
    first, last = sorted(tmp_path.glob("*.parquet"))
    assert (metadata(first)["reaper.dropped"], metadata(last)["reaper.dropped"]) == ("0", "3")
    (row,) = pq.read_table(last).to_pylist()
    assert (row["kind"], row["reason"], row["n"]) == ("config", "dropped", 3)
    assert row["conn"] == int(metadata(last)["reaper.first_conn"])


@pytest.mark.parametrize("before", [0, 3])
def test_rows_lost_before_and_during_a_stream_stand_in_its_file_also_after_a_kill(
    tmp_path: Path, before: int
) -> None:
    journal = make(tmp_path / "alive", queue_rows=2)
    for opens in (2 + before, 5 - before):
        for t in range(opens):
            journal.open(t, 1)
        journal.flush()
    shutil.copytree(tmp_path / "alive", tmp_path / "killed")
    recover(tmp_path / "killed")
    journal.close()
    for path in tmp_path.glob("*/*.parquet"):
        assert (metadata(path)["reaper.dropped_before"], metadata(path)["reaper.dropped"]) == (
            str(before),
            "3",
        )


def test_a_writer_without_rows_says_now_and_then_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = make(tmp_path)
    writer: Any = journal._writer
    writer._speak_up()
    assert journal.statistics().rows == 0
    monkeypatch.setattr("reaper.journal.writer.ALIVE_SECONDS", 0.0)
    writer._speak_up()
    monkeypatch.undo()
    writer._speak_up()
    journal.close()
    assert [(row["kind"], row["reason"], row["timeout_ms"]) for row in rows(tmp_path)] == [
        ("config", "alive", None)
    ]


def test_a_stream_taken_for_an_orphan_before_it_was_locked_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    quick: list[Path] = [tmp_path]

    def recovered_first(*arguments: Any) -> None:
        if quick:
            recover(quick.pop())
        lock(*arguments)

    monkeypatch.setattr("reaper.journal.files.fcntl.flock", recovered_first)
    with make(tmp_path) as journal:
        journal.open(0, 1)
        assert journal.flush()
        assert len(list(tmp_path.glob(".*.arrows"))) == 1  # what was flushed would survive a kill
        assert recover(tmp_path) == []  # it is locked now
    assert [row["t"] for row in rows(tmp_path)] == [0]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_stream_gives_back_whole_batches_or_nothing_and_never_an_error(
    data: st.DataObject,
) -> None:
    whole = a_stream()
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)), "cut")])
    for _ in range(data.draw(st.integers(0, 3), "flips") if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1), "at")] ^= 1 << data.draw(
            st.integers(0, 7), "bit"
        )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        left(directory, damaged)
        good = left(directory, whole, 2)
        with contextlib.suppress(
            ExceptionGroup
        ):  # of file and Arrow errors alone; any other comes out as it is
            recover(directory)
        assert not good.exists()  # it had no part in it
        for path in directory.glob("*.parquet"):
            assert pq.read_table(path).num_rows % 10 == 0


def test_a_damaged_length_is_the_end_of_what_can_be_read_and_no_allocation(tmp_path: Path) -> None:
    damaged = bytearray(a_stream()[:2208])
    damaged[2077] ^= 1  # the message after the schema now says that a terabyte follows
    stream = left(tmp_path, damaged)
    assert recover(tmp_path) == []
    assert not stream.exists()  # not one row could be read


def test_a_stream_whose_columns_have_damaged_names_stays_and_stops_no_other(tmp_path: Path) -> None:
    whole = a_stream()
    damaged, good = (
        left(tmp_path, whole.replace(b"listener", b"\xf2istener")),
        left(tmp_path, whole, 2),
    )
    with pytest.raises(ExceptionGroup, match=r"1 streams .* could not be recovered"):
        recover(tmp_path)
    assert damaged.exists()
    assert not good.exists()
    (path,) = tmp_path.glob("*.parquet")
    assert pq.read_table(path).num_rows == 30


def test_a_batch_whose_anchor_is_damaged_ends_what_is_recovered(tmp_path: Path) -> None:
    whole = a_stream()
    first, second, _ = (found.start() for found in re.finditer(rb"\[\d+, \d+, \d+\]", whole))
    assert first < second
    left(tmp_path, whole[:second] + b"x" + whole[second + 1 :])
    (path,) = recover(tmp_path)
    assert (pq.read_table(path).num_rows, metadata(path)["reaper.cut"]) == (10, "1")


@functools.cache
def a_stream() -> bytes:
    """Three batches of ten rows."""
    with tempfile.TemporaryDirectory() as name:
        journal = make(Path(name))
        for batch in range(3):
            for t in range(10):
                journal.open(batch * 10 + t, 5000, "echo" if t % 2 else None)
            assert journal.flush()
        (path,) = Path(name).iterdir()
        stream = path.read_bytes()
        journal.close()
        return stream


# ---- leases that log


@contextlib.contextmanager
def keeping(directory: Path, **options: Any) -> Iterator[tuple[IdleReaper, LeaseLog]]:
    """A core whose leases are logged to *directory*."""
    core = IdleReaper(tick=1.0)
    with make(directory, **{"gap_threshold": 2.0, **options}) as journal:
        yield core, LeaseLog(core, journal)


@pytest.mark.parametrize(
    ("mode", "active", "uncounted"),
    [("gaps", [10], 4), ("full", [1, 2, 3, 10, 11], 0)],  # 0-1-2-3, then 10-11
)
def test_a_lease_logs_silences_beyond_the_threshold_or_every_epoch_with_activity(
    tmp_path: Path, mode: str, active: list[int], uncounted: int
) -> None:
    with keeping(tmp_path, mode=mode) as (core, keeper):
        lease, unlogged = core.register("a", 30.0, 0.0), core.register("b", 30.0, 0.0)
        keeper.opened(lease, 0.0, "echo", peer=9)
        for second in range(1, 21):
            core.advance(float(second))
            for each in (lease, unlogged) if second in {1, 2, 3, 10, 11} else ():
                each.touch()
        assert unlogged.active_from == lease.active_from == 11.0
        keeper.ended(lease, 20.0, "eof", by_peer=True)
        lease.release()
        keeper.ended(lease, 21.0, by_peer=False)  # it has ended already: nothing is written
    found = rows(tmp_path)
    assert [(row["kind"], row["t"]) for row in found[1:-1]] == [
        ("activity", second * S) for second in active
    ]
    assert {row["timeout_ms"] for row in found} == {30_000}
    end = found[-1]
    assert (end["kind"], end["reason"], end["idle_ns"]) == ("close_peer", "eof", 9 * S)
    # Of five activities, whether or not each has a row.
    assert (end["n"], end["t"] - end["idle_ns"] - end["idle_sum_ns"]) == (5, uncounted * S)


def lived(place: Path, seed: int, mode: str) -> tuple[dict[int, list[dict[str, Any]]], Any]:
    """The rows of each connection of leases to which all sorts of things happen; and
    which timeouts are in force on those that are still open.
    """
    chance, now = random.Random(seed), 0.0
    with keeping(place, mode=mode) as (core, keeper):
        leases: list[Any] = []

        def spare(due: Sequence[Any]) -> dict[Any, Any]:
            spared = {
                lease: chance.choice([now, now - 0.3]) for lease in due if chance.random() < 0.5
            }
            for lease in spared:
                keeper.averted(lease, now)
            return spared

        for number in range(600):
            now += chance.choice([0.0, 0.1, 0.4, 1.1])
            core.close_epoch(now)
            for expiry in core.expire(now, spare=spare):
                keeper.reaped(expiry.lease, expiry)
            leases = [lease for lease in leases if lease.alive]
            if len(leases) < 10:
                leases.append(core.register(number, chance.choice([2.0, 5.0]), now))
                keeper.opened(leases[-1], now)
            lease = chance.choice(leases)
            match chance.randrange(8):
                case 0:
                    lease.suspend()
                case 1:
                    lease.resume(now)
                case 2:
                    lease.retime(
                        chance.choice([None, 2.0, 5.0, 2e6]), now
                    )  # 23 days are a timeout like any other
                case 3 if number < 550:
                    keeper.ended(lease, now, by_peer=True)
                    lease.release()
                    leases.remove(lease)
                case 4:
                    new = core.register(("moved", number), chance.choice([2.0, 5.0]), now)
                    keeper.moved(lease, new)
                    lease.release()
                    leases[leases.index(lease)] = new
                case _:
                    lease.touch()
        in_force = {
            lease.log.conn: 0 if lease.suspended else round((lease.timeout or 0) * 1000)
            for lease in leases
        }
    connections: dict[int, list[dict[str, Any]]] = {}
    for row in rows(place):
        connections.setdefault(row["conn"], []).append(row)
    assert len(connections) > 20
    return connections, in_force


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_leases_a_full_log_adds_up(tmp_path: Path, seed: int) -> None:
    connections, in_force = lived(tmp_path, seed, "full")
    for conn, mine in connections.items():
        active = [row for row in mine if row["kind"] == "activity"]
        end = mine[-1]
        if end["n"] is None:
            assert max(mine, key=lambda row: (row["t"], row["kind"] == "config"))[
                "timeout_ms"
            ] == in_force.pop(conn)
            continue
        if end["kind"] == "reap":
            assert mine[-2]["timeout_ms"] != 0  # what has ended is no change of a timeout
        assert end["n"] == len(active)
        assert end["idle_sum_ns"] == sum(row["idle_ns"] for row in active)
        assert end["t"] - end["idle_ns"] - end["idle_sum_ns"] == mine[0]["t"]
    assert in_force == {}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_leases_their_count_bounds_the_time_without_a_row(
    tmp_path: Path, seed: int
) -> None:
    connections, _ = lived(tmp_path, seed, "gaps")
    unwritten = 0
    for mine in connections.values():
        if (end := mine[-1])["n"] is None:
            continue
        active = [row for row in mine if row["kind"] == "activity"]
        spared = sum(row["idle_ns"] for row in mine if row["kind"] == "averted")
        silent = end["t"] - end["idle_ns"] - end["idle_sum_ns"] - mine[0]["t"]
        # Up to the threshold each, and a tick: a lease knows the epoch alone.
        most = (end["n"] - len(active) + 1) * 3 * S
        assert silent - spared <= most
        unwritten += silent > 3 * S
    assert unwritten > 10


@pytest.mark.parametrize("moved", [False, True])
def test_a_lease_that_was_spared_and_stayed_due_is_reaped_as_due_from_there(
    tmp_path: Path, moved: bool
) -> None:
    with keeping(tmp_path) as (core, keeper):
        lease = core.register("a", 5.0, 0.0)
        keeper.opened(lease, 0.0)
        core.close_epoch(1.0)
        core.expire(6.0, spare=lambda due: dict.fromkeys(due, False))
        keeper.averted(lease, 6.25, active=False)
        if moved:  # it was a request after all: from here on it is as any other
            lease.touch()
        core.close_epoch(7.0)
        (expiry,) = core.expire(12.0 if moved else 7.0)
        keeper.reaped(lease, expiry)
    end = rows(tmp_path)[-1]
    assert (end["timeout_ms"], end["due_ns"]) == ((5000, 12 * S) if moved else (None, 6.25 * S))


def test_a_keeper_logs_reaps_deadlines_averted_leases_and_stalls(tmp_path: Path) -> None:
    with keeping(tmp_path) as (core, keeper):
        reaped, deadlined = core.register("a", 5.0, 0.0), core.register("b", 30.0, 0.0)
        keeper.opened(reaped, 0.0)
        keeper.opened(deadlined, 0.0)
        limit = core.register("limit", 10.0, 0.0, reason="headers")
        core.close_epoch(1.0)
        keeper.averted(reaped, 3.0)
        for expiry in [*core.advance(6.5), *core.advance(11.5)]:
            keeper.reaped(deadlined if expiry.lease is limit else reaped, expiry)
        deadlined.suspend()
        keeper.stalled(12.0, 0.001)
        keeper.stalled(13.0, 0.5)
    found = [row for row in rows(tmp_path) if row["kind"] != "open"]
    shown = [
        (row["kind"], row["t"], row["timeout_ms"], row["due_ns"], row["reason"]) for row in found
    ]
    assert shown == [
        ("averted", 3 * S, 5000, None, None),
        ("reap", 6.5 * S, 5000, 6 * S, "idle"),
        ("config", 1, 30_000, None, "retime"),  # what was in force: the reap says nothing
        ("reap", 11.5 * S, None, 11 * S, "headers"),
        ("config", 13 * S, None, None, "stall"),
    ]
    assert found[1]["idle_ns"] == 6.5 * S
