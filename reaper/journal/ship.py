"""Finished files of a journal on their way to where they are read: once, whole, and
deleted here after they arrived.

One rule: *at every instant a file is whole in at least one of the two places*. A kill
between any two steps leaves a hidden name there, which the next try writes over or
deletes, or a file in both places, which the next try finds equal and deletes here.
Streams of writers that have died become files first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.parquet as pq

from ..errors import one_line
from .files import recover
from .layout import bounds, check_footer, partition
from .places import FAILURES, Place, digest_of

LOCK = ".ship.lock"
"""Held by who ships a journal, in its directory: one journal has one shipper."""


@dataclass(slots=True)
class Shipped:
    """The outcome of one or more passes."""

    files: int = 0
    """That have arrived, and were deleted here unless they are kept."""
    bytes: int = 0
    already_there: int = 0
    """How many of `files` were there already, whole, when their turn came."""
    waiting: int = 0
    """Finished files that are still only here."""
    growing: int = 0
    """Streams of writers that live."""
    failed: dict[str, str] = field(default_factory=dict)
    """Name -> why it is still here. The empty name: why no more was tried."""

    def as_json(self, to: str) -> dict[str, Any]:
        """The outcome as JSON has it."""
        failed = [{"file": name, "reason": reason} for name, reason in self.failed.items()]
        return {"schema": "reaper-ship/1", "to": to, **asdict(self), "failed": failed}


class Shipper:
    """Ships the journal in *directory* to *place*. Use it while you hold `LOCK`.

    Args:
        keep: Leave what has arrived; retention deletes it one day.
        progress: Called with how far it is, one line.
    """

    def __init__(
        self,
        directory: Path,
        place: Place,
        *,
        keep: bool = False,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._place = place
        self._keep = keep
        self._progress = progress
        self._arrived: set[str] = set()
        self.shipped: Shipped = Shipped()

    def once(self, stop: Event | None = None) -> Shipped:
        """Ship every finished file, the oldest first. It ends early when *stop* is set,
        or when the place fails.

        A file that cannot be read is left and named; the others are shipped all the
        same.
        """
        result = self.shipped
        result.failed = {}
        try:
            recover(self._directory)
        except ExceptionGroup as errors:
            for number, error in enumerate(errors.exceptions, 1):
                result.failed[f"stream {number}"] = one_line(error)
        here = sorted(path.name for path in self._directory.glob("reaper-*.parquet"))
        self._arrived.intersection_update(here)
        names = [name for name in here if name not in self._arrived]
        for number, name in enumerate(names, 1):
            if stop is not None and stop.is_set():
                break
            source = self._directory / name
            try:
                where = partition_of(source)
            except FileNotFoundError:
                continue  # retention was quicker
            except (
                *FAILURES,
                ValueError,
            ) as error:  # names of columns that are no text are a ValueError
                result.failed[name] = f"no Parquet file: {one_line(error)}"
                continue
            try:
                if reason := self._ship(source, f"{where}/{name}"):
                    result.failed[name] = reason
                    continue
            except FileNotFoundError as error:
                if source.exists():
                    result.failed[""] = one_line(error)
                    break
                continue
            except FAILURES as error:
                result.failed[""] = one_line(error)
                break
            self._progress(f"{number} of {len(names)} files, {result.bytes / 1e6:,.1f} MB")
        left = [path.name for path in self._directory.glob("reaper-*.parquet")]
        result.waiting = len([name for name in left if name not in self._arrived])
        result.growing = len(list(self._directory.glob(".reaper-*.arrows")))
        return result

    def _ship(self, source: Path, final: str) -> str | None:
        """Copy *source* to *final* and delete it here. Returns why that did not happen,
        or None.

        Raises:
            OSError, pyarrow.ArrowException: *source* is still here.
        """
        place, result = self._place, self.shipped
        hidden = f"{os.path.dirname(final)}/.{source.name}.shipping"
        with source.open("rb") as file:
            size, digest = os.fstat(file.fileno()).st_size, digest_of(file.read)
            if (there := place.size(final)) is not None:
                if there != size or place.digest(final) != digest:
                    return f"another file of that name is at {place.uri}: {final}"
                place.remove(
                    hidden
                )  # left by a kill between the copy within a store and the deletion
                result.already_there += 1
            else:
                file.seek(0)
                place.write(hidden, file)
                if place.digest(hidden) != digest:
                    place.remove(hidden)
                    return "it arrived damaged"
                place.rename(hidden, final)
                if place.size(final) != size:
                    return "it did not arrive whole"
        if self._keep:
            self._arrived.add(source.name)
        else:
            source.unlink(missing_ok=True)
        result.files += 1
        result.bytes += size
        return None


def partition_of(path: Path) -> str:
    """The directory of the layout for the file at *path*, by its footer. The footer's
    bounds may be wider than its rows.

    Raises:
        OSError, pyarrow.ArrowException: it is no Parquet file.
    """
    with pq.ParquetFile(path) as file:
        check_footer(file)
        span = bounds(file.metadata)
    return partition(*(span or (None, None)))
