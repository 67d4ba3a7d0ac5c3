"""Which settings a server reads: put into each of its Pythons, which then note every
setting that is read, and are guarded as `reaper run` guards them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

NOTES = "TRACED_SETTINGS"
"""The variable that names the file in which the settings are noted, one a line."""


def environment(folder: Path) -> dict[str, str]:
    """The variables that put this into every Python of a server; its notes are
    `read(folder)`.
    """
    hook = folder / "hook"
    hook.mkdir(parents=True)
    (hook / "sitecustomize.py").write_text(
        "import tests.helpers.traced as traced\ntraced.begin()\n"
    )
    notes = folder / "settings"
    notes.touch()
    path = [str(hook), str(Path(__file__).parent.parent.parent)]
    return {NOTES: str(notes), "REAPER_RUN": "1", "PYTHONPATH": os.pathsep.join(path)}


def read(folder: Path) -> set[str]:
    """The settings that were read."""
    return set((folder / "settings").read_text().split())


def begin() -> None:
    """Note from now on what is read; guard the servers that are imported."""
    from reaper.config import settings
    from reaper.config.options import Section

    seen: set[str] = set()

    def note(path: str) -> None:
        if path in settings.OPTIONS and path not in seen and not _configures():
            seen.add(path)
            with open(os.environ[NOTES], "a") as file:
                file.write(f"{path}\n")

    def traced(self: Any, name: str) -> Any:
        if not name.startswith("_"):
            note(f"{type(self).__name__.lower()}.{name}")
        return object.__getattribute__(self, name)

    for kind in Section.__subclasses__():
        kind.__getattribute__ = traced  # type: ignore[method-assign]
    if "reaper.run" not in sys.modules:
        from reaper.run.hooks import begin as guard

        guard()


def _configures() -> bool:
    """Whether the configuration itself asks: it reads every setting when it is made or
    copied.
    """
    frame: Any = sys._getframe(3)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("reaper.config") or name == "dataclasses":
            return True
        if name.startswith("reaper"):
            return False
        frame = frame.f_back
    return False


def main() -> None:
    """A server of the package websockets."""
    import asyncio

    import websockets.asyncio.server

    async def listen(websocket: Any) -> None:
        async for message in websocket:
            await websocket.send(message)

    async def serve() -> None:
        serving = websockets.asyncio.server.serve(listen, "127.0.0.1", int(sys.argv[1]))
        async with serving as server:
            await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
