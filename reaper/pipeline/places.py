"""Where an argument points: a path of this machine, or a URI of any file system that Spark can reach.

The rule of this module: *a path without a scheme is this machine's*, whatever `fs.defaultFS` says: Spark is given every
path with its scheme. No Spark here.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .hadoop import Remote

Place = Path | Remote
"""What both have in common: `/`, name, parent, suffix, exists, is_dir, is_file, iterdir, mkdir, unlink."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_SPECIAL = "\\{}[]*?"
"""What Spark and Hadoop would take for a pattern."""
_ESCAPED = str.maketrans(dict(zip(_SPECIAL, (f"\\{char}" for char in _SPECIAL), strict=True)))


def place(text: str) -> Place:
    """What *text* points at: `hdfs://...` and its like elsewhere; `file:` and anything without a scheme here.

    Raises:
        ValueError: `file://` with a host. The message is one line.
    """
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() != "file":
        return Remote(text.rstrip("/") if text.rstrip("/") != f"{found[1]}:" else text)
    path = text[len("file:") :]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise ValueError(f"{text!r} names a host; expected file:///path")
        path = slash + rest
    return Path(path)


def uri(where: Place) -> str:
    """*where* as Spark writes to it, or declares a table at it."""
    return where.uri if isinstance(where, Remote) else f"file://{where.resolve()}"


def pattern(where: Place) -> str:
    """*where* as Spark reads it: no character of its name means anything else."""
    return uri(where).translate(_ESCAPED)


def files_below(directory: Place) -> Iterator[tuple[Place, tuple[str, ...], int]]:
    """Every file below *directory*, hidden ones too: where, the names that lead to it, its size. In no order.

    Raises:
        OSError: a directory cannot be read: what is in it would be missing without a sign.
    """
    return directory.files() if isinstance(directory, Remote) else local_files(directory)


def local_files(directory: Path) -> Iterator[tuple[Path, tuple[str, ...], int]]:
    """The same of this machine. Links to directories are followed, into each directory once."""
    entered = {os.path.realpath(directory)}
    for root, below, names in os.walk(directory, onerror=_fail, followlinks=True):
        real = {os.path.realpath(os.path.join(root, name)): name for name in sorted(below, reverse=True)}
        below[:] = [name for path, name in real.items() if path not in entered]
        entered |= real.keys()
        for name in names:
            path = Path(root, name)
            with suppress(FileNotFoundError):  # it got another name, or was deleted, since it was listed
                yield path, path.relative_to(directory).parts, path.stat().st_size


def _fail(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # deleted since it was listed
        raise error


def size_of(where: Place) -> int:
    """Bytes of the file at *where*."""
    return where.size() if isinstance(where, Remote) else where.stat().st_size


def open_file(where: Place) -> BinaryIO:
    """The file at *where*, to be read from any position."""
    return where.open() if isinstance(where, Remote) else where.open("rb")


def write_text(where: Place, text: str) -> None:
    """Put *text* in place of what is at *where*. A reader sees the old file or the new one, never a part."""
    if isinstance(where, Remote):
        where.write_text(text)
        return
    hidden = where.with_name(f".{where.name}.tmp")
    try:
        with hidden.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(where)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(where)) from None


def sync(path: Path) -> None:
    """Wait until the file or directory *path* is on the disk: what is written down after it must not outlive it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(directory: Place) -> None:
    """Delete *directory* with all that is in it, as far as that goes."""
    if isinstance(directory, Remote):
        directory.remove_tree()
    else:
        shutil.rmtree(directory, ignore_errors=True)
