"""A directory that files are shipped to, wherever it is: this machine, HDFS, an object
store. By way of `pyarrow.fs`.

One rule: *what has its name is whole*. Bytes go to a hidden name, are read back and
compared, and then get their name: by a rename where there is one, by a copy within the
store and a deletion where there is none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from posixpath import dirname, join
from typing import IO, Any

import pyarrow as pa
from pyarrow import fs

from ..errors import InvalidArgument, one_line

CHUNK = 1 << 20

FAILURES = (OSError, pa.ArrowException)
"""What a file system may raise."""

STORES = {"s3", "gcs", "abfs"}
"""File systems without directories: names are all there is."""

_ASK = """
import resource, sys
from pyarrow import fs
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
files, root = fs.FileSystem.from_uri(sys.stdin.read())
files.get_file_info(root.split("/")[0])
"""

_URI = re.compile(r"[a-z][a-z0-9+.-]+:/|file:", re.IGNORECASE)


class Place:
    """The directory that *uri* names: a path of this machine, or a URI that
    `pyarrow.fs` knows (`s3a:` is `s3:`).

    Raises:
        InvalidArgument: it is no URI of a known kind. The message is one line.
    """

    def __init__(self, uri: str) -> None:
        self.uri: str = without_secrets(uri)
        self._given = "s3" + uri.removeprefix("s3a") if uri.startswith("s3a:") else uri
        with self._refused():
            if _URI.match(uri) is None:
                self.files: Any = fs.LocalFileSystem()
                self._root: str = str(Path(uri).resolve())
            else:
                self.files, self._root = fs.FileSystem.from_uri(self._given)
        self._flat = self.files.type_name in STORES

    def reach(self) -> None:
        """Make the directory, if it is missing; of a store, look for its bucket.

        Raises:
            InvalidArgument: it cannot be reached. The message is one line.
        """
        bucket = self._root.split("/")[0]
        with self._refused():
            if (
                self.files.type_name == "abfs"
            ):  # whose library ends the process where it finds no credentials
                self._ask_elsewhere()
            if not self._flat:
                self.files.create_dir(self._root, recursive=True)
            elif self.files.get_file_info(bucket).type == fs.FileType.NotFound:
                raise FileNotFoundError(f"there is no {bucket}")

    def _ask_elsewhere(self) -> None:
        """Ask for the bucket in a process of its own. Raises PermissionError where a
        signal ended that process.
        """
        done = subprocess.run(
            [sys.executable, "-c", _ASK],
            input=self._given,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode < 0:
            said = [
                line.partition("what():")[2].strip()
                for line in done.stderr.splitlines()
                if "what():" in line
            ]
            raise PermissionError(
                said[0] if said else f"its library ended with signal {-done.returncode}"
            )

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except (*FAILURES, ValueError, NotImplementedError) as error:
            wanted = (
                "a directory, or a URI with file, s3, gs, hdfs, viewfs or abfs that can be reached"
            )
            why = str(error).replace(self._given, without_secrets(self._given))  # before it is cut
            why = one_line(why or type(error).__name__)
            raise InvalidArgument(f"{self.uri!r} is not {wanted}: {why}") from None

    @property
    def local(self) -> Path | None:
        """The directory as a path; None if it is not on this machine."""
        return Path(self._root) if isinstance(self.files, fs.LocalFileSystem) else None

    def size(self, name: str) -> int | None:
        """How many bytes the file *name* has. None: there is no such file."""
        info = self.files.get_file_info(self._path(name))
        return info.size if info.type == fs.FileType.File else None

    def digest(self, name: str) -> bytes:
        """The digest of the bytes of *name*, which are read from where they lie."""
        with self.files.open_input_stream(self._path(name), buffer_size=0) as stream:
            return digest_of(stream.read)

    def write(self, name: str, source: IO[bytes]) -> None:
        """Write what *source* holds as *name*, in place of whatever is there. On this
        machine it is on the disk afterwards.
        """
        path = self._path(name)
        if not self._flat:
            self.files.create_dir(dirname(path), recursive=True)
        stream = self.files.open_output_stream(path)
        while chunk := source.read(CHUNK):
            stream.write(chunk)
        stream.close()  # not in a `finally`: a store would put in place what there is
        self._sync(path)

    def rename(self, name: str, final: str) -> None:
        """Rename *name* to *final*."""
        self.files.move(self._path(name), self._path(final))
        self._sync(dirname(self._path(final)))

    def remove(self, name: str) -> None:
        """Delete *name*, if it is there."""
        with suppress(*FAILURES):
            self.files.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return join(self._root, name)

    def _sync(self, path: str) -> None:
        if self.local is not None:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def digest_of(read: Callable[[int], bytes]) -> bytes:
    """The digest of all that *read* gives."""
    digest = blake2b(digest_size=16)
    while chunk := read(CHUNK):
        digest.update(chunk)
    return digest.digest()


def without_secrets(uri: str) -> str:
    """*uri* as it may be shown: without the name and password before its host, and
    without its options.

    A password may have a `/` in it, though a URI may not: behind a colon all is taken
    for one, up to the last `@`.
    """
    return re.sub(r"(?<=//)(?:[^/:]*:.*|[^/]*)@", "", uri).partition("?")[0]
