"""What `advise` makes of journals, and of the log of a real nginx, whose truth is known."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attach_servers import free_port, running, tool
from pipeline_traffic import MS, WALL, S, journal

from reaper.pipeline import cli
from reaper.pipeline.advise.run import Policy, advise, as_toml
from reaper.pipeline.read.inputs import Inputs, check
from scripts import tools

pytestmark = pytest.mark.slow


def check_config(tmp_path: Path, toml: str) -> None:
    """What is advised must be what `python -m reaper check` accepts."""
    path = tmp_path / "reaper.toml"
    path.write_text(toml)
    done = subprocess.run([sys.executable, "-m", "reaper", "check", str(path)], capture_output=True, text=True)
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


NGINX = """log_format reaper '$msec $connection $connection_requests $request_time';
keepalive_timeout 4s;
server {{ access_log {log} reaper; listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}"""


def test_a_real_nginx_under_the_load_generator_is_advised_from_the_log_it_wrote(spark: Any, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "reaper.log"
    tool("nginx")
    with running(*tools.nginx(tmp_path, NGINX.format(log=log, port=port)), port=port):
        run = [sys.executable, "-m", "loadgen", "run", "--target", f"127.0.0.1:{port}", "--protocol", "http"]
        run += ["--connections", "40", "--timeout", "4s", "--mix", "silent=25,chatty=75", "--duration", "8s", "--quiet"]
        subprocess.run([*run, "--seed", "7"], capture_output=True, check=False, timeout=60)  # its verdict is not ours
    summary = advise(spark, Inputs(), ("nginx", [log], 4 * S), Policy(max_cut=0.05))
    (entry,) = summary["listeners"].values()
    assert summary["quarantined"] == []
    assert entry["silences"] == len(log.read_text().splitlines())
    assert 30 <= entry["connections"] <= 41  # one connection was ours, to see that it listens, and sent nothing
    assert entry["silences_ended"] > 60
    assert 1.0 <= entry["recommendation"]["timeout_s"] <= 4.0
    check_config(tmp_path, as_toml(summary))
