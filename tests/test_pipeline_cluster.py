"""The same commands on a standalone cluster, through spark-submit and through Spark Connect, all on loopback.

Everything is started from pip's own Spark and has a process group of its own, which is how it is ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)", allow_module_level=True)

import pyarrow.parquet as pq
import pyspark
from pipeline_traffic import write
from pyspark.sql import DataFrameReader, SparkSession

from reaper.pipeline.engine import NoSpark, open_session
from reaper.pipeline.engine.spark import write_back
from scripts.serving import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
SPARK = Path(pyspark.__file__).parent
NICE = ["nice", "-n", "5"]
FAULTS = {"early": 3, "late": 2, "missed": 4, "lost": 5, "duplicate": 1, "activity_after_end": 2, "missing_touch": 3}
LONG = 400
"""Seconds after which a command hangs; each takes ten on an idle machine."""
SPLITS = 30
"""Pieces into which the journal is cut, so that a scan has a middle."""


def environment(**more: str) -> dict[str, str]:
    """This one without what other Sparks have left in it; executors could not run Python if they had to."""
    mine = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    return mine | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": "/nonexistent/python",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # half the CPU time, in so short a life
        **more,
    }


def start(command: list[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [*NICE, *command], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **options
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started, as a power cut would."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until(condition: Callable[[], Any], what: str, log: Path) -> Any:
    """What *condition* returns once it is true."""
    deadline = time.monotonic() + LONG
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"no {what} within {LONG} s; {log.name}: {log.read_text()[-3000:]}")
        time.sleep(0.02)
    return found


def asked(url: str) -> Any:
    """The JSON at *url*; None while nothing answers."""
    try:
        with urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


@dataclass
class Cluster:
    """One master and two workers with a core and a gigabyte each."""

    directory: Path
    port: int = field(default_factory=free_port)
    ui: int = field(default_factory=free_port)
    master: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "daemons.log"

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        return start([*command, *arguments], self.log, env=environment(SPARK_DAEMON_MEMORY="256m"))

    def ready(self) -> None:
        """Start what is not running."""
        if self.master is None:
            self.master = self._start("master.Master", "--port", str(self.port), "--webui-port", str(self.ui))
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < 2:
            small = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / "work")]
            self.workers.append(self._start("worker.Worker", *small, "--webui-port", "0", self.url))
        page = f"http://127.0.0.1:{self.ui}/json/"
        until(lambda: (asked(page) or {}).get("aliveworkers") == 2, "two workers", self.log)

    def stop(self) -> None:
        for process in [*self.workers, *([self.master] if self.master else [])]:
            kill(process)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.ready()
    return running


@dataclass
class Reference:
    """What the embedded Spark makes of a journal with faults in it."""

    events: Path
    out: Path

    def check_audit(self, out: Path) -> None:
        assert json.loads((out / "audit.json").read_text()) == json.loads((self.out / "audit.json").read_text())
        theirs, ours = (pq.read_table(where / "connections").sort_by("conn") for where in (out, self.out))
        assert theirs.num_rows == 400
        assert theirs.equals(ours)

    def check_advice(self, out: Path) -> None:
        assert json.loads((out / "advice.json").read_text()) == json.loads((self.out / "advice.json").read_text())


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    directory = tmp_path_factory.mktemp("reference")
    found = Reference(directory / "server", directory / "out")
    write(found.events, connections=400, faults=FAULTS)
    command = [sys.executable, "-m", "reaper.pipeline", "report", "--events", str(found.events)]
    command += ["--out", str(found.out), "--master", "local[2]", "--quiet"]
    assert subprocess.run(command, cwd=ROOT, env=environment(), check=False, timeout=LONG).returncode == 1
    verdicts = json.loads((found.out / "audit.json").read_text())["verdicts"]
    assert {name: verdicts[name] for name in FAULTS} == FAULTS
    return found


def configured(directory: Path, **more: str) -> Path:
    """A SPARK_CONF_DIR as an operator has one."""
    settings = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "3", **more}
    (directory / "conf").mkdir()
    lines = [f"{key} {value}" for key, value in settings.items()]
    (directory / "conf" / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return directory / "conf"


def test_an_audit_survives_the_loss_of_a_worker_in_its_middle(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    ui = free_port()
    (size,) = (path.stat().st_size for path in reference.events.glob("*.parquet"))
    pieces = {"spark.sql.files.openCostInBytes": "1", "spark.sql.files.maxPartitionBytes": str(size // SPLITS)}
    conf = configured(tmp_path, **pieces, **{"spark.ui.port": str(ui), "spark.ui.liveUpdate.period": "0"})
    command = [sys.executable, "-m", "reaper.pipeline", "audit", "--events", str(reference.events)]
    command += ["--out", str(tmp_path / "out"), "--master", cluster.url]
    progress = tmp_path / "progress"
    audit = start(command, progress, env=environment(SPARK_CONF_DIR=str(conf)))
    try:
        applications = f"http://127.0.0.1:{ui}/api/v1/applications"
        name = until(lambda: asked(applications), "driver's own page", progress)[0]["id"]

        def in_the_middle() -> bool:
            assert audit.poll() is None, progress.read_text()
            stages = asked(f"{applications}/{name}/stages?status=active") or []
            return any(
                stage["numTasks"] >= SPLITS and 5 <= stage["numCompleteTasks"] <= SPLITS // 2 for stage in stages
            )

        until(in_the_middle, "scan that is half done", progress)
        kill(cluster.workers[0])
        assert audit.wait(timeout=LONG) == 1, progress.read_text()
    finally:
        kill(audit)
    reference.check_audit(tmp_path / "out")


def wheel(directory: Path) -> Path:
    """The wheel of this checkout. Built from a copy, because setuptools leaves its droppings where it builds."""
    copy = directory / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "reaper", copy / "reaper", ignore=shutil.ignore_patterns("__pycache__"))
    # Without build isolation pip needs no network, but a setuptools that is new enough.
    here = ["--no-build-isolation"] if int(version("setuptools").split(".")[0]) >= 77 else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", *here]
    subprocess.run([*command, "--wheel-dir", str(directory), str(copy)], check=True, timeout=300)
    (built,) = directory.glob("idle_reaper-*.whl")
    return built


def test_spark_submit_needs_the_wheel_and_no_checkout(cluster: Cluster, reference: Reference, tmp_path: Path) -> None:
    # -S: no .pth file of the environment is read, so what it has installed from a checkout cannot be found.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    conf = configured(tmp_path)
    env = environment(
        PYSPARK_DRIVER_PYTHON=str(python),
        PYTHONPATH=str(SPARK.parent),
        SPARK_CONF_DIR=str(conf),
        PYTHONWARNINGS="error",
    )
    alone = tmp_path / "alone"
    alone.mkdir()
    nothing = [str(python), "-c", "import reaper"]
    assert subprocess.run(nothing, env=env, cwd=alone, capture_output=True, check=False).returncode == 1
    (alone / "main.py").write_text(
        "import reaper, sys\nfrom reaper.pipeline.cli import main\nprint(reaper.__file__)\nsys.exit(main())\n"
    )
    command = [str(SPARK / "bin" / "spark-submit"), "--master", cluster.url, "--py-files", str(wheel(tmp_path))]
    command += ["main.py", "audit", "--events", str(reference.events), "--out", str(tmp_path / "out")]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": LONG, "check": False}
    done = subprocess.run([*NICE, *command], env=env, cwd=alone, **options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert ".whl/reaper/__init__.py" in done.stdout  # spark-submit puts what Python says on stderr there, too
    reference.check_audit(tmp_path / "out")


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Connect server."""
    directory, port = tmp_path_factory.mktemp("connect"), free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
    }
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = directory / "log"
    server = start(command, log, env=environment(), cwd=directory)

    def listens() -> bool:
        assert server.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "Connect server", log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        kill(server)


@pytest.mark.parametrize("by", ["--master", "SPARK_REMOTE"])
def test_spark_connect_needs_no_java_here(connect: str, reference: Reference, tmp_path: Path, by: str) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs the extra: pip install 'idle-reaper[connect]'")
    name = {"--master": "audit", "SPARK_REMOTE": "advise"}[by]
    command = [sys.executable, "-W", "error", "-m", "reaper.pipeline", name, "--events", str(reference.events)]
    command += ["--out", str(tmp_path), *(["--master", connect] if by == "--master" else [])]
    env = environment(PATH="/nonexistent", JAVA_HOME="/nonexistent", **({by: connect} if by == "SPARK_REMOTE" else {}))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == (1 if name == "audit" else 0), done.stderr
    (reference.check_audit if name == "audit" else reference.check_advice)(tmp_path)


def test_what_another_machine_has_kept_for_itself_is_named_in_one_line(
    real_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = DataFrameReader.parquet

    def without_one_machine(self: DataFrameReader, target: str) -> Any:
        next(Path(target.removeprefix("file://")).glob("part-*")).unlink()
        return whole(self, target)

    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # it is the session of all tests
    with pytest.raises(NoSpark, match=r"does not see what this program sees: .*/gone"), open_session("t") as s:
        s.read.schema("a int").parquet(str(tmp_path / "gone")).count()
    monkeypatch.setattr(DataFrameReader, "parquet", without_one_machine)
    with pytest.raises(NoSpark, match=r"of 6 connections written to .* 4 are there"), open_session("t") as s:
        write_back(s.range(0, 6, numPartitions=3), tmp_path / "out")
