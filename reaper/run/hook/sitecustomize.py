"""Python imports this at its start, because `reaper run` put its folder on PYTHONPATH. Then it
makes way: for the `sitecustomize` that the program would have had, and for everything else in the
folder's name.

Nothing here may end the program that it was put into.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location

HERE = os.path.dirname(os.path.abspath(__file__))
REAPER = os.path.dirname(os.path.dirname(HERE))
"""The package, which need not be installed in the Python that runs the program."""


class _Door:
    """Finds `reaper` where this file is, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name != "reaper":
            return None
        return spec_from_file_location(
            name, os.path.join(REAPER, "__init__.py"), submodule_search_locations=[REAPER]
        )


def _guard() -> None:
    if not os.environ.get("REAPER_RUN"):
        return
    if sys.version_info < (3, 11):  # noqa: UP036  # it runs in Pythons that reaper was not installed in
        print(
            f"reaper run: Python {sys.version.split()[0]} is not guarded: needs 3.11 or newer",
            file=sys.stderr,
        )
        return
    if PathFinder.find_spec("reaper") is None:
        sys.meta_path.append(_Door)
    try:
        from reaper.run.hooks import begin

        begin()
    except Exception as error:  # whatever it is, the program goes on
        print(f"reaper run: not guarded: {type(error).__name__}: {error}", file=sys.stderr)


def _make_way() -> None:
    """Have the next `sitecustomize` of the path, which the program would have had without us."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_guard()
_make_way()
