"""A compacted table where it lies: its buckets, and the manifest that alone makes them believed.

The manifest names every bucket with the digest of its footer and is itself signed with one: what is missing, added or
replaced is refused as a whole, because a verdict on part of the rows would be wrong without a sign of it. The pages
carry checksums of their own, which are compared as they are read. So no more than footers is read here.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..places import Place, files_below, is_pattern, write_text
from .footer import fingerprint

SCHEMA = "reaper-compacted/5"

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

    path: Place
    buckets: int
    digest: str
    """Of its manifest, and through it of every bucket."""


_THREADS = 16
"""Footers that are fetched at once."""


def is_table(directory: Place) -> bool:
    """Whether *directory* is a compacted table, or what is left of one."""
    return directory.name == BUCKETS or any((directory / name).exists() for name in (MANIFEST, BUCKETS))


def tables_in(directory: Place) -> list[Place]:
    """*directory*, if it is a compacted table; or the tables in it, one per day; or none: it holds journals.

    Raises:
        Unsound: some of its days are tables, and others are not.
    """
    if is_table(directory):
        return [directory]
    if not directory.is_dir():
        return []
    days = sorted((path for path in directory.iterdir() if path.name.startswith("day=")), key=str)
    tables = [day for day in days if is_table(day)]
    if tables and len(tables) < len(days):
        other = next(day for day in days if day not in tables)
        raise Unsound(f"{tables[0]} is a compacted table and {other} is none: keep tables and journals apart")
    return tables


def write_manifest(directory: Place, known: dict[str, Any]) -> dict[str, Any]:
    """Describe the buckets below *directory*, and *known* with them; returns the manifest.

    Args:
        known: At least buckets (how many), facts, quarantined and growing: see `inputs.check`.
    """
    paths = _files(directory)
    with ThreadPoolExecutor(_THREADS) as pool:
        footers = list(pool.map(fingerprint, *zip(*paths.values(), strict=True))) if paths else []
    files = [
        {"name": name, "bytes": size, "footer": digest}
        for (name, (_, size)), digest in zip(paths.items(), footers, strict=True)
    ]
    manifest = {"schema": SCHEMA, **known, "files": files}
    signed = {**manifest, "digest": _digest(manifest)}
    write_text(directory / MANIFEST, json.dumps(signed, indent=1))
    return signed


def open_table(directory: Place, *, checksums: bool = True) -> tuple[Table, dict[str, Any]]:
    """The compacted table at *directory* and its manifest.

    Args:
        checksums: Compare the footer of every bucket with its digest. False: its size alone.
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
        raise Unsound(f"{directory} is no whole compacted table: {MANIFEST}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unsound(f"{directory / MANIFEST} is no manifest: {again}") from None
    there = _files(directory)
    wanted = {entry["name"]: entry for entry in manifest["files"]}
    if different := sorted(there.keys() ^ wanted.keys()):
        said = "missing" if different[0] in wanted else "not in the manifest"
        raise Unsound(f"{directory / BUCKETS / different[0]} is {said}: {again}")

    def whole(name: str) -> bool:
        (path, size), entry = there[name], wanted[name]
        return size == entry["bytes"] and (not checksums or fingerprint(path, size) == entry["footer"])

    with ThreadPoolExecutor(_THREADS) as pool:
        for name, good in zip(wanted, pool.map(whole, wanted), strict=True):
            if not good:
                raise Unsound(f"{directory / BUCKETS / name} was edited or damaged: {again}")
    return Table(directory, manifest["buckets"], digest), manifest


def _files(directory: Place) -> dict[str, tuple[Place, int]]:
    """Name -> path and size of every bucket file below *directory*, by name. Hidden files and marks are none."""
    if not (directory / BUCKETS).is_dir():
        return {}
    found = {parts[-1]: (path, size) for path, parts, size in files_below(directory / BUCKETS)}
    return {name: found[name] for name in sorted(found) if not name.startswith((".", "_"))}


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
