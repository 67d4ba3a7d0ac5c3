"""A session that stays: Spark started once, and found by the commands that come after.

One rule: *a command never waits for a session that is not there*. What is found is looked at first: its process lives
and is the one that wrote the file, it is of this release and this Spark, and it listens. Else Spark is started as if
there were none, and one line says why.

Below `place()` lie `session.json` (who and where, with the token that lets this user in), `session.log` and
`session.lock`. A command holds the lock, shared, for as long as it works; held alone, it says that none does. So
the session can end when it is idle, and no command ever finds it leaving.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

PATIENCE_S = 2.0
"""How long a session on this machine may take to accept a connection."""

ELSEWHERE = ("SPARK_REMOTE", "MASTER", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT")
"""Who sets one of these has said where or how Spark is to run."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A session that stays, as its process describes it."""

    pid: int
    born: int
    """When the process began, in the kernel's own ticks: a number that was given to another process is told by it."""
    port: int
    token: str
    release: str
    started: float
    """Unix time, seconds."""
    idle_s: float
    """It ends when no command has used it for so long."""
    warm: bool = False
    """Whether it has asked itself all that it means to, see `reaper.pipeline.warm`."""

    @property
    def url(self) -> str:
        """For Spark Connect. `localhost`: to no other host does Connect send a token without TLS."""
        return f"sc://localhost:{self.port}/;token={self.token}"

    @property
    def alive(self) -> bool:
        """Whether its process still is that process."""
        return born(self.pid) == self.born

    @property
    def listens(self) -> bool:
        """Whether it accepts connections."""
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), PATIENCE_S).close()
            return True
        return False


def release() -> str:
    """This release and this Spark. A session of another one is not used."""
    found = []
    for name in ("idle-reaper", "pyspark"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} of unknown version")
    return ", ".join(found)


def place() -> Path:
    """The directory of this user's session: `REAPER_SESSION`, or below the user's runtime directory."""
    if given := os.environ.get("REAPER_SESSION"):
        return Path(given)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "reaper") if runtime else Path(tempfile.gettempdir(), f"reaper-{os.getuid()}")


def born(pid: int) -> int | None:
    """When the process *pid* began; None: there is none."""
    try:
        if not Path("/proc/self/stat").exists():  # no Linux: a number is then all that is known
            os.kill(pid, 0)
            return 0
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *others = told.rpartition(")")[2].split()
    return None if state == "Z" else int(others[18])


def ours(where: Path) -> bool:
    """Whether *where* is a directory of this user's: no link, which its owner could turn elsewhere."""
    try:
        found = where.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def load(where: Path) -> Standing | None:
    """What `session.json` in *where* says; None: there is none, or it is none of ours."""
    file = where / "session.json"
    try:
        if not ours(where) or file.stat().st_uid != os.getuid():
            return None  # another user could have put a server of theirs there
        found = json.loads(file.read_text(encoding="utf-8"))
        kinds = {"pid": int, "born": int, "port": int, "token": str, "release": str}
        kinds |= {"started": float, "idle_s": float, "warm": bool}
        return Standing(**{f.name: kinds[f.name](found[f.name]) for f in fields(Standing)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(where: Path, standing: Standing) -> None:
    """Write *standing* into *where*, readable by this user alone; it appears whole."""
    part = where / ".session.json"
    with open(part, "w", encoding="utf-8", opener=lambda path, how: os.open(path, how, 0o600)) as file:
        json.dump(asdict(standing), file)
    part.replace(where / "session.json")


def forget(where: Path) -> None:
    """Take the description in *where* away."""
    (where / "session.json").unlink(missing_ok=True)


@contextmanager
def locked(where: Path, how: int) -> Iterator[IO[bytes]]:
    """The lock in *where*, held. Raises BlockingIOError where *how* has LOCK_NB and it is held otherwise."""
    with (where / "session.lock").open("ab") as lock:
        fcntl.flock(lock, how)
        yield lock


@contextmanager
def found(note: Callable[[str], None]) -> Iterator[Standing | None]:
    """The session that stays, kept from ending meanwhile; None: there is none that can be used.

    Args:
        note: Gets the one line that says why one that was there is not used.
    """
    where = place()
    if any(os.environ.get(name) for name in ELSEWHERE) or load(where) is None:
        yield None
        return
    with locked(where, fcntl.LOCK_SH) as lock:
        standing = load(where)  # again: it may have ended while the lock was waited for
        if standing is None:
            said = ""
        elif standing.release != release():
            said = f"it is of {standing.release}, this is {release()}"
        elif not standing.alive or not standing.listens:
            said = "its process has ended" if not standing.alive else "it does not answer"
        else:
            os.utime(lock.fileno())
            try:
                yield standing
            finally:
                os.utime(lock.fileno())
            return
    if said:
        note(f"the session that stays is not used: {said}; python -m reaper.pipeline session stop ends it")
    yield None
