"""Files of a journal that were cut, damaged, or never ours: each is taken whole or put
aside with a reason.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from reaper.journal.places import Place
from reaper.journal.schema import COLUMNS, KINDS, PREFIX
from reaper.journal.ship import Shipper
from reaper.pipeline.live.feed import Feed
from reaper.pipeline.read.inputs import check
from tests.helpers.pipeline_traffic import WALL, S, write

LATER = WALL + 100_000 * S


@functools.cache
def journal_file() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), connections=20)
        (path,) = Path(name).glob("*.parquet")
        return path.read_bytes()


@functools.cache
def its_rows() -> pa.Table:
    return pq.read_table(pa.BufferReader(journal_file()))


def outcome(content: bytes, asked: Path) -> bool:
    """Whether a file with *content* is taken; else there is one line that says why
    not.
    """
    path = asked / "a.parquet"
    path.write_bytes(content)
    found = check([asked], now_ns=LATER)
    reasons = [entry["reason"] for entry in found.quarantined]
    assert len(found.files) + len(reasons) == 1
    assert all(reason and "\n" not in reason and "Traceback" not in reason for reason in reasons)
    return bool(found.files)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_cut_or_damaged_file_is_taken_with_the_rows_it_had_or_put_aside(
    data: st.DataObject,
) -> None:
    damaged = bytearray(journal_file())
    if data.draw(st.booleans(), "cut"):
        del damaged[data.draw(st.integers(0, len(damaged) - 1), "at") :]
    else:
        footer = len(damaged) - int.from_bytes(damaged[-8:-4], "little") - 8
        where = st.integers(0, len(damaged) - 1) | st.integers(footer, len(damaged) - 1)
        for _ in range(data.draw(st.integers(1, 3), "flips")):
            damaged[data.draw(where, "at")] ^= 1 << data.draw(st.integers(0, 7), "bit")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "journal"
        directory.mkdir()
        if outcome(bytes(damaged), directory):
            rows = pq.ParquetFile(directory / "a.parquet").read()
            assert rows.select(["t", "conn"]).equals(its_rows().select(["t", "conn"]))
        everything_else(directory)


def test_a_footer_that_contradicts_itself_about_a_column_puts_its_file_aside(
    tmp_path: Path,
) -> None:
    """pyarrow ends the process that asks such a footer about the column."""
    content = journal_file()
    footer = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    column = b"%\x00\x18\x01t"  # thrift: what follows the type of `t` in the schema
    int64, int96 = b"\x15\x04", b"\x15\x06"
    damaged = content[:footer] + content[footer:].replace(int64 + column, int96 + column)
    assert damaged != content
    (tmp_path / "journal").mkdir()
    assert not outcome(damaged, tmp_path / "journal")
    everything_else(tmp_path / "journal")


@pytest.mark.parametrize("name", ["t", "kind", "listener", "wall_offset_ns"])
def test_a_name_of_a_column_that_is_no_text_puts_its_file_aside(tmp_path: Path, name: str) -> None:
    content = journal_file()
    footer = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    size = bytes([len(name)])
    damaged = content[:footer] + content[footer:].replace(
        size + name.encode(), size + b"\xff" * len(name)
    )
    assert damaged != content
    (tmp_path / "journal").mkdir()
    assert not outcome(damaged, tmp_path / "journal")
    everything_else(tmp_path / "journal")


def everything_else(directory: Path) -> None:
    """Whatever else opens files of a journal: none raises because of what is in
    them.
    """
    feed = Feed(directory.parent / "out", [directory], 3600 * S, {}, now_ns=lambda: LATER)
    assert feed.admit() in (0, 1)
    assert all("\n" not in reason for reason in feed.quarantined.values())
    (directory / "a.parquet").rename(directory / "reaper-a.parquet")
    shipped = Shipper(directory, Place(str(directory.parent / "lake"))).once()
    assert shipped.files + len(shipped.failed) == 1
    assert all("\n" not in reason for reason in shipped.failed.values())


EXTREMES = {
    "int64": [None, 0, -1, S, -(1 << 63), (1 << 63) - 1, 1 << 60, 7 << 43, (7 << 43) + 1],
    "int32": [None, 0, -1, 5000, -(1 << 31), (1 << 31) - 1],
    "dictionary": [None, *KINDS, "stall", "retime", "echo", "\x00\n", ""],
}
LIKELY = {
    "conn": range(7 << 43, (7 << 43) + 4),
    "kind": KINDS,
    "timeout_ms": [None, 0, 60_000],
    "nbytes": [None, 0, 9],
}
"""What a writer might have written; in the other columns of int64 any small one."""
TYPES = {"int64": pa.int64(), "int32": pa.int32(), "dictionary": pa.string()}
OTHERS = [
    *(
        (1, pa.int8()),
        (1.5, pa.float64()),
        ("text", pa.string()),
        (b"bytes", pa.binary()),
        (True, pa.bool_()),
    ),
    *(
        ([1], pa.list_(pa.int64())),
        (10**15, pa.timestamp("us")),
        (None, pa.int64()),
        (None, pa.null()),
    ),
]
KEYS = (
    "schema_version run writer serial mode tick_ns gap_threshold_ns first_conn server "
    "dropped_before dropped boot"
)
METADATA = st.dictionaries(
    st.sampled_from([*KEYS.split(), "anchors", "cut"]),
    st.sampled_from(
        ["", "0", "1", "7", "-1", "full", "gaps", "9" * 40, "[[1,2,3]]", "[[1]]", "{}", "[[[", "\n"]
    )
    | st.text(max_size=5),
)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_foreign_file_is_taken_only_if_it_could_be_ours(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 4), "rows")
    arrays = {}
    for column in COLUMNS:
        if not column.required and not data.draw(st.integers(0, 19), f"has {column.name}"):
            continue
        if data.draw(st.integers(0, 29), f"type of {column.name}"):
            likely = LIKELY.get(column.name) or (
                range(10 * S) if column.type == "int64" else EXTREMES[column.type]
            )
            some: Any = (
                likely
                if data.draw(st.integers(0, 9), f"likely {column.name}")
                else EXTREMES[column.type]
            )
            values = data.draw(
                st.lists(st.sampled_from(some), min_size=count, max_size=count), column.name
            )
            arrays[column.name] = pa.array(values, TYPES[column.type])
        else:
            value, kind = data.draw(st.sampled_from(OTHERS))
            arrays[column.name] = pa.array([value] * count, kind)
    metadata = {PREFIX + key: value for key, value in data.draw(METADATA, "metadata").items()}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "journal"
        directory.mkdir()
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table(arrays).replace_schema_metadata(metadata), sink, write_page_checksum=True
        )
        outcome(sink.getvalue().to_pybytes(), directory)
        everything_else(directory)
