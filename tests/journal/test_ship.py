"""Shipping a journal: every file arrives once and whole, whatever stops it, and is
deleted only after that.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.conftest import Ran

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given
from hypothesis import strategies as st

from reaper.__main__ import main
from reaper.config.running import alone
from reaper.journal import Journal
from reaper.journal.layout import ANY, HOUR_NS, may_hold, partition
from reaper.journal.places import Place
from reaper.journal.ship import LOCK, Shipper, partition_of
from tests.helpers.pipeline_traffic import Clock, S, journal

ROOT = Path(__file__).parent.parent.parent
Ship = Callable[..., tuple[int, str, str]]
"""Ships a journal: the exit status, what went to stdout, what went to stderr."""

HOUR = "day=2026-09-21/hour=14"
"""Of `WALL`, 2026-09-21 14:13:20 UTC."""


def write(directory: Path, *starts: int, apart: int = 1) -> list[str]:
    """Write a file per start (s after `WALL`), of five rows *apart* seconds apart.
    Their names.
    """
    before = {path.name for path in directory.glob("*.parquet")}
    for writer, start in enumerate(starts, 1):
        with journal(directory, writer, Clock(start * S)) as ours:
            for row in range(5):
                ours.open((start + row * apart) * S, 5000, "echo")
    return sorted({path.name for path in directory.glob("*.parquet")} - before)


def there(to: Path) -> dict[str, str]:
    """Path below *to* -> digest of every file, hidden ones too."""
    files = (path for path in to.rglob("*") if path.is_file())
    return {
        str(path.relative_to(to)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of a journal."""
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    """Where it is shipped to."""
    return tmp_path / "lake"


@pytest.fixture
def ship(call: Ran, here: Path, to: Path) -> Ship:
    """Ship a journal: the exit status, what went to stdout, what went to stderr."""

    def run(*options: str, here: Path = here, to: object = to) -> tuple[int, str, str]:
        return call(main, "journal", "ship", "--journal", here, "--to", to, *options)

    return run


# ---- the layout


def test_a_file_lies_in_the_hour_of_its_first_row_and_one_that_spans_more_in_none() -> None:
    nine = 1_763_715_600 * S  # 2025-11-21 09:00 UTC
    assert (
        partition(nine, nine)
        == partition(nine + HOUR_NS - 1, nine + 2 * HOUR_NS - 1)
        == "day=2025-11-21/hour=09"
    )
    assert partition(nine - 1, nine) == "day=2025-11-21/hour=08"
    assert (
        partition(nine, nine + 2 * HOUR_NS)
        == partition(None, None)
        == partition(5, 4)
        == partition(-5, 4)
        == ANY
    )


@given(
    first=st.integers(0, 1 << 61),
    span=st.integers(0, 3 * HOUR_NS),
    at=st.floats(0, 1),
    before=st.integers(0, 30 * HOUR_NS),
    after=st.integers(1, 30 * HOUR_NS),
)
@example(first=0, span=2 * HOUR_NS - 1, at=1.0, before=0, after=1)
@example(first=24 * HOUR_NS - 1, span=HOUR_NS, at=1.0, before=0, after=1)
def test_no_row_is_ever_lost_by_pruning(
    first: int, span: int, at: float, before: int, after: int
) -> None:
    row = first + round(span * at)
    parts = partition(first, first + span).split("/")
    for names in (parts, parts[:1], ["lake", *parts, "deeper"]):
        assert may_hold(names, row - before, row + after)
        assert may_hold(names, None, row + 1)
        assert may_hold(names, row, None)


@given(
    first=st.integers(0, 1 << 61),
    span=st.integers(0, HOUR_NS),
    away=st.integers(2 * HOUR_NS, 90 * HOUR_NS),
)
def test_hours_that_can_hold_no_row_of_the_time_are_pruned(
    first: int, span: int, away: int
) -> None:
    parts = partition(first, first + span).split("/")
    assert not may_hold(parts, first + span + away, None)
    assert not may_hold(parts, None, first - HOUR_NS)


@pytest.mark.parametrize(
    "names", [["day=soon", "hour=09"], ["hour=09"], ["day=2025-11-21", "hour=x"], ["2025"], []]
)
def test_names_that_are_no_part_of_the_layout_rule_nothing_out(names: list[str]) -> None:
    assert may_hold(names, 0, 1)


# ---- shipping


def test_every_file_arrives_in_its_hour_with_the_bytes_it_had_and_is_deleted_here(
    here: Path, to: Path, ship: Ship
) -> None:
    first, second = write(here, 0, 3600)
    (long,) = write(here, 7200, apart=1800)
    sent = there(here)
    growing = Journal(here, background=False)
    growing.open(0, 1)
    growing.flush()
    status, out, err = ship("--json")
    assert there(to) == {
        f"{HOUR}/{first}": sent[first],
        f"{HOUR[:-2]}15/{second}": sent[second],
        f"{ANY}/{long}": sent[long],
    }
    summary = json.loads(out)
    assert (
        status,
        summary["files"],
        summary["waiting"],
        summary["growing"],
        summary["failed"],
    ) == (0, 3, 0, 1, [])
    assert summary["bytes"] == sum(path.stat().st_size for path in to.rglob("*.parquet"))
    assert "3 of 3 files" in err
    assert list(here.glob("*.parquet")) == []
    (stream,) = here.glob(".*.arrows")
    left = stream.read_bytes()
    growing.close()
    status, out, _ = ship("--keep", "--quiet", to=f"file://{to}")
    assert (status, len(list(here.glob("*.parquet")))) == (0, 1)
    assert out.startswith("1 file(s) arrived")
    stream.with_name(".reaper-0-w0000001-dead-000001.arrows").write_bytes(
        left
    )  # of a writer that died
    assert ship("--quiet")[1].startswith("2 file(s) arrived, 0.0 MB; 1 of them were there")
    assert list(here.iterdir()) == [here / LOCK]


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from reaper.journal import places, ship

def trace(frame, event, _):
    global left
    if frame.f_code.co_filename not in (places.__file__, ship.__file__):
        return None
    left -= event == "line"
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace

root = Path(sys.argv[1])
places.CHUNK = 2000  # so that a file is copied in several steps
for left in range(0, 3000, 3):  # lines of the shipper and of its place until the kill
    here, to = root / f"j{left}", root / f"l{left}"
    shutil.copytree(root / "journal", here)
    to.mkdir()
    if not os.fork():
        shipper = ship.Shipper(here, places.Place(str(to)))
        sys.settrace(trace)
        shipper.once()
        os._exit(0)
    if not (status := os.wait()[1]):
        break
    assert os.WIFSIGNALED(status), status
"""
"""Ships `DIR/journal` again and again, killed a few lines later each time: what is left
of it stands in `DIR/j<n>`, and what has arrived in `DIR/l<n>`.
"""


def test_killed_at_any_step_no_file_is_lost_or_half_and_the_next_run_ends_it(
    tmp_path: Path, here: Path, ship: Ship
) -> None:
    names = write(here, 0, 60)
    sent = there(here)
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=True, cwd=ROOT, timeout=120)
    worlds = sorted(tmp_path.glob("l*"))
    assert len(worlds) > 30  # it was killed at as many steps
    for to in worlds:
        rest = tmp_path / f"j{to.name[1:]}"
        visible = {
            Path(name).name: digest for name, digest in there(to).items() if "/." not in name
        }
        left = {path.name for path in rest.glob("*.parquet")}
        assert all(sent[name] == digest for name, digest in visible.items())
        assert left | visible.keys() == set(names)
        assert ship("--quiet", here=rest, to=to)[0] == 0
        assert there(to) == {f"{HOUR}/{name}": sent[name] for name in names}
        assert list(rest.glob("*.parquet")) == []


def test_what_arrived_damaged_is_deleted_there_and_kept_here(
    here: Path, to: Path, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = write(here, 0)
    whole = Place.write
    monkeypatch.setattr(
        Place,
        "write",
        lambda place, path, source: whole(place, path, io.BytesIO(flipped(source.read()))),
    )
    status, _, err = ship()
    assert (status, f"not shipped: {name}: it arrived damaged" in err) == (1, True)
    assert there(to) == {}
    assert (here / name).exists()


def flipped(content: bytes) -> bytes:
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


def test_a_file_that_is_there_already_is_deleted_here_only_if_it_is_the_same(
    here: Path, to: Path, ship: Ship
) -> None:
    same, other, longer = write(here, 0, 60, 120)
    (to / HOUR).mkdir(parents=True)
    for name, change in (
        (same, bytes),
        (other, flipped),
        (longer, lambda content: content + b"more"),
    ):
        (to / HOUR / name).write_bytes(change((here / name).read_bytes()))
    before = there(to)
    (to / HOUR / f".{same}.shipping").touch()
    status, out, err = ship("--json")
    assert sorted(path.name for path in here.glob("*.parquet")) == [other, longer]
    assert there(to) == before  # without what a kill between a store's copy and deletion had left
    assert (status, json.loads(out)["already_there"]) == (1, 1)
    for name in (other, longer):
        assert f"not shipped: {name}: another file of that name is at" in err


def test_a_file_that_is_no_parquet_stops_no_other(here: Path, to: Path, ship: Ship) -> None:
    (name,) = write(here, 0)
    (here / "reaper-0-half.parquet").write_bytes(b"PAR1")
    status, _, err = ship()
    assert (status, [path.name for path in here.glob("*.parquet")]) == (
        1,
        ["reaper-0-half.parquet"],
    )
    assert there(to).keys() == {f"{HOUR}/{name}"}
    assert "not shipped: reaper-0-half.parquet: no Parquet file" in err


def test_a_place_that_fails_stops_the_pass_and_the_next_one_goes_on(
    here: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write(here, 0, 60, 120)
    shipper = Shipper(here, Place(str(to)))
    move, moves = Place.rename, []

    def fails(*arguments: Any) -> None:
        moves.append(arguments)
        if len(moves) == 2:
            raise OSError("the network\nis down")
        move(*arguments)

    monkeypatch.setattr(Place, "rename", fails)
    shipped = shipper.once()
    assert (shipped.files, shipped.waiting, shipped.failed) == (1, 2, {"": "the network is down"})
    shipped = shipper.once()
    assert (shipped.files, shipped.waiting, shipped.failed) == (3, 0, {})
    assert sorted(Path(name).name for name in there(to)) == names


def test_a_pass_that_is_asked_to_stop_ends_after_the_file_under_way(here: Path, to: Path) -> None:
    write(here, 0, 60, 120)
    stop = Event()
    shipped = Shipper(here, Place(str(to)), progress=lambda _: stop.set()).once(stop)
    assert (shipped.files, shipped.waiting, shipped.failed) == (1, 2, {})


def test_a_place_that_goes_on_failing_is_tried_ever_more_seldom(
    here: Path, to: Path, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = write(here, 0)
    pauses: list[float] = []

    class Stop(Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0)
            return len(pauses) == 7

    def down(*arguments: Any) -> Any:
        if len(pauses) < 5:
            raise OSError("the network is down")
        return size(*arguments)

    size = Place.size
    monkeypatch.setattr(Place, "size", down)
    monkeypatch.setattr("reaper.journal.command.stoppable", lambda: nullcontext(Stop()))
    status, _, err = ship("--watch", "--quiet")
    assert pauses == [10, 20, 40, 60, 60, 10, 10]
    assert (status, err.splitlines()) == (0, ["stopped: the network is down"])
    assert there(to).keys() == {f"{HOUR}/{name}"}


def test_a_file_that_retention_deletes_meanwhile_is_no_failure(
    here: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, 0, 60)
    monkeypatch.setattr("reaper.journal.ship.partition_of", lambda path: (path.unlink(), HOUR)[1])
    shipped = Shipper(here, Place(str(to))).once()
    assert (shipped.files, shipped.waiting, shipped.failed) == (0, 0, {})


def test_files_without_the_wall_clock_lie_where_any_time_may_be(tmp_path: Path) -> None:
    (name,) = write(tmp_path, 0)
    assert partition_of(tmp_path / name) == HOUR
    table = pq.ParquetFile(tmp_path / name).read()
    pq.write_table(table.drop_columns(["wall_offset_ns"]), tmp_path / name)
    assert partition_of(tmp_path / name) == ANY
    offsets = [None, *table["wall_offset_ns"].to_pylist()[1:]]
    at = table.schema.get_field_index("wall_offset_ns")
    pq.write_table(
        table.set_column(at, "wall_offset_ns", pa.array(offsets, pa.int64())), tmp_path / name
    )
    assert partition_of(tmp_path / name) == ANY
    pq.write_table(table, tmp_path / name, write_statistics=False)
    assert partition_of(tmp_path / name) == ANY


def test_watching_ships_what_a_living_server_writes_until_it_is_asked_to_stop(
    here: Path, to: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "reaper",
        "journal",
        "ship",
        "--watch",
        "--every",
        "20ms",
        "--json",
    ]
    command += ["--journal", str(here), "--to", str(to)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            conns = set()
            with Journal(here, flush=0.02, rotate_seconds=0.1) as ours:
                deadline = time.monotonic() + 60
                while len(list(to.rglob("*.parquet"))) < 4:
                    assert time.monotonic() < deadline
                    conns.add(ours.open(time.monotonic_ns(), 5000, "echo").conn)
                    time.sleep(0.01)
            while list(here.glob("*.parquet")):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert json.loads(out)["failed"] == []
    arrived = [
        row["conn"]
        for path in to.rglob("*.parquet")
        for row in pq.ParquetFile(path).read(columns=["conn", "kind"]).to_pylist()
        if row["kind"] == "open"
    ]
    assert sorted(arrived) == sorted(conns)


def test_one_journal_has_one_shipper(here: Path, ship: Ship) -> None:
    with alone(here / LOCK, OSError):
        status, _, err = ship()
    (line,) = err.splitlines()
    assert (status, f"process {os.getpid()} ships {here} already" in line) == (2, True)


HOSTLESS = ("hdfs:/lake/log", "viewfs:/log", "s3:/lake/log", "GS:/lake")
SECRET = (
    "what://key:secret@lake/log?token=secret",
    "hdfs://key:secret@lake:1/log?token=secret",
    "s3://key:se/secret@lake/log",  # as many a key of S3 has one: it is no URI
    "s3a://key:s@e/secret@lake/log",
)
WITHIN = ("{}/journal/lake", "file://{}", "file://{}/journal/lake")


@pytest.mark.parametrize(
    ("journal", "lake", "options", "said"),
    [
        ("{}/none", "{}/lake", "", "is not a directory"),
        ("{}/journal", "ftp://lake/x", "", "--to 'ftp://lake/x' is not a directory, or a URI with"),
        *(("{}/journal", to, "", "lie within each other") for to in WITHIN),
        ("{}/journal", "{}/a.file", "", "a.file' is not a directory"),
        ("{}/journal", "{}/lake", "--every=soon", "'soon': expected a duration such as"),
        ("{}/journal", "{}/lake", "--every=0s", "'0s': expected"),
        # A URI without a host is no directory of this machine.
        *(
            ("journal", uri, "", f"--to {uri!r} is not a directory, or a URI with")
            for uri in HOSTLESS
        ),
        *(pytest.param("journal", uri, "", "//lake", marks=pytest.mark.slow) for uri in SECRET),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ship: Ship,
    journal: str,
    lake: str,
    options: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.file").touch()
    status, _, err = ship(
        *options.split(), here=Path(journal.format(tmp_path)), to=lake.format(tmp_path)
    )
    (line,) = err.splitlines()
    assert (status, said in line) == (2, True), line
    assert "secret" not in line
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "a.file",
        "journal",
    ]  # nothing was made on the way


def test_a_library_that_ends_the_process_for_lack_of_credentials_is_one_line(
    here: Path,
) -> None:
    # no network is asked: its tokens are for TLS alone
    uri = "abfs://lake@127.0.0.1:1/log?enable_tls=false"
    command = [
        sys.executable,
        "-m",
        "reaper",
        "journal",
        "ship",
        "--journal",
        str(here),
        "--to",
        uri,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "--to 'abfs://127.0.0.1:1/log' is not a directory, or a URI with" in line
    assert "token" in line


# ---- an object store


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Options of the URIs of an S3 server on loopback, which has a bucket `lake`."""
    server = pytest.importorskip("moto.server", reason="needs moto, from the extra `dev`")
    import logging

    from pyarrow import fs

    monkeypatch.setattr(logging.getLogger("werkzeug"), "disabled", True)
    for name, value in (
        ("ACCESS_KEY_ID", "x"),
        ("SECRET_ACCESS_KEY", "y"),
        ("EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    store = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    options = {"endpoint_override": f"{host}:{port}", "scheme": "http", "region": "us-east-1"}
    files = fs.S3FileSystem(**options, allow_bucket_creation=True)
    try:
        files.create_dir("lake")
        yield files, "&".join(f"{name}={value}" for name, value in options.items())
    finally:
        store.stop()


def test_a_journal_is_shipped_to_an_object_store(here: Path, bucket: Any, ship: Ship) -> None:
    from pyarrow import fs

    files, options = bucket
    first, second = write(here, 0, 3600)
    sent = {name: (here / name).read_bytes() for name in (first, second)}
    with files.open_output_stream(f"lake/log/{HOUR}/.{first}.shipping") as stream:
        stream.write(b"what a kill left")
    status, out, _ = ship("--json", to=f"s3a://lake/log?{options}")
    assert (status, json.loads(out)["files"]) == (0, 2)
    found = [
        info.path
        for info in files.get_file_info(fs.FileSelector("lake", recursive=True))
        if info.is_file
    ]
    assert sorted(found) == [f"lake/log/{HOUR}/{first}", f"lake/log/{HOUR[:-2]}15/{second}"]
    for path in found:
        assert files.open_input_stream(path).read() == sent[path.rpartition("/")[2]]
    assert list(here.glob("*.parquet")) == []
    status, _, err = ship(to=f"s3://none/log?{options}")
    assert (status, "there is no none" in err) == (2, True)
