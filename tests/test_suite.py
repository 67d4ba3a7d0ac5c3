"""How tests are run: `--no-skips` counts every skip, in one process or in two, and sets stay together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import together

HERE = Path(__file__).parent

A_TEST_THAT_SKIPS = "import pytest\ndef test_it(): pytest.skip('no tool')\n"
A_MODULE_THAT_SKIPS = "import pytest\npytest.importorskip('no_such_package')\ndef test_it(): pass\n"
A_TEST_THAT_PASSES = "def test_it(): pass\n"


def run(directory: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(HERE / "conftest.py", directory)
    for name, text in files.items():
        (directory / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-W", "error", *arguments, "."]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_a_skip_fails_a_run_that_allows_none(tmp_path: Path, processes: list[str]) -> None:
    files = {"one": A_TEST_THAT_PASSES, "two": A_TEST_THAT_SKIPS, "three": A_MODULE_THAT_SKIPS}
    done = run(tmp_path, "--no-skips", *processes, **files)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "--no-skips: 2 skipped" in done.stdout
    assert "1 passed, 2 skipped" in done.stdout


@pytest.mark.slow
def test_tests_that_share_fixtures_run_in_one_process(tmp_path: Path) -> None:
    test = "import os, pathlib\ndef test_it(): pathlib.Path(f'seen by {os.getpid()}').touch()\n"
    many = "".join(f"\ndef test_{n}(): test_it()\n" for n in range(20))
    assert run(tmp_path, "-n", "2", pipeline_audit=test, pipeline_live=test + many).returncode == 0
    assert len(list(tmp_path.glob("seen by *"))) == 1


def test_everything_that_starts_a_spark_session_is_in_one_set() -> None:
    for path in HERE.glob("test_*.py"):
        if path != Path(__file__) and any(
            word in path.read_text() for word in ("real_spark", "on_spark", "SparkSession")
        ):
            assert together(f"tests/{path.name}") == "test_pipeline", path.name
    assert together("tests/test_core.py") == "test_core.py"
