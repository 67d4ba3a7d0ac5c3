"""What `reaper run` does in a Python that COMMAND starts: the `sitecustomize` of the
hook, and the finder that calls back when a server is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from reaper.run import hooks
from reaper.run.command import HOOK
from reaper.servers import cards
from tests.helpers.reaper_run import PATIENCE, run


@pytest.mark.slow
def test_the_sitecustomize_of_the_program_is_run_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    code = "import sys; print(sys.modules['sitecustomize'].__file__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = run("--inside", "--", sys.executable, "-c", code, env=environment)
    assert done.stdout.split()[-2:] == ["theirs", str(tmp_path / "sitecustomize.py")]


def python(
    code: str, *, hooked: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A Python without site packages, in whose path the hook stands, which runs
    *code*.

    Args:
        hooked: What it runs before that; None: `HOOKED`.
    """
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{HOOKED if hooked is None else hooked}{code}"],
        env={"REAPER_RUN": "1"} | environment,
        text=True,
        capture_output=True,
        timeout=PATIENCE,
        process_group=0,  # one process speaks for its group, which is else that of all tests
    )


HOOKED = f"""
import os, sys
before = set(sys.modules)
sys.path[:0] = [{str(HOOK)!r}]
try:
    import sitecustomize
except ImportError:
    pass  # as `site` does
"""


def test_a_python_without_reaper_finds_it_where_the_hook_is() -> None:
    done = python("import _idle_reaper.run; print(_idle_reaper.run.__file__)")
    assert done.stdout.strip() == str(HOOK.parent / "__init__.py"), done.stderr


def test_the_hook_imports_nothing_of_reaper_until_a_server_is_imported() -> None:
    code = "print(sorted(set(sys.modules) - before))"
    done = python(code)
    # Debian's Python has a `sitecustomize` of its own.
    stock = python(code, hooked=HOOKED.replace("sys.path[:0]", "_"))
    assert done.stdout == stock.stdout, done.stderr
    assert stock.stdout in ("[]\n", "['sitecustomize']\n")


def test_the_rest_is_imported_with_the_first_server(tmp_path: Path) -> None:
    (tmp_path / "uvicorn").mkdir()
    (tmp_path / "uvicorn" / "server.py").write_text("")
    code = f"sys.path.append({str(tmp_path)!r}); import uvicorn.server; "
    done = python(f"{code}print('_idle_reaper.servers.cards' in sys.modules)")
    assert done.stdout == "True\n", done.stderr
    assert "it has no uvicorn.config, Server" in done.stderr


def test_the_name_reaper_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "reaper.py").write_text("mine = 1")
    code = f"sys.path.append({str(tmp_path)!r}); import _idle_reaper.run.hooks, reaper; "
    done = python(f"{code}print(reaper.mine)")
    assert done.stdout == "1\n", done.stderr


def test_the_hook_waits_for_the_modules_of_the_servers() -> None:
    # `python -m reaper table reaper/run/hook/sitecustomize.py` writes them.
    assert f"\n{cards.modules()}\n" in (HOOK / "sitecustomize.py").read_text()


Met = tuple[hooks.AfterImport, list[object]]


@pytest.fixture
def met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Met:
    """A finder in force that waits for the modules `met`, which is there, and `never`,
    which is not; and the values that it was called back with.
    """
    (tmp_path / "met.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "met", raising=False)
    seen: list[object] = []

    def note(module: ModuleType) -> None:
        seen.append(module.__name__)

    finder = hooks.AfterImport({"met": note, "never": note})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    return finder, seen


def test_a_module_is_met_when_it_has_been_imported(met: Met) -> None:
    imported = import_module("met")

    assert met[1] == ["met"]
    assert imported.value == 1


def test_the_loader_of_a_module_that_was_met_is_what_it_was(met: Met) -> None:
    imported = import_module("met")

    assert "exec_module" not in vars(imported.__loader__)


def test_a_module_that_is_not_there_is_met_when_it_comes_later(met: Met, tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("never")
    (tmp_path / "never.py").write_text("")
    import_module("never")

    assert met[1] == ["never"]
