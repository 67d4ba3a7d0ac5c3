"""A compacted table on disk: its buckets, and the manifest that alone makes them believed.

The manifest names every bucket with its digest and is itself signed with one: what is missing, added or edited is
refused as a whole, because a verdict on part of the rows would be wrong without a sign of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "reaper-compacted/2"

MANIFEST = "compacted.json"
"""What makes a directory a compacted table."""

BUCKETS = "buckets"
"""The directory within it that holds the rows."""

ORDER = ("conn", "t", "code")
"""By what the rows of a bucket are sorted; the first alone decides which bucket."""


class Unsound(Exception):
    """A compacted table cannot be used. The message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Table:
    """A compacted table that passed the check."""

    path: Path
    buckets: int
    digest: str
    """Of its manifest, and through it of every bucket."""


def is_pattern(directory: Path) -> bool:
    """Whether Spark would take the path of *directory* for a pattern, which a table's cannot escape."""
    return any(char in str(directory.resolve()) for char in "{}[]*?\\")


def is_table(directory: Path) -> bool:
    """Whether *directory* is a compacted table, or what is left of one."""
    return directory.name == BUCKETS or any((directory / name).exists() for name in (MANIFEST, BUCKETS))


def write_manifest(directory: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Describe the buckets below *directory*, and *known* with them; returns the manifest.

    Args:
        known: At least buckets (how many), facts, quarantined and growing: see `inputs.check`.
    """
    paths = _files(directory)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = list(pool.map(sha256, paths.values()))
    files = [
        {"name": name, "bytes": path.stat().st_size, "sha256": digest}
        for (name, path), digest in zip(paths.items(), digests, strict=True)
    ]
    manifest = {"schema": SCHEMA, **known, "files": files}
    signed = {**manifest, "digest": _digest(manifest)}
    with (directory / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(signed, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    return signed


def open_table(directory: Path, *, checksums: bool = True) -> tuple[Table, dict[str, Any]]:
    """The compacted table at *directory* and its manifest.

    Args:
        checksums: Read every bucket and compare its digest: some 500 MB/s a core. False: its size alone.
    Raises:
        Unsound: it is not what its manifest says.
    """
    again = "compact the journals again"
    if is_pattern(directory):
        raise Unsound(f"Spark takes {directory} for a pattern: rename it, without any of {{}}[]*?\\")
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        digest = manifest.pop("digest")
        if digest != _digest(manifest):
            raise Unsound(f"{directory / MANIFEST} was edited: {again}")
        if manifest["schema"] != SCHEMA:
            raise Unsound(f"{directory / MANIFEST} is {manifest['schema']}, expected {SCHEMA}: {again}")
    except OSError as error:
        raise Unsound(f"{directory} is no whole compacted table: {MANIFEST}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unsound(f"{directory / MANIFEST} is no manifest: {again}") from None
    there = _files(directory)
    wanted = {entry["name"]: entry for entry in manifest["files"]}
    if different := sorted(there.keys() ^ wanted.keys()):
        said = "missing" if different[0] in wanted else "not in the manifest"
        raise Unsound(f"{directory / BUCKETS / different[0]} is {said}: {again}")

    def whole(name: str) -> bool:
        path, entry = there[name], wanted[name]
        return path.stat().st_size == entry["bytes"] and (not checksums or sha256(path) == entry["sha256"])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, good in zip(wanted, pool.map(whole, wanted), strict=True):
            if not good:
                raise Unsound(f"{directory / BUCKETS / name} was edited or damaged: {again}")
    return Table(directory, manifest["buckets"], digest), manifest


def sha256(path: Path) -> str:
    """Of the bytes of *path*, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(directory: Path) -> dict[str, Path]:
    """Name -> path of every bucket file below *directory*, by name. Hidden files and Spark's own marks are none."""
    found = sorted((directory / BUCKETS).glob("*"))
    return {path.name: path for path in found if not path.name.startswith((".", "_"))}


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
