"""Processes that ask Spark, each with its own settings, and with a process group by
which it is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import QUICK_JAVA

LONG = 400
"""Seconds after which a command hangs; each takes ten on an idle machine."""


def environment(**more: str) -> dict[str, str]:
    """This one without what other Sparks have left in it; executors could not run
    Python if they had to.
    """
    mine = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    return mine | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": "/nonexistent/python",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parent.parent.parent),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        **more,
    }


@contextmanager
def started(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """In the end it is killed with all that it has started, as by a power cut, if it
    still runs.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            ["nice", "-n", "5", *command],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **options,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(condition: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> Any:
    """What *condition* returns once it is true; fails if *process*, which writes *log*,
    ends before.
    """
    deadline = time.monotonic() + LONG
    while not (found := condition()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.02)
    return found


def configured(directory: Path, **more: str) -> Path:
    """A SPARK_CONF_DIR as an operator has one."""
    settings = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "3", **more}
    (directory / "conf").mkdir(exist_ok=True)
    lines = [f"{key} {value}" for key, value in settings.items()]
    (directory / "conf" / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return directory / "conf"
