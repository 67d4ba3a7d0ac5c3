"""One JVM that measures a peer of ours, at arm's length: found, compiled, started, asked a line at a time.

One rule: *nothing outlives the block that started it*. The process ends when its input does, so it ends with us too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "jvm"
JARS = (
    "netty-common",
    "netty-buffer",
    "netty-resolver",
    "netty-transport",
    "netty-handler",
    "netty-codec-base",
    "zookeeper",
    "slf4j-api",
)
"""What the peers need of the jars that come with pyspark: the name before its version."""

PATIENCE = 180.0
"""Seconds for one answer; far more than any takes."""


class Missing(Exception):
    """What the JVM peers need is not installed. The message says what, and what would bring it."""


def tool(name: str) -> str:
    """Where the JDK's *name* is. Raises Missing if neither JAVA_HOME nor the PATH has it."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=os.path.join(home, "bin")) if home else None
    found = found or shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed (Debian package openjdk-17-jdk-headless)")
    return found


def jars() -> dict[str, Path]:
    """The jars by the names in `JARS`. Raises Missing where pyspark or one of them is absent."""
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that would take a second
    if spec is None or spec.origin is None:
        raise Missing("pyspark is not installed; the peers' jars come with it: pip install pyspark")
    folder = Path(spec.origin).parent / "jars"
    found = {}
    for name in JARS:
        matches = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not matches:
            raise Missing(f"{name}-*.jar is not among pyspark's jars in {folder.name}/")
        found[name] = matches[0]
    return found


def versions() -> dict[str, str]:
    """The version in each jar's name."""
    return {name: path.stem.removeprefix(f"{name}-") for name, path in jars().items()}


def compiled(into: Path) -> str:
    """Compile the peers into the folder *into* and return the class path to run them with. About 3 s.

    Raises:
        Missing: No compiler, no jars.
        RuntimeError: The compiler refused; with its words.
    """
    path = os.pathsep.join(str(jar) for jar in jars().values())
    sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
    command = [tool("javac"), "-Xlint:all", "-Werror", "-proc:none", "-cp", path, "-d", str(into), *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"javac: {done.stderr or done.stdout}")
    return os.pathsep.join([path, str(into)])


class Jvm:
    """A running peer. What it says on stderr is kept in *log* for the day it fails."""

    def __init__(self, class_path: str, peer: str, connections: int, warm_ms: int, heap: str, log: Path) -> None:
        self.peer = peer
        self._log = log
        command = [tool("java"), f"-Xmx{heap}", "-cp", class_path, "Bench", peer, str(connections), str(warm_ms)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        # The kernel's number for "CPU clock of that process": all its threads, those that have ended as well.
        self._clock = ~self._process.pid << 3 | 2

    def cpu_ns(self) -> int:
        """CPU nanoseconds of the whole process so far: every thread of its own, the collector and the compiler."""
        return time.clock_gettime_ns(self._clock)

    def tell(self, line: str) -> None:
        """Send a line; `answer` gives what comes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """The next line of JSON it says.

        Raises:
            RuntimeError: It ended, or said nothing for `PATIENCE` seconds; with the end of what it said on stderr.
        """
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            words = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the JVM with {self.peer} {'ended' if ready else 'does not answer'}: {words}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str) -> dict[str, Any]:
        """`tell`, then `answer`."""
        self.tell(line)
        return self.answer()

    def end(self) -> None:
        """Close its input, and wait; kill it if that does not help. Harmless if it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def running(
    class_path: str, peers: Mapping[str, int], warm_ms: int, heap: str, folder: Path
) -> Iterator[dict[str, tuple[Jvm, dict[str, Any]]]]:
    """A JVM for each of *peers* (name -> connections), with what it said when it was ready; all ended after the block.

    They start together, and so warm up side by side.
    """
    started: dict[str, Jvm] = {}
    try:
        for peer, connections in peers.items():
            log = folder / f"{peer}.log"
            started[peer] = Jvm(class_path, peer, connections, warm_ms, heap, log)
        yield {peer: (jvm, jvm.answer()) for peer, jvm in started.items()}
    finally:
        for jvm in started.values():
            jvm.end()
