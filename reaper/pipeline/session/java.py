"""The Java below Spark: found or named when it is missing, and started quickly.

One rule: *what speeds a start up never stops one*. An archive of classes that does not fit is ignored by Java itself, a
directory that cannot be written has none, and a flag that the user has an opinion on is left alone.

Most of what a short command costs is Java loading ten thousand classes of Spark and compiling them well, for a life of
seconds. So classes are read from an archive (class data sharing), written once, when the first command of a Spark and a
Java has ended; and where little is to be read, the quick compiler and the simple collector do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

JAVA_LEAST = 17
"""Spark 4 asks for it."""

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""The quick compiler and the simple collector: for a Java that lives for seconds."""

LITTLE_BYTES = 192 << 20
"""Some ten million rows of a journal: compiling well would cost more than it saves."""

ABANDONED_S = 600.0
"""An archive that is still unfinished after so long has lost its Java."""

_OPINIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where users give flags to every Java, or to every Spark."""


class NoSpark(Exception):
    """Spark cannot work here. The message is one line that says what to do."""


class NoJava(NoSpark):
    """Spark cannot start here. The message is one line that says what to install."""


def check_java() -> str:
    """Make sure that Spark would find a Java it can use; returns what it says of its version.

    Raises:
        NoJava: none, or one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    wanted = (
        f"Spark needs Java {JAVA_LEAST} or newer: install a runtime (Debian: apt-get install openjdk-17-jre-headless)"
    )
    if shutil.which(java) is None:
        raise NoJava(f"{wanted}; found none{f' at JAVA_HOME={home}' if home else ' on PATH'}")
    shown = subprocess.run([java, "-Xshare:auto", "-version"], capture_output=True, text=True, check=False)
    said = shown.stderr + shown.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < JAVA_LEAST:
        raise NoJava(f"{wanted}; {java} is {'of unknown version' if found is None else f'version {found[1]}'}")
    return said


def flags(java: str, spark_home: Path, *, quick: bool) -> list[str]:
    """What to start Spark's Java with.

    Args:
        java: What it says of its version, see `check_java`.
        spark_home: Its Spark.
        quick: It will live for seconds.
    """
    opinions = _opinions()
    sharing = "SharedArchiveFile" not in opinions and "-Xshare" not in opinions
    return [*(quick_flags() if quick else ()), *(_sharing(java, spark_home) if sharing else ())]


def quick_flags() -> list[str]:
    """Those of `QUICK` on which the user has no opinion. Of two collectors Java would say no more than that."""
    opinions = _opinions()
    given = ("Tiered" in opinions, re.search(r"-XX:[+]Use\w+GC", opinions))
    return [flag for flag, theirs in zip(QUICK, given, strict=True) if not theirs]


def _opinions() -> str:
    return " ".join(os.environ.get(name, "") for name in _OPINIONS)


def little(given: Iterable[object]) -> bool:
    """Whether there is so little to read below the paths *given* that Java lives for seconds. Elsewhere than on this
    machine, that is not known.
    """
    total = 0
    for where in given:
        if not isinstance(where, Path):
            return False
        with contextlib.suppress(OSError):
            for path in where.rglob("*") if where.is_dir() else (where,):
                total += path.stat().st_size
                if total > LITTLE_BYTES:
                    return False
    return True


def cache() -> Path:
    """Where archives are kept: below the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "reaper", "java")


def _sharing(java: str, spark_home: Path) -> list[str]:
    """Flags that read classes from their archive; where there is none yet, that write one when Java ends."""
    try:
        jars = spark_home / "jars"
        known = f"{java}\n{jars.resolve()}\n{jars.stat().st_mtime_ns}"
        archive = cache() / f"{hashlib.blake2b(known.encode(), digest_size=12).hexdigest()}.jsa"
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = _adopt(archive)
        # Without -Xlog:disable, a Java that cannot use an archive would say so among the command's own results.
        if archive.exists():
            return ["-Xlog:disable", f"-XX:SharedArchiveFile={archive}"]
        if unfinished:
            return []
        return ["-Xlog:disable", f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}"]
    except (OSError, RuntimeError):  # no home, or none that can be written
        return []


def _adopt(archive: Path) -> bool:
    """Give a finished archive its name; whether one is still being written.

    Java writes the header of an archive last: one whose first bytes are there is whole.
    """
    unfinished = False
    for part in archive.parent.glob(f"{archive.name}.*"):
        with contextlib.suppress(OSError):
            with part.open("rb") as file:
                whole = any(file.read(8))
            if whole:
                part.replace(archive)
            elif time.time() - part.stat().st_mtime > ABANDONED_S:
                part.unlink()
            else:
                unfinished = True
    return unfinished
