"""Files of the journal: what is complete is named `*.parquet`, what is not begins with
a dot.

While a file grows it is an Arrow IPC stream, because after a kill a stream gives back
every flushed batch and a Parquet file without its footer none. The dot matters: Spark
skips such names, but reads `x.parquet.tmp` and fails on it. The process that writes a
stream holds a lock on it; the kernel drops the lock with the process, however it ends.
So a stream that can be locked is an orphan, and the next journal to start makes a
Parquet file of it.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from .schema import PREFIX, SCHEMA_VERSION, arrow_schema

STREAM_SUFFIX = ".arrows"
TEMPORARY_SUFFIX = ".tmp"
ROW_GROUP_ROWS = 1 << 20

Anchor = tuple[int, int, int]
"""One instant on three clocks, ns: the writer's, Unix time, the machine's
CLOCK_MONOTONIC.
"""


class Stream:
    """One growing stream, locked. Every `write` is on the file system (not necessarily
    on the disk) when it returns.
    """

    def __init__(self, directory: Path, stem: str, metadata: dict[str, str]) -> None:
        self.path: Path = directory / f".{stem}{STREAM_SUFFIX}"
        self.rows: int = 0
        self._file: IO[bytes] = self.path.open("x+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if (
                not self.in_place
            ):  # recovery was quicker than our lock, and took it for an orphan without a row
                self._file.close()
                self._file = self.path.open("x+b")
                fcntl.flock(self._file, fcntl.LOCK_EX)
            schema = arrow_schema({"schema_version": str(SCHEMA_VERSION), **metadata})
            self._writer = pa.ipc.new_stream(self._file, schema)
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    @property
    def size(self) -> int:
        """How many bytes were written."""
        return self._file.tell()

    def write(self, batch: pa.RecordBatch, anchor: Anchor, dropped: int = 0) -> None:
        """Append *batch* with the latest *anchor*, and how many rows the writer has
        lost so far.
        """
        custom = {PREFIX + "anchor": json.dumps(anchor), PREFIX + "dropped": str(dropped)}
        self._writer.write_batch(batch, custom_metadata=custom)
        self._file.flush()
        self.rows += batch.num_rows

    @property
    def in_place(self) -> bool:
        """Whether the stream is still where it was made: its directory may have been
        removed meanwhile.
        """
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def finish(self) -> Path | None:
        """Turn the stream into a Parquet file beside it and delete the stream. Returns
        the file's path, or None if there was no row.

        Raises:
            FileNotFoundError: its directory was removed, or renamed: there it is
                recovered at the next start.
        """
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._file.flush()
        try:
            return convert(self.path)
        finally:
            self.abandon()  # not before: it is locked while it is open

    def abandon(self) -> None:
        """Let go of it as it is: the next start recovers what it holds."""
        with suppress(OSError, pa.ArrowException):
            self._file.close()


def convert(stream: Path, *, recovered: bool = False) -> Path | None:
    """Make a Parquet file of the whole batches in *stream*, put it in place in one
    step, and delete the stream.

    Args:
        stream: A hidden stream file, possibly cut off anywhere.
        recovered: Whether to note that a crash left it.
    Returns:
        The new file, or None if not one row could be read.
    Raises:
        OSError, pyarrow.ArrowException, ValueError: the disk failed as it was read or
            written, or column names are damaged. The stream remains.
    Cost: one stream in memory; `rotate_bytes` bounds it.
    """
    batches: list[pa.RecordBatch] = []
    anchors: list[tuple[int, ...]] = []
    schema: pa.Schema | None = None
    cut, dropped = False, 0
    # Whole, and from memory: read from a file, a damaged length would first be
    # allocated, and only then be found to be beyond the end.
    source = pa.BufferReader(stream.read_bytes())
    try:
        reader = pa.ipc.open_stream(source)
        schema = reader.schema
        while True:
            batch, custom = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)  # a flipped bit may point anywhere
            anchor = tuple(
                int(value) for value in json.loads((custom or {}).get(PREFIX + "anchor", "[]"))
            )
            dropped = max(dropped, int((custom or {}).get(PREFIX + "dropped", 0)))
            batches.append(batch)
            if anchor and (not anchors or anchors[-1] != anchor):
                anchors.append(anchor)
    except StopIteration:
        pass
    except (pa.ArrowException, OSError, ValueError, TypeError):
        cut = True  # what a kill or a full disk leaves: a message that ends in the middle
    if schema is None or not batches:
        stream.unlink()
        return None
    found = {"anchors": json.dumps(anchors), "cut": str(int(cut)), "dropped": str(dropped)}
    found |= {"recovered": "1"} if recovered else {}
    metadata: dict[Any, Any] = {
        **(schema.metadata or {}),
        **{PREFIX + key: value for key, value in found.items()},
    }
    table = pa.Table.from_batches(batches).unify_dictionaries().replace_schema_metadata(metadata)
    stem = stream.name.removeprefix(".").removesuffix(STREAM_SUFFIX)
    final = stream.with_name(stem + ".parquet")
    temporary = stream.with_name(f".{stem}.parquet{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as sink:
            pq.write_table(
                table,
                sink,
                compression="zstd",
                row_group_size=ROW_GROUP_ROWS,
                write_page_checksum=True,
            )
            sink.flush()
            os.fsync(sink.fileno())
        temporary.replace(final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    stream.unlink()
    return final


def recover(directory: Path) -> list[Path]:
    """Make Parquet files of every stream in *directory* that no living process holds.
    Returns the new files, by name.

    A stream that cannot be read or converted stays where it is; the others are done all
    the same, and then the errors are raised as one group.
    """
    made: list[Path] = []
    errors: list[Exception] = []
    for stream in sorted(directory.glob(f".*{STREAM_SUFFIX}")):
        try:
            with stream.open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The process that had the lock may have finished the stream meanwhile:
                # then the name is gone.
                if not stream.exists():
                    continue
                # The Parquet file is in place already when the crash fell between the
                # rename and the delete.
                if (
                    final := stream.with_name(
                        stream.name[1:].removesuffix(STREAM_SUFFIX) + ".parquet"
                    )
                ).exists():
                    stream.unlink()
                elif path := convert(stream, recovered=True):
                    made.append(path)
                with suppress(FileNotFoundError):
                    final.with_name(f".{final.name}{TEMPORARY_SUFFIX}").unlink()
        except (BlockingIOError, FileNotFoundError):
            continue
        except (
            OSError,
            pa.ArrowException,
            ValueError,
        ) as error:  # a name that is no text is a ValueError
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} streams in {directory} could not be recovered", errors)
    return made


def retain(directory: Path, limit: int) -> int:
    """Delete the oldest Parquet files of the journal until the rest fits into *limit*
    bytes. Returns how many were deleted.

    The newest file always stays.
    """
    found = []
    for path in directory.glob("reaper-*.parquet"):
        with suppress(FileNotFoundError):  # another process of the same directory was quicker
            status = path.stat()
            found.append((status.st_mtime_ns, path.name, path, status.st_size))
    found.sort()
    total = sum(size for *_, size in found)
    deleted = 0
    for *_, path, size in found[:-1]:
        if total <= limit:
            break
        path.unlink(missing_ok=True)
        total -= size
        deleted += 1
    return deleted
