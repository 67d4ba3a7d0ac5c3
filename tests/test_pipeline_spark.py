"""The pipeline on a real, embedded Spark: one session for the whole file."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)", allow_module_level=True)

import pyarrow as pa
import pyarrow.parquet as pq
from pipeline_traffic import FAULTS, MS, WALL, S, journal, write

from reaper.pipeline import cli
from reaper.pipeline.advise.run import Policy, advise, as_toml
from reaper.pipeline.audit.run import Settings, as_text, audit
from reaper.pipeline.read.inputs import Inputs, check

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def judged(spark: Any, tmp_path: Path, client: bool = False, **settings: int) -> dict[str, Any]:
    server = check([tmp_path / "server"], now_ns=WALL)
    seen = check([tmp_path / "client"], now_ns=WALL) if client else None
    return audit(spark, server, seen, tmp_path / "out", Settings(**settings)).summary


def counts(summary: dict[str, Any]) -> dict[str, int]:
    return {verdict: count for verdict, count in summary["verdicts"].items() if count}


SEEDED = {"early": 3, "late": 2, "missed": 4, "lost": 5, "duplicate": 1, "activity_after_end": 2, "missing_touch": 3}


@pytest.mark.parametrize("client", [False, True], ids=["server alone", "joined"])
def test_every_seeded_fault_is_found_with_its_exact_count(spark: Any, tmp_path: Path, client: bool) -> None:
    faults = {**SEEDED, "backward": 1}
    assert set(faults) == set(FAULTS)
    write(tmp_path / "server", tmp_path / "client", faults=faults, connections=200)
    summary = judged(spark, tmp_path, client)
    found = counts(summary)
    assert {name: found[name] for name in SEEDED} == SEEDED
    assert found["unknown"] == summary["clock"]["backward_rows"] == 1
    assert sum(found.values()) == summary["connections"] == 200
    assert summary["result"] == "fail"
    assert {entry["verdict"] for entry in summary["offenders"]} == set(SEEDED)
    text = as_text(summary)
    assert "audit: FAIL" in text
    assert "silence" in next(entry["story"] for entry in summary["offenders"])


def test_traffic_that_kept_the_law_passes_and_its_lateness_is_within_one_tick(spark: Any, tmp_path: Path) -> None:
    wanted = write(tmp_path / "server", tmp_path / "client", connections=120, listeners=("echo", "http"))
    summary = judged(spark, tmp_path, client=True)
    assert summary["reasons"] == []
    assert counts(summary) == {name: count for name, count in wanted.items() if count}
    assert summary["joined"] == {"pairs": 120, "server_only": 0, "client_only": 0, "crossed": 0}
    assert set(summary["listeners"]) == {"echo", "http"}
    for entry in summary["listeners"].values():
        assert 0 <= entry["lateness_s"]["min"] <= entry["lateness_s"]["p99"] <= entry["lateness_s"]["max"] < 1.01
        assert 0 < entry["seen_lateness_s"]["max"] < 1.02


def test_a_row_that_was_removed_or_doubled_is_found_without_sorting(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "server", connections=40)
    (path,) = (tmp_path / "server").glob("*.parquet")
    table = pq.read_table(path)
    kinds = table["kind"].to_pylist()
    conns = table["conn"].to_pylist()
    activity = kinds.index("activity")
    other = next(i for i, kind in enumerate(kinds) if kind == "activity" and conns[i] != conns[activity])
    opening = next(
        i for i, kind in enumerate(kinds) if kind == "open" and conns[i] not in {conns[activity], conns[other]}
    )
    vanished = next(
        c for c in conns if c not in {conns[activity], conns[other], conns[opening], table["conn"][0].as_py()}
    )
    keep = [i for i, conn in enumerate(conns) if i not in {activity, opening} and conn != vanished]
    pq.write_table(pa.concat_tables([table.take(keep), table.slice(other, 1)]), path)
    summary = judged(spark, tmp_path)
    found = counts(summary)
    assert {found.get(name, 0) for name in ("missing_touch", "duplicate", "unknown", "lost")} == {1}
    assert summary["lost_without_a_row"] == 1


def test_two_uses_of_one_port_are_distinguished_by_time(spark: Any, tmp_path: Path) -> None:
    with journal(tmp_path / "server", 1) as ours, journal(tmp_path / "client", 2) as theirs:
        for turn in range(5):
            t = (1 + 20 * turn) * S
            log, seen = ours.open(t + MS, 5000, "echo", peer=7), theirs.open(t, 5000, "echo", peer=7)
            log.reap(t + 5500 * MS, t + 5500 * MS)
            seen.close_peer(t + 5501 * MS)
    summary = judged(spark, tmp_path, client=True)
    assert counts(summary) == {"ok_reaped": 5}
    assert summary["joined"]["pairs"] == 5
    assert summary["listeners"]["echo"]["seen_lateness_s"]["max"] == pytest.approx(0.501)


def test_in_gaps_mode_an_open_connection_is_lost_only_once_its_writer_has_drained(spark: Any, tmp_path: Path) -> None:
    for name, drains in (("open", False), ("drained", True)):
        with journal(tmp_path / name / "server", 1, mode="gaps") as ours:
            ours.open(S, 5000, "echo")
            ours.open(S, 5000, "echo").reap(7 * S, 7 * S)
            ours.config(500 * S, "a quiet log")
            if drains:
                ours.drain(500 * S)
        verdict = "lost" if drains else "open_at_end"
        assert counts(judged(spark, tmp_path / name)) == {verdict: 1, "ok_reaped": 1}


def test_the_audit_command_fails_on_a_violation_and_on_a_file_put_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "good", connections=8)
    write(tmp_path / "bad", connections=8, faults={"late": 1})

    def run(*argv: str) -> int:
        return cli.main(["audit", "--out", str(tmp_path / "out"), "--json", "--quiet", "--events", *argv])

    assert run(str(tmp_path / "good")) == 0
    assert json.loads(capsys.readouterr().out)["result"] == "pass"
    assert run(str(tmp_path / "bad")) == 1
    (tmp_path / "good" / "half.parquet").write_bytes(b"PAR1")
    assert run(str(tmp_path / "good")) == 1
    summary = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert summary["verdicts"]["ok_reaped"] == 6
    assert "truncated" in summary["files"]["quarantined"][0]["reason"]


# ---- advise ---------------------------------------------------------------------------------------------------------


def check_config(tmp_path: Path, toml: str) -> None:
    """What is advised must be what `python -m reaper check` accepts."""
    path = tmp_path / "reaper.toml"
    path.write_text(toml)
    done = subprocess.run(
        [sys.executable, "-m", "reaper", "check", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def exponential(directory: Path, timeouts: tuple[float, ...], mean: float = 3.0) -> None:
    """Silences of *mean* seconds, under each of *timeouts* in turn, of clients that leave after four times that."""
    chance = random.Random(4)
    with journal(directory, 1, mode="gaps", gap_threshold=0.5) as ours:
        for serial in range(4000):
            t = serial * 10 * MS
            timeout = timeouts[serial % len(timeouts)]
            log = ours.open(t, round(timeout * 1000), "echo")
            while True:
                silence, leaves_after = chance.expovariate(1 / mean), chance.expovariate(1 / (4 * mean))
                if min(silence, leaves_after) > timeout:
                    log.reap(t + round(timeout * S), t + round(timeout * S))
                    break
                if leaves_after < silence:
                    log.close_peer(t + round(leaves_after * S))
                    break
                t += round(silence * S)
                log.touch(t, 100)


@pytest.mark.parametrize("timeout", [4.0, 10.0, 120.0])
def test_the_timeout_that_cut_the_log_is_no_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], timeout: float
) -> None:
    exponential(tmp_path / "server", (timeout,), mean=57 / 6.9)  # one in a thousand lasts longer than 57 s
    (tmp_path / "out").mkdir()
    toml = tmp_path / "out" / "reaper.toml"
    toml.write_text("of an earlier answer")
    told = ["advise", "--events", str(tmp_path / "server"), "--out", str(tmp_path / "out"), "--quiet"]
    ended, text = cli.main(told), capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "advice.json").read_text())
    advice = found["listeners"]["echo"]["recommendation"]
    if timeout < 57:
        assert (ended, found["result"], toml.exists(), advice["timeout_s"]) == (1, "inconclusive", False, None)
        assert timeout <= advice["at_least_s"] <= timeout * 1.01
        assert f"at least {timeout:g}" in text
        assert "recommended" not in text
    else:
        assert (ended, found["result"], toml.exists(), advice["at_least_s"]) == (0, "pass", True, None)
        assert 52 <= advice["timeout_s"] <= 75
        assert advice["interval_s"][0] < advice["interval_s"][1]


def test_the_advice_from_a_journal_with_a_known_truth(spark: Any, tmp_path: Path) -> None:
    # A fifth of the fleet runs with a long timeout: without those, nothing beyond 4 s could be known.
    exponential(tmp_path / "server", (60.0, 4.0, 4.0, 4.0, 4.0))
    result = advise(spark, check([tmp_path / "server"], now_ns=WALL), None, Policy(max_cut=0.01))
    entry = result["listeners"]["echo"]
    by_timeout = {row["timeout_s"]: row for row in entry["trade_off"]}
    for timeout in (1.0, 5.0, 10.0):
        low, high = by_timeout[timeout]["silences_cut_interval"]
        truth = 2.718281828 ** (-timeout / 3.0)
        assert low * 0.98 <= truth <= high * 1.02
    right = 3.0 * 4.60517  # where exp(-t/3) is 1 %
    assert right * 0.93 <= entry["recommendation"]["timeout_s"] <= right * 1.3
    assert by_timeout[1.0]["peak_open"] < by_timeout[10.0]["peak_open"]
    assert by_timeout[1.0]["connections_cut"] > by_timeout[10.0]["connections_cut"] > 0
    check_config(tmp_path, as_toml(result))


NGINX_CONF = """
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ worker_connections 512; }}
http {{
  log_format reaper '$msec $connection $connection_requests $request_time';
  access_log {dir}/access.log reaper;
  client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;
  uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
  keepalive_timeout 4s;
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}
}}
"""


def test_java_compiles_every_method_that_spark_writes_for_audit_and_advice(
    real_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer method than this Java only interprets: one of them took as long as all the rest of an advice."""
    from pyspark.sql.classic.dataframe import DataFrame

    sizes: list[int] = []
    asking = threading.Lock()
    asked = {name: getattr(DataFrame, name) for name in ("collect", "toArrow", "observe")}

    def noting(name: str) -> Any:
        def ask(frame: Any, *args: Any, **options: Any) -> Any:
            with asking, redirect_stdout(StringIO()) as said:  # of the whole process
                frame.explain("codegen")
            sizes.extend(map(int, re.findall(r"maxMethodCodeSize:(\d+)", said.getvalue())))
            return asked[name](frame, *args, **options)

        return ask

    write(tmp_path / "server", tmp_path / "client", connections=40)
    server, client = check([tmp_path / "server"], now_ns=WALL), check([tmp_path / "client"], now_ns=WALL)
    for name in asked:
        monkeypatch.setattr(DataFrame, name, noting(name))
    real_spark.conf.set("spark.sql.adaptive.enabled", "false")  # whose plans are not final before they have run
    try:
        audit(real_spark, server, client, tmp_path / "out", Settings())
        advise(real_spark, server, None, Policy())
    finally:
        real_spark.conf.set("spark.sql.adaptive.enabled", "true")
    assert len(sizes) > 15
    assert max(sizes) < 8000


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx (Debian: apt-get install nginx)")
def test_a_real_nginx_under_the_load_generator_is_advised_from_the_log_it_wrote(spark: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    conf = tmp_path / "nginx.conf"
    conf.write_text(NGINX_CONF.format(dir=tmp_path, port=port))
    nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(conf)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        run = [sys.executable, "-m", "loadgen", "run", "--target", f"127.0.0.1:{port}", "--protocol", "http"]
        run += ["--connections", "40", "--timeout", "4s", "--mix", "silent=25,chatty=75", "--duration", "8s", "--quiet"]
        subprocess.run([*run, "--seed", "7"], capture_output=True, check=False, timeout=60)  # its verdict is not ours
    finally:
        nginx.terminate()
        nginx.wait(timeout=10)
    log = tmp_path / "access.log"
    summary = advise(spark, Inputs(), ("nginx", [log], 4 * S), Policy(max_cut=0.05))
    (entry,) = summary["listeners"].values()
    assert summary["quarantined"] == []
    assert entry["silences"] == len(log.read_text().splitlines())
    assert 30 <= entry["connections"] <= 41  # one connection was ours, to see that it listens, and sent nothing
    assert entry["silences_ended"] > 60
    assert 1.0 <= entry["recommendation"]["timeout_s"] <= 4.0
    check_config(tmp_path, as_toml(summary))
