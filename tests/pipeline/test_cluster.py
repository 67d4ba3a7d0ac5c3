"""The same commands on a standalone cluster, through spark-submit and through Spark
Connect, all on loopback.

Everything is started from pip's own Spark and has a process group of its own, which is
how it is ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip(
        "Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)",
        allow_module_level=True,
    )

import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrameReader

from reaper.pipeline.cli import main
from reaper.pipeline.engine import NoSpark, open_session
from reaper.pipeline.engine.spark import write_back
from scripts.serving import free_port
from tests.conftest import QUICK_JAVA
from tests.helpers.attach_servers import accepts
from tests.helpers.pipeline_traffic import only, write
from tests.helpers.spark_processes import LONG, configured, environment, started, until
from tests.house.test_packaging import _build, _not_ours
from tests.pipeline.test_losses import ASKED, CUT, written

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK = Path(pyspark.__file__).parent
FAULTS = {
    "early": 3,
    "late": 2,
    "missed": 4,
    "lost": 5,
    "duplicate": 1,
    "activity_after_end": 2,
    "missing_touch": 3,
}
SPLITS = 30
"""Pieces into which the journal is cut, so that a scan has a middle."""


def asked(url: str) -> Any:
    """The JSON at *url*; None while nothing answers."""
    try:
        with urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL of a master with two workers of a core and a gigabyte each, and one of
    them.
    """
    directory, port, ui = tmp_path_factory.mktemp("cluster"), free_port(), free_port()
    log, url = directory / "daemons.log", f"spark://127.0.0.1:{port}"
    daemon = [str(SPARK / "bin" / "spark-class"), "org.apache.spark.deploy."]
    small = [
        "--cores",
        "1",
        "--memory",
        "1g",
        "--work-dir",
        str(directory / "work"),
        "--webui-port",
        "0",
        url,
    ]
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [daemon[0], daemon[1] + name, "--host", "127.0.0.1", *arguments]
            return stack.enter_context(
                started(command, log, env=environment(SPARK_DAEMON_MEMORY="256m"))
            )

        start("master.Master", "--port", str(port), "--webui-port", str(ui))
        worker, _ = (start("worker.Worker", *small) for _ in range(2))
        page = f"http://127.0.0.1:{ui}/json/"
        until(lambda: (asked(page) or {}).get("aliveworkers") == 2, worker, log)
        yield url, worker


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with faults, in `server`, and in `out` what the embedded engine makes
    of it.
    """
    directory = tmp_path_factory.mktemp("reference")
    write(directory / "server", connections=400, faults=FAULTS)
    command = ["report", "--events", str(directory / "server"), "--out", str(directory / "out")]
    assert main([*command, "--engine", "embedded", "--quiet"]) == 1
    verdicts = json.loads((directory / "out" / "audit.json").read_text())["verdicts"]
    assert {name: verdicts[name] for name in FAULTS} == FAULTS
    return directory


def check_answer(out: Path, reference: Path, name: str = "audit") -> None:
    theirs, ours = (
        json.loads((where / f"{name}.json").read_text()) for where in (out, reference / "out")
    )
    assert theirs == ours
    if name == "audit":
        theirs, ours = (
            pq.read_table(where / "connections").sort_by("conn")
            for where in (out, reference / "out")
        )
        assert theirs.num_rows == 400
        assert theirs.schema.types == ours.schema.types
        assert theirs.to_pydict() == ours.to_pydict()


def test_an_audit_survives_the_loss_of_a_worker_in_its_middle(
    cluster: tuple[str, subprocess.Popen[bytes]], reference: Path, tmp_path: Path
) -> None:
    (url, worker), ui = cluster, free_port()
    size = only(reference / "server").stat().st_size
    pieces = {
        "spark.sql.files.openCostInBytes": "1",
        "spark.sql.files.maxPartitionBytes": str(size // SPLITS),
    }
    conf = configured(
        tmp_path, **pieces, **{"spark.ui.port": str(ui), "spark.ui.liveUpdate.period": "0"}
    )
    command = [
        sys.executable,
        "-m",
        "reaper.pipeline",
        "audit",
        "--events",
        str(reference / "server"),
    ]
    command += ["--out", str(tmp_path / "out"), "--master", url]
    progress = tmp_path / "progress"
    with started(command, progress, env=environment(SPARK_CONF_DIR=str(conf))) as audit:
        applications = f"http://127.0.0.1:{ui}/api/v1/applications"
        name = until(lambda: asked(applications), audit, progress)[0]["id"]

        def in_the_middle() -> bool:
            stages = asked(f"{applications}/{name}/stages?status=active") or []
            return any(
                stage["numTasks"] >= SPLITS and 5 <= stage["numCompleteTasks"] <= SPLITS // 2
                for stage in stages
            )

        until(in_the_middle, audit, progress)
        os.killpg(worker.pid, signal.SIGKILL)
        assert audit.wait(timeout=LONG) == 1, progress.read_text()
    check_answer(tmp_path / "out", reference)


def wheel(directory: Path) -> Path:
    """The wheel of this checkout. Built from a copy, because setuptools leaves its
    droppings where it builds.
    """
    shutil.copytree(Path(__file__).parent.parent.parent, directory / "source", ignore=_not_ours)
    _build("build_wheel", directory / "source", directory)
    (built,) = directory.glob("idle_reaper-*.whl")
    return built


def test_spark_submit_needs_the_wheel_and_no_checkout(
    cluster: tuple[str, subprocess.Popen[bytes]], reference: Path, tmp_path: Path
) -> None:
    # -S: no .pth file of the environment is read, so what it has installed from a
    # checkout cannot be found.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    env = environment(
        PYSPARK_DRIVER_PYTHON=str(python),
        PYTHONPATH=str(SPARK.parent),
        SPARK_CONF_DIR=str(configured(tmp_path)),
        PYTHONWARNINGS="error",
    )
    alone = tmp_path / "alone"
    alone.mkdir()
    options: dict[str, Any] = {
        "env": env,
        "cwd": alone,
        "capture_output": True,
        "text": True,
        "timeout": LONG,
    }
    assert subprocess.run([str(python), "-c", "import reaper"], **options).returncode == 1
    (alone / "main.py").write_text(
        "import reaper, sys\nfrom reaper.pipeline.cli import "
        "main\nprint(reaper.__file__)\nsys.exit(main())\n"
    )
    command = [
        str(SPARK / "bin" / "spark-submit"),
        "--master",
        cluster[0],
        "--py-files",
        str(wheel(tmp_path)),
    ]
    command += [
        "main.py",
        "audit",
        "--events",
        str(reference / "server"),
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, **options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        ".whl/reaper/__init__.py" in done.stdout
    )  # spark-submit puts what Python says on stderr there, too
    check_answer(tmp_path / "out", reference)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Connect server."""
    directory, port = tmp_path_factory.mktemp("connect"), free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command += [
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "spark-internal",
    ]
    log = directory / "log"
    quick = environment(JAVA_TOOL_OPTIONS=QUICK_JAVA)
    with started(command, log, env=quick, cwd=directory) as server:
        until(lambda: accepts(port), server, log)
        yield f"sc://127.0.0.1:{port}"


@pytest.mark.parametrize(("name", "by"), [("audit", "--master"), ("advice", "SPARK_REMOTE")])
def test_spark_connect_needs_no_java_here(
    connect: str, reference: Path, tmp_path: Path, name: str, by: str
) -> None:
    pytest.importorskip(
        "grpc", reason="Spark Connect needs the extra: pip install 'idle-reaper[connect]'"
    )
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "reaper.pipeline",
        name.replace("advice", "advise"),
    ]
    command += ["--events", str(reference / "server"), "--out", str(tmp_path)]
    command += ["--master", connect] if by == "--master" else []
    env = environment(
        PATH="/nonexistent",
        JAVA_HOME="/nonexistent",
        **({by: connect} if by == "SPARK_REMOTE" else {}),
    )
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG)
    # The audit finds what was planted; of so few connections the advice is not sure.
    assert done.returncode == (1 if name in ("audit", "advice") else 0), done.stderr
    check_answer(tmp_path, reference, name)


NOTEBOOK = """
import json, sys
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]))
assert "connect" in type(spark).__module__, type(spark)
rows = connections.groupBy("verdict").count().collect()
print(json.dumps({
    "verdicts": {row[0]: row[1] for row in rows},
    "audit": reaper.pipeline.summary(connections),
    "advice": reaper.pipeline.summary(advice),
    "early": rows_of_early.select("conn").distinct().count(),
    "lost": requests.where("outcome = 'lost'").count(),
}))
"""


def test_the_example_notebook_gets_the_same_through_spark_connect(
    connect: str, reference: Path, tmp_path: Path
) -> None:
    pytest.importorskip(
        "grpc", reason="Spark Connect needs the extra: pip install 'idle-reaper[connect]'"
    )
    notebook = Path(__file__).parents[2] / "examples" / "journals.ipynb"
    env = environment(
        PATH="/nonexistent",
        JAVA_HOME="/nonexistent",
        SPARK_REMOTE=connect,
        JOURNAL=str(reference / "server"),
        OUT=str(tmp_path / "out"),
        PROXY_LOG=str(written(tmp_path / "log", "nginx", (*ASKED, CUT))),
    )
    command = [sys.executable, "-W", "error", "-c", NOTEBOOK, str(notebook)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    wanted = json.loads((reference / "out" / "audit.json").read_text())
    assert found["audit"] == wanted
    assert {name: found["verdicts"][name] for name in FAULTS} == FAULTS
    assert (found["early"], found["lost"]) == (FAULTS["early"], 2)
    assert found["advice"]["rows_judged"] == wanted["rows"]


def test_what_another_machine_has_kept_for_itself_is_named_in_one_line(
    real_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = DataFrameReader.parquet

    def without_one_machine(self: DataFrameReader, target: str) -> Any:
        next(Path(target.removeprefix("file://")).glob("part-*")).unlink()
        return whole(self, target)

    with (
        pytest.raises(NoSpark, match=r"does not see what this program sees: .*/gone"),
        open_session("t") as s,
    ):
        s.read.schema("a int").parquet(str(tmp_path / "gone")).count()
    monkeypatch.setattr(DataFrameReader, "parquet", without_one_machine)
    with (
        pytest.raises(NoSpark, match=r"of 6 connections written to .* 4 are there"),
        open_session("t") as s,
    ):
        write_back(s.range(0, 6, numPartitions=3), tmp_path / "out")
