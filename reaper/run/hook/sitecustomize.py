"""Python imports this at its start, because `reaper run` put its folder on PYTHONPATH.

It costs what it imports, in every Python that COMMAND starts. So it imports nothing of
reaper: it puts a finder before the others, which holds the names of the modules that
the cards of the servers list (`reaper/servers/cards.py`). The rest is imported when the
program imports one of them.

What a guest may change here:

- `sys.meta_path` gets that finder. The folder of this file leaves `sys.path`.
- reaper gets a name of its own, `_idle_reaper`: a module `reaper` of the program,
  whether it is this library or something else, is the program's.
- This module makes way for the `sitecustomize` that the program would have had without
  us, in whatever form: a file, a `.pyc`, in a zip. If there is none, none was imported.

Nothing in here may end the program that it was put into.
"""

import os
import sys

TYPE_CHECKING = False  # typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(__file__)
REAPER = os.path.dirname(os.path.dirname(HERE))
NAME = "_idle_reaper"

# modules: written by `python -m reaper table`, do not edit

WAITED_FOR = frozenset(
    [
        "aiohttp.web_runner",
        "aiosmtpd.smtp",
        "anyio._core._sockets",
        "gunicorn.config",
        "gunicorn.workers.base",
        "hypercorn.asyncio.tcp_server",
        "hypercorn.trio.tcp_server",
        "sanic.server.protocols.http_protocol",
        "tornado.http1connection",
        "tornado.httpserver",
        "twisted.internet.tcp",
        "uvicorn.server",
        "websockets.asyncio.server",
    ]
)

# end of modules


class Door:
    """Finds `_idle_reaper` where this file is; has the rest imported when a server is.

    Args:
        waited_for: The modules that `hooks.begin` is called for; none once it was.
    """

    def __init__(self, waited_for: "frozenset[str]") -> None:
        self.waited_for: frozenset[str] = waited_for

    def find_spec(self, name: str, path: object = None, target: object = None) -> "Any":
        """Find nothing but `_idle_reaper`, and what a finder of `hooks` finds."""
        if name == NAME:
            from importlib.util import spec_from_file_location

            return spec_from_file_location(
                name, os.path.join(REAPER, "__init__.py"), submodule_search_locations=[REAPER]
            )
        if name not in self.waited_for:
            return None
        finder = self.begin()
        return None if finder is None else finder.find_spec(name, path, target)

    def begin(self) -> "Any":
        """Import the rest, and return the finder that now waits; None if that
        failed.
        """
        self.waited_for = frozenset()
        try:
            from _idle_reaper.run.hooks import begin  # type: ignore[import-not-found]

            return begin()
        except Exception as error:  # whatever it is, the program goes on
            complain(f"not guarded: {type(error).__name__}: {error}")
            return None


def complain(text: str) -> None:
    """Print *text* on stderr, if there is one."""
    try:  # noqa: SIM105
        sys.stderr.write("reaper run: " + text + "\n")
    except Exception:  # it is closed, or None; contextlib costs an import
        pass


def guard() -> None:
    """Put the finder before the others, if the environment asks for it."""
    how = os.environ.get("REAPER_RUN")
    if not how:
        return
    if sys.version_info < (3, 11):  # noqa: UP036  # COMMAND chooses it
        release = sys.version.split()[0]
        complain("Python " + release + " is not guarded: needs 3.11 or newer")
        return
    door = Door(WAITED_FOR)
    sys.meta_path.insert(0, door)
    if how == "strict-inside":  # what listens is refused, whether it imports a known server or not
        door.begin()


def make_way() -> None:
    """Import the next `sitecustomize` of the path, as if this one had not been
    there.
    """
    sys.path[:] = [place for place in sys.path if place != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)  # who imported this one needs it


guard()
make_way()
