"""Ships `DIR/journal` again and again, from the beginning, killed a few lines later: `python ship_killed.py DIR`.

Time *n* leaves what is left of the journal in `DIR/j<n>` and what has arrived in `DIR/l<n>`; the last was not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from reaper.journal import places, ship

FURTHER = 3
"""Lines of shipping that each run gets beyond the one before."""

places.CHUNK = 2000  # so that a file is copied in several steps


def ship_some(here: Path, to: Path, lines: int) -> None:
    """Ship *here* to *to*, killed before the line after so many *lines* of the shipper and of its place."""
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal left
        if frame.f_code.co_filename not in (places.__file__, ship.__file__):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    shipper = ship.Shipper(here, places.Place(str(to)))
    sys.settrace(trace)
    shipper.once()
    os._exit(0)


def main(root: Path) -> None:
    for kills in range(1000):
        here, to = root / f"j{kills}", root / f"l{kills}"
        shutil.copytree(root / "journal", here)
        to.mkdir()
        child = os.fork()
        if not child:
            ship_some(here, to, kills * FURTHER)
        _, status = os.waitpid(child, 0)
        if not status:
            return
        if not os.WIFSIGNALED(status):
            sys.exit(f"step {kills}: exit status {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
