"""Where an argument points: a path of this machine, or a URI of any file system that
Spark can reach.

The rule of this module: *a path without a scheme is this machine's*, whatever
`fs.defaultFS` says: Spark is given every path with its scheme. What lies elsewhere
(`hdfs:`, `s3a:`, `abfs:`, `gs:`, `viewfs:` and the like) Spark's own Java opens, with
Spark's own settings and credentials, once a session has started; not through Spark
Connect, whose Java is elsewhere. No Spark is imported before.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from ..errors import one_line

DAMAGED = "it is damaged or cut"
"""What both engines say of a compressed file that ends too early."""

T = TypeVar("T")

PATIENCE_S = 20.0
"""How long a file system may take to say what exists. Hadoop itself tries a dead name
node for 15 minutes.
"""

MAGIC = b"PAR1"
"""The first and the last bytes of a Parquet file."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_SPECIAL = "\\{}[]*?"
"""What Spark and Hadoop would take for a pattern."""
_ESCAPED = str.maketrans({char: f"\\{char}" for char in _SPECIAL})


class Unreachable(OSError):
    """A file system does not answer, or not as asked. The message is one line."""


def _java() -> tuple[Any, Any]:
    """The Java that Spark runs in here, and Hadoop's settings in it."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is None:
        raise Unreachable(
            "URIs need a driver here: Spark Connect has none; mount the files and give their path"
        )
    return SparkContext._jvm, context._jsc.hadoopConfiguration()


@dataclass(frozen=True, order=True)
class Remote:
    """A file or directory of another file system. Its methods are those of
    `pathlib.Path`, as far as they go.

    Raises:
        Unreachable: any of them: what Hadoop says.
    """

    uri: str
    """Without a `/` at its end."""

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.uri.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    def exists(self) -> bool:
        """Within `PATIENCE_S`: the first question to a file system is whether it is
        there.
        """
        answer: Future[bool] = Future()

        def ask() -> None:
            try:
                answer.set_result(bool(self._ask(lambda files, path: files.exists(path))))
            except Exception as error:
                answer.set_exception(error)

        Thread(target=ask, daemon=True).start()
        try:
            return answer.result(PATIENCE_S)
        except TooLate:
            raise Unreachable(f"{self}: no answer within {PATIENCE_S:g} s") from None

    def iterdir(self) -> Iterator[Remote]:
        found = self._ask(
            lambda files, path: [status.getPath().toString() for status in files.listStatus(path)]
        )
        return map(Remote, found)

    def files(self) -> Iterator[tuple[Remote, tuple[str, ...], int]]:
        """See `files_below`."""

        def listed(files: Any, path: Any) -> tuple[str, list[tuple[str, int]]]:
            found, walk = [], files.listFiles(path, True)
            while walk.hasNext():
                status = walk.next()
                found.append((status.getPath().toString(), status.getLen()))
            return files.makeQualified(path).toString().rstrip("/"), found

        above, found = self._ask(listed)
        for name, size in found:
            yield Remote(name), tuple(name.removeprefix(above).split("/")[1:]), size

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Made with its parents, if missing. The arguments are pathlib's and mean
        nothing here.
        """
        if not self._ask(lambda files, path: files.mkdirs(path)):
            raise Unreachable(f"{self}: the directory cannot be made")

    def remove(self) -> None:
        """See `remove`."""
        with suppress(Unreachable):
            self._ask(lambda files, path: files.delete(path, True))

    def footer(self, size: int) -> bytes:
        """The footer of the Parquet file of *size* bytes that is here, as a Parquet
        file without rows.

        What is no Parquet file is returned as its last bytes, which are none either.
        """

        def end(files: Any, path: Any) -> bytes:
            stream = files.open(path)

            def read(length: int) -> bytes:
                stream.seek(size - length)
                return bytes(_java()[0].org.apache.commons.io.IOUtils.toByteArray(stream, length))

            try:
                last = read(min(8, size))
                length = int.from_bytes(last[:4], "little") + 8
                return MAGIC + read(length) if last[4:] == MAGIC and length <= size else last
            finally:
                stream.close()

        return self._ask(end)

    def write_text(self, text: str) -> None:
        """Put *text* in place of what is here: under a hidden name first. Hadoop cannot
        replace a file in one step: for a moment nothing has the name.
        """

        def write(files: Any, path: Any) -> bool:
            hidden = _java()[0].org.apache.hadoop.fs.Path(path.getParent(), f".{self.name}.tmp")
            stream = files.create(hidden, True)
            try:
                stream.write(text.encode())
            finally:
                stream.close()
            files.delete(path, False)
            return bool(files.rename(hidden, path))

        if not self._ask(write):
            raise Unreachable(f"{self} cannot be replaced")

    def _ask(self, question: Callable[[Any, Any], T]) -> T:
        """The answer to *question*, a function of (the file system, this path)."""
        java, settings = _java()
        try:
            path = java.org.apache.hadoop.fs.Path(self.uri)
            return question(path.getFileSystem(settings), path)
        except OSError:
            raise
        except Exception as error:
            raise Unreachable(f"{self} cannot be reached: {_line(error)}") from None


def _line(error: Exception) -> str:
    """What the Java exception behind *error* says, in one line."""
    thrown = getattr(error, "java_exception", None)
    text = one_line(
        error if thrown is None else f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}"
    )
    if "ClassNotFoundException" in text or "No FileSystem for scheme" in text:
        return (
            f"Spark has no jar for its scheme ({text}); docs/cluster.md says which, for --packages"
        )
    return text


Place = Path | Remote
"""What both have in common: `/`, name, exists, iterdir, mkdir."""


def place(text: str) -> Place:
    """What *text* points at: `hdfs://...` and its like elsewhere; `file:` and anything
    without a scheme here.

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


def files_below(where: Place) -> Iterator[tuple[Place, tuple[str, ...], int]]:
    """Every file below *where*, hidden ones too: its place, the names that lead to it,
    its size. In no order. If *where* is a file, that file alone.

    Raises:
        OSError: a directory cannot be read: what is in it would be missing without a
            sign.
    """
    if isinstance(where, Remote):
        return where.files()
    return iter([(where, (), where.stat().st_size)]) if where.is_file() else local_files(where)


def local_files(directory: Path) -> Iterator[tuple[Path, tuple[str, ...], int]]:
    """The same of this machine. Links to directories are followed, into each directory
    once.
    """
    entered = {os.path.realpath(directory)}
    for root, below, names in os.walk(directory, onerror=_fail, followlinks=True):
        real = {
            os.path.realpath(os.path.join(root, name)): name for name in sorted(below, reverse=True)
        }
        below[:] = [name for path, name in real.items() if path not in entered]
        entered |= real.keys()
        for name in names:
            path = Path(root, name)
            with suppress(
                FileNotFoundError
            ):  # it got another name, or was deleted, since it was listed
                yield path, path.relative_to(directory).parts, path.stat().st_size


def _fail(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # deleted since it was listed
        raise error


def write_text(where: Place, text: str) -> None:
    """Put *text* in place of what is at *where*. A reader sees the old file or the new
    one, never a part.
    """
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
    """Wait until the file or directory *path* is on the disk: what is written down
    after it must not outlive it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(where: Place) -> None:
    """Delete the file at *where*, or the directory with all that is in it, as far as
    that goes.
    """
    if isinstance(where, Remote):
        where.remove()
    elif where.is_dir():
        shutil.rmtree(where, ignore_errors=True)
    else:
        where.unlink(missing_ok=True)
