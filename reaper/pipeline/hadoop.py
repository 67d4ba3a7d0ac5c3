"""Files of the file systems that Hadoop knows: `hdfs:`, `s3a:`, `abfs:`, `gs:`, `viewfs:` and what else Spark reads.

The rule of this module: *Spark's own Java opens them*, with Spark's own settings and credentials; what goes wrong is an
OSError of one line. They are reached once a session has started; not through Spark Connect, whose Java is elsewhere.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, BinaryIO, TypeVar

from ..errors import one_line

T = TypeVar("T")

PATIENCE_S = 20.0
"""How long a file system may take to say what exists. Hadoop itself tries a dead name node for 15 minutes."""


class Unreachable(OSError):
    """A file system does not answer, or not as asked. The message is one line."""


def _java() -> tuple[Any, Any]:
    """The Java that Spark runs in here, and Hadoop's settings in it."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        raise Unreachable("URIs need a driver here: Spark Connect has none; mount the files and give their path")
    hadoop: Any = context
    return SparkContext._jvm, hadoop._jsc.hadoopConfiguration()


@dataclass(frozen=True, order=True)
class Remote:
    """A file or directory of another file system. Its methods are those of `pathlib.Path`, as far as they go.

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

    @property
    def suffix(self) -> str:
        _, dot, end = self.name.rpartition(".")
        return dot + end if dot else ""

    @property
    def parent(self) -> Remote:
        return Remote(self.uri.rpartition("/")[0] or self.uri)

    def exists(self) -> bool:
        """Within `PATIENCE_S`: the first question to a file system is whether it is there."""
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

    def is_dir(self) -> bool:
        return self.exists() and bool(self._ask(lambda files, path: files.getFileStatus(path).isDirectory()))

    def is_file(self) -> bool:
        return self.exists() and not self.is_dir()

    def iterdir(self) -> Iterator[Remote]:
        found = self._ask(lambda files, path: [status.getPath().toString() for status in files.listStatus(path)])
        return map(Remote, found)

    def files(self) -> Iterator[tuple[Remote, tuple[str, ...], int]]:
        """See `places.files_below`."""

        def listed(files: Any, path: Any) -> tuple[str, list[tuple[str, int]]]:
            found, walk = [], files.listFiles(path, True)
            while walk.hasNext():
                status = walk.next()
                found.append((status.getPath().toString(), status.getLen()))
            return files.makeQualified(path).toString().rstrip("/") + "/", found

        above, found = self._ask(listed)
        for name, size in found:
            yield Remote(name), tuple(name.removeprefix(above).split("/")), size

    def size(self) -> int:
        """Bytes."""
        return int(self._ask(lambda files, path: files.getFileStatus(path).getLen()))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Made with its parents, if missing. The arguments are pathlib's and mean nothing here."""
        if not self._ask(lambda files, path: files.mkdirs(path)):
            raise Unreachable(f"{self}: the directory cannot be made")

    def unlink(self) -> None:
        self._ask(lambda files, path: files.delete(path, False))

    def remove_tree(self) -> None:
        with suppress(Unreachable):
            self._ask(lambda files, path: files.delete(path, True))

    def open(self) -> BinaryIO:
        """The file, to be read from any position."""

        def opened(files: Any, path: Any) -> BinaryIO:
            reader = _Reader(self, files.open(path), files.getFileStatus(path).getLen())
            return io.BufferedReader(reader, 1 << 16)

        return self._ask(opened)

    def write_text(self, text: str) -> None:
        """Put *text* in place of what is here: under a hidden name first. Hadoop cannot replace a file in one step: for
        a moment nothing has the name.
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
        """What *question* is answered, asked of (the file system, this path)."""
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
    text = one_line(error if thrown is None else f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}")
    if "ClassNotFoundException" in text or "No FileSystem for scheme" in text:
        return f"Spark has no jar for its scheme ({text}); docs/cluster.md says which, for --packages"
    return text


class _Reader(io.RawIOBase):
    """A Hadoop stream as Python reads files. Each read is one exchange with Java."""

    def __init__(self, where: Remote, stream: Any, size: int) -> None:
        super().__init__()
        self._where, self._stream, self._size, self._at = where, stream, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        try:
            self._stream.seek(self._at)
            read = _java()[0].org.apache.commons.io.IOUtils.toByteArray(self._stream, wanted)
        except Exception as error:
            raise Unreachable(f"{self._where} cannot be read: {_line(error)}") from None
        buffer[:wanted] = read
        self._at += wanted
        return wanted

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):
                self._stream.close()
        super().close()
