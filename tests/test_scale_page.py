"""The table of docs/scale.md comes from results, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale

REPORT: dict[str, Any] = {
    "verdict": "pass",
    "partial": False,
    "config": {"timeout_s": 60.0, "tick_s": 1.0, "beat_s": 10.0, "mix": {"silent": 50}},
    "connections": {"requested": 2_000, "connect_s": 3.2, "peak_open": 2_000},
    "elapsed_s": 95.0,
    "reaps": {"expected": 1_000, "observed": 1_000, "early": 0, "late": 0, "missed": 0, "false": 0}
    | {"late_raw": 4, "late_raw_own": 3},
    "lateness_s": {"p50": 0.3, "p99": 0.9, "max": 1.1},
    "server": {"workers": 2, "rss_bytes_per_connection": 321.4},
    "loadgen": {"processes": 3},
    "machine": {
        "memory_bytes": {"kernel": 3 << 20, "server": 2 << 20, "generator": 1 << 20},
        "process_bytes": {"server": 5 << 20, "generator": 3 << 20},
        "cpu_s": {"kernel": 4.0, "server": 5.0, "generator": 6.0},
    },
}


def test_a_demo_that_passed_becomes_a_column_and_another_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, report = tmp_path / "page.md", tmp_path / "report.json"
    page.write_text("before\n<!-- demos -->\nold\n<!-- end of demos -->\nafter\n")
    run = ["--results", str(tmp_path), "--page", str(page), "--add", str(report)]
    report.write_text(json.dumps(REPORT))
    assert scale.main(run) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- demos -->\n| `make demo CONNECTIONS=` | **2,000** |\n")
    assert text.endswith("<!-- end of demos -->\nafter\n")
    for cell in ("1m, 10s, 1m35s", "1,000, 1,000", "4 (0.40%), 3 of them read late", "321 B", "5 MiB, 3 MiB"):
        assert f"| {cell} |" in text
    for broken in ({"verdict": "fail"}, {"partial": True}):
        report.write_text(json.dumps(REPORT | broken))
        assert scale.main(run) == 2
        assert "only a demo that passed is shown" in capsys.readouterr().err
