"""Files of the file systems that Hadoop knows: `hdfs:`, `s3a:`, `abfs:`, `gs:`, `viewfs:` and what else Spark reads.

The rule of this module: *Spark's own Java opens them*, with Spark's own settings and credentials; what goes wrong is an
OSError of one line. They are reached once a session has started; not through Spark Connect, whose Java is elsewhere.
"""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from functools import total_ordering
from threading import Thread
from typing import Any, BinaryIO, TypeVar

from ..errors import one_line

T = TypeVar("T")

PATIENCE_S = 20.0
"""How long a file system may take to answer for the first time. Hadoop itself tries a dead name node for 15 minutes."""

KNOCK_S = 10.0
"""How long a name node may take to accept a connection."""

_IMPATIENT = {
    "ipc.client.connect.timeout": "5000",
    "ipc.client.connect.max.retries": "1",
    "ipc.client.connect.max.retries.on.timeouts": "1",
    "ipc.client.connect.retry.interval": "500",
    "dfs.client.retry.policy.enabled": "false",
    "dfs.client.failover.max.attempts": "2",
    "fs.s3a.attempt.maximum": "2",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.connection.establish.timeout": "5000",
    "fs.azure.io.retry.max.retries": "1",
    "fs.gs.http.connect-timeout": "5000",
    "fs.gs.http.max.retry": "1",
}
"""For the first question alone: those that follow have the patience that the cluster's own settings give them."""


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


def _line(error: Exception) -> str:
    """What the Java exception behind *error* says, in one line."""
    thrown = getattr(error, "java_exception", None)
    return one_line(error if thrown is None else f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}")


@total_ordering
class Remote:
    """A file or directory of another file system. Its methods are those of `pathlib.Path`, as far as they go.

    Raises:
        Unreachable: any of them: what Hadoop says.
    """

    __slots__ = ("uri",)

    def __init__(self, uri: str) -> None:
        scheme, _, path = uri.partition(":")
        stripped = path.rstrip("/")
        self.uri: str = f"{scheme}:{stripped or '/'}" if stripped.strip("/") else f"{scheme}:{path}"

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"Remote({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other.uri == self.uri

    def __lt__(self, other: Remote) -> bool:
        return self.uri < other.uri

    def __hash__(self) -> int:
        return hash(self.uri)

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

    def with_name(self, name: str) -> Remote:
        return self.parent / name

    def resolve(self) -> Remote:
        """As Hadoop spells it out: with the authority that the settings give it."""
        return Remote(self._ask(lambda files, path: files.makeQualified(path).toString()))

    def exists(self) -> bool:
        return bool(self._ask(lambda files, path: files.exists(path)))

    def is_dir(self) -> bool:
        return self.exists() and bool(self._ask(lambda files, path: files.getFileStatus(path).isDirectory()))

    def is_file(self) -> bool:
        return self.exists() and not self.is_dir()

    def iterdir(self) -> Iterator[Remote]:
        found = self._ask(lambda files, path: [status.getPath().toString() for status in files.listStatus(path)])
        return map(Remote, found)

    def files(self) -> Iterator[tuple[Remote, tuple[str, ...], int]]:
        """See `places.files_below`."""

        def listed(files: Any, path: Any) -> list[tuple[str, int]]:
            found, walk = [], files.listFiles(path, True)
            while walk.hasNext():
                status = walk.next()
                found.append((status.getPath().toString(), status.getLen()))
            return found

        above = self.resolve().uri.rstrip("/") + "/"
        for name, size in self._ask(listed):
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

    def replace(self, target: Any) -> None:
        """Give this the name *target*. A file or an empty directory there makes room; a directory that is not empty is
        left alone, and this fails. Hadoop cannot do it in one step: for a moment nothing has the name.
        """

        def replace(files: Any, path: Any) -> bool:
            there = _java()[0].org.apache.hadoop.fs.Path(str(target))
            files.delete(there, False)  # Hadoop would move the source into a directory
            return bool(files.rename(path, there))

        if not self._ask(replace):
            raise Unreachable(f"{self} cannot be renamed to {target}")

    def open(self) -> BinaryIO:
        """The file, to be read from any position."""

        def opened(files: Any, path: Any) -> BinaryIO:
            reader = _Reader(self, files.open(path), files.getFileStatus(path).getLen())
            return io.BufferedReader(reader, 1 << 16)

        return self._ask(opened)

    def write_bytes(self, content: bytes) -> None:
        def write(files: Any, path: Any) -> None:
            stream = files.create(path, True)
            try:
                stream.write(content)
            finally:
                stream.close()

        self._ask(write)

    def _ask(self, question: Callable[[Any, Any], T]) -> T:
        """What *question* is answered, asked of (the file system, this path)."""
        java, settings = _java()
        try:
            path = java.org.apache.hadoop.fs.Path(self.uri)
            return question(path.getFileSystem(settings), path)
        except OSError:
            raise
        except Exception as error:
            raise Unreachable(f"{self}: {_line(error)}") from None


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
            raise Unreachable(f"{self._where}: {_line(error)}") from None
        buffer[:wanted] = read
        self._at += wanted
        return wanted

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):
                self._stream.close()
        super().close()


def knock(where: Remote) -> None:
    """Make sure that the name node listens which *where* names by its port: before Spark is started, in no time.

    Raises:
        Unreachable: it does not. One that is named without a port is left to `reach`.
    """
    found = re.match(r"hdfs://(?:[^/@]*@)?(\[[^\]]+\]|[^/:]+):(\d{1,5})(?:/|$)", where.uri, re.IGNORECASE)
    if found is None:
        return
    try:
        socket.create_connection((found[1].strip("[]"), int(found[2])), KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise Unreachable(f"{where} cannot be reached: {error}") from None


def reach(wanted: Iterable[Remote]) -> None:
    """Ask the file system of each of *wanted* once, with little patience.

    Raises:
        Unreachable: one does not answer, or Spark knows none of its scheme.
    """
    asked: set[str] = set()
    for where in wanted:
        scheme, _, rest = where.uri.partition(":")
        system = f"{scheme}://{rest[2:].partition('/')[0] if rest.startswith('//') else ''}"
        if system not in asked:
            asked.add(system)
            _answers(where, system)


def _answers(where: Remote, system: str) -> None:
    java, theirs = _java()
    answer: Future[None] = Future()

    def ask() -> None:
        try:
            settings = java.org.apache.hadoop.conf.Configuration(theirs)
            for key, value in _IMPATIENT.items():
                settings.set(key, value)
            path = java.org.apache.hadoop.fs.Path(where.uri)
            files = java.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), settings)
            try:
                files.exists(path)
            finally:
                files.close()
            answer.set_result(None)
        except Exception as error:
            answer.set_exception(error)

    Thread(target=ask, daemon=True).start()
    try:
        answer.result(PATIENCE_S)
    except TooLate:
        raise Unreachable(f"no answer from {system} within {PATIENCE_S:g} s ({where})") from None
    except Exception as error:
        said = _line(error)
        if "ClassNotFoundException" in said or "No FileSystem for scheme" in said:
            said = (
                f"Spark has no jar for {system.partition('//')[0]} ({said}); docs/cluster.md says which, for --packages"
            )
        raise Unreachable(f"{where} cannot be reached: {said}") from None
