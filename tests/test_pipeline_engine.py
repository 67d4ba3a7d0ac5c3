"""Where a session may start, what it says when it cannot, and whose configuration counts. Nothing here starts Spark."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")


from reaper.pipeline.engine.spark import EMBEDDED_HEAP_MB, NoSpark, _of_driver, check_reachable, open_session

OURS = {"spark.sql.warehouse.dir", "spark.ui.showConsoleProgress", "spark.driver.extraJavaOptions"}
EMBEDDED = OURS | {"spark.ui.enabled", "spark.driver.memory"}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user who has configured nothing; their SPARK_CONF_DIR."""
    for name in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_DRIVER_MEMORY", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    conf = tmp_path / "conf"
    conf.mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    return conf


@pytest.mark.parametrize("master", [None, "local", "local[2]"])
def test_an_embedded_driver_gets_memory_and_quiet_and_a_cluster_keeps_its_page_and_its_memory(
    tmp_path: Path, master: str | None
) -> None:
    given = _of_driver(tmp_path, master)
    assert set(given) == EMBEDDED
    assert 1024 <= int(given["spark.driver.memory"].removesuffix("m")) <= EMBEDDED_HEAP_MB
    for cluster in ("spark://somewhere:7077", "yarn", "k8s://https://somewhere"):
        assert set(_of_driver(tmp_path, cluster)) == OURS


def test_settings_of_the_user_are_kept(no_settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = no_settings / "spark-defaults.conf"
    defaults.write_text("# spark.ui.enabled true\nspark.sql.warehouse.dir=/data\nspark.driver.memory 2g\n")
    assert set(_of_driver(tmp_path, None)) == EMBEDDED - {"spark.sql.warehouse.dir", "spark.driver.memory"}
    defaults.write_text("spark.master spark://somewhere:7077\n")
    assert set(_of_driver(tmp_path, None)) == OURS
    defaults.unlink()
    (no_settings / "log4j2.properties").write_text("")
    assert set(_of_driver(tmp_path, None)) == EMBEDDED - {"spark.driver.extraJavaOptions"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 2g --conf spark.ui.enabled=true pyspark-shell")
    assert set(_of_driver(tmp_path, None)) == OURS - {"spark.driver.extraJavaOptions"}


def test_what_spark_says_whenever_it_starts_stays_off_the_screen() -> None:
    program = (
        "import subprocess, sys, time; from reaper.pipeline.engine.spark import _without_noise\n"
        "with _without_noise(): java = subprocess.Popen(['sh', '-c', "
        "'echo Setting default log level to WARN >&2; echo kept >&2'])\n"
        "java.wait(); time.sleep(0.2); print('mine', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["kept", "mine"]


def test_a_cluster_that_does_not_answer_is_one_line_at_once_and_one_master_of_several_that_does_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # but not listening: refused
        here, gone = (f"127.0.0.1:{each.getsockname()[1]}" for each in (master, closed))
        for scheme in ("sc", "spark"):
            with pytest.raises(NoSpark, match=f"no Spark at {scheme}://{gone}.*; expected {scheme}://HOST:"):
                check_reachable(f"{scheme}://{gone}")
        check_reachable(f"spark://{gone},{here}")
        check_reachable(f"sc://{here}/;user_id=me")


@pytest.mark.parametrize(
    ("master", "remote", "reason"),
    [
        ("spurk://host:1", None, "spurk://host:1 is no Spark master; expected"),
        ("spark:host", None, "spark:host is no Spark master; expected"),
        ("everywhere", None, "everywhere is no Spark master; expected"),
        ("local", "sc://somewhere", "--master local contradicts SPARK_REMOTE=sc://somewhere"),
    ],
)
def test_a_master_that_is_none_or_contradicts_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, master: str, remote: str | None, reason: str
) -> None:
    if remote:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(NoSpark, match=reason), open_session("test", master):
        pass
