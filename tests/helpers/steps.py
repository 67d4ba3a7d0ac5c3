"""Which files of the project are entered. It imports nothing of the project, which may
be what is watched.

A file is entered when a function of it is called, in any thread. Importing a module
enters nothing, and neither does what the module calls meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = tuple(str(ROOT / room) + os.sep for room in ("reaper", "server_example"))
NO_CALLS = {"<module>", "<lambda>", "<listcomp>", "<genexpr>"}
"""Names of code that may run while a module is imported."""
HOOK = str(ROOT / "reaper" / "run" / "hook" / "sitecustomize.py")
"""No module that somebody imports for what is in it, but a program: what it calls is
counted.
"""


class Steps:
    """The files that are entered while `counting` is true. Make it before any thread is
    started.
    """

    def __init__(self) -> None:
        self.counting = False
        self.files: dict[str, None] = {}
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if not self.counting or event != "call" or frame.f_code.co_name in NO_CALLS:
            return
        path = frame.f_code.co_filename
        if path.startswith(OURS) and not _imports(frame):
            self.files[str(Path(path).relative_to(ROOT))] = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count within the block."""
        self.counting = True
        try:
            yield
        finally:
            self.counting = False


def _imports(frame: FrameType | None) -> bool:
    """Whether *frame* runs because a module of the project is being imported."""
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if (
            code.co_name == "<module>"
            and code.co_filename.startswith(OURS)
            and code.co_filename != HOOK
        ):
            return True
    return False
