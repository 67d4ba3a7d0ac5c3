"""How tests are run: `--no-skips` counts every skip, what starts a Spark stays in one
process, and a test that hangs fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ON_SPARK, together

TESTS_FOLDER = Path(__file__).parent.parent
ROOT = TESTS_FOLDER.parent

TESTS = {
    "passes": "def test_it(): pass\n",
    "skips": "import pytest\ndef test_it(): pytest.skip('no tool')\n",
    "module_skips": "import pytest\npytest.importorskip('no_such_package')\ndef test_it(): pass\n",
}


HANGS = """
import threading
def test_hangs():
    threading.Event().wait()
def test_goes_on():
    pass
"""


@pytest.mark.slow
def test_a_test_that_hangs_fails_by_its_name_and_the_next_is_run(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "test_it.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1"]
    command += ["-o", "timeout=1", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "FAILED test_it.py::test_hangs - Failed: Timeout" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


@pytest.mark.slow
def test_a_skip_fails_a_run_that_allows_none(tmp_path: Path) -> None:
    shutil.copy(TESTS_FOLDER / "conftest.py", tmp_path)
    for name, text in TESTS.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--no-skips",
        "-n",
        "2",
        ".",
    ]
    environment = os.environ | {"PYTHONPATH": str(TESTS_FOLDER.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "--no-skips: 2 skipped" in done.stdout
    assert "1 passed, 2 skipped" in done.stdout


def test_everything_that_starts_a_spark_session_is_in_one_set() -> None:
    for path in TESTS_FOLDER.rglob("test_*.py"):
        if path != Path(__file__) and any(
            word in path.read_text() for word in ("real_spark", "on_spark", "SparkSession")
        ):
            assert together(str(path.relative_to(ROOT))) in ON_SPARK.values(), path
    assert together("tests/core/test_law.py") == "tests/core/test_law.py"
