"""Ships `DIR/journal` again and again, from the beginning, killed one step later: `python ship_killed.py DIR`.

Time *n* leaves what is left of the journal in `DIR/j<n>` and what has arrived in `DIR/l<n>`; the last was not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import IO, Any

from reaper.journal.places import Place
from reaper.journal.ship import Shipper

STEPS = [0]
"""Left before the kill."""


def step() -> None:
    if not STEPS[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    STEPS[0] -= 1


class Source:
    """A file that is read in small pieces, each a step."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def read(self, size: int) -> bytes:
        step()
        return self.file.read(min(size, 2000))


class Killed(Place):
    """A place whose every call is a step before it and one after it."""

    def write(self, name: str, source: Any) -> None:
        step()
        super().write(name, Source(source))  # type: ignore[arg-type]
        step()

    def digest(self, name: str) -> bytes:
        step()
        return super().digest(name)

    def rename(self, name: str, final: str) -> None:
        step()
        super().rename(name, final)
        step()


def unlink(path: Path, missing_ok: bool = False) -> None:
    if path.suffix == ".parquet":
        step()
    os.unlink(path)
    if path.suffix == ".parquet":
        step()


def main(root: Path) -> None:
    for kills in range(1000):
        here, to = root / f"j{kills}", root / f"l{kills}"
        shutil.copytree(root / "journal", here)
        to.mkdir()
        child = os.fork()
        if not child:
            STEPS[0] = kills
            Path.unlink = unlink  # type: ignore[assignment, method-assign]
            Shipper(here, Killed(str(to))).once()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not status:
            return
        if not os.WIFSIGNALED(status):
            sys.exit(f"step {kills}: exit status {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
