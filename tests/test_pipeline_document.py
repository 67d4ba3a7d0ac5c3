"""The pages about the pipeline's speed follow from the samples: same samples, same bytes, and a missed goal is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("psutil")

from benchmarks.pipeline import document as pipeline_document
from benchmarks.pipeline import run as pipeline_run

SPARK = ("session", "check", "audit", "advise", "table-audit", "table-advise", "table-recompute")


def sample(engine: str, number: int, events: int, **seconds: float) -> dict[str, Any]:
    steps = SPARK if engine == "spark" else ("session", "check", "audit", "advise", "recompute")
    steps = (*SPARK[:4], "again-audit", "again-advise") if engine == "session" else steps
    s = {step: seconds.get(step.replace("-", "_"), 10.0) + number for step in steps}
    return {
        "events": events, "engine": engine, "round": number, "s": s, "peak_bytes": dict.fromkeys(steps, 3 << 30),
        "java_peak_bytes": 2 << 30, "load_before": 0.5,
    }  # fmt: skip


def results(tmp_path: Path, **spark: float) -> list[str]:
    """A comparison at 50M of which the rivals take 10 s for everything, and growth from 50M to 100M."""
    packages = dict.fromkeys(("pyspark", "duckdb", "polars", "pyarrow"), "1.0")
    machine = {
        "date": "2026-01-01 00:00 UTC", "cpu": "a processor", "cpus": 2, "memory_bytes": 8 << 30, "python": "CPython 3",
        "packages": packages, "java": "a Java", "commit": "0123456789abcdef", "dirty": False,
    }  # fmt: skip
    million = 1_000_000
    size = {
        "events": 50 * million, "files": 68, "bytes": 950 * million, "table_bytes": 900 * million, "table_files": 32,
        "gaps_share": 0.4, "gaps_bytes_a_row": 22.0, "connections_an_event": 0.09, "compact_s": 60.0,
        "compact_peak_bytes": 1 << 30,
    }  # fmt: skip
    comparison = [sample("spark", n, 50 * million, **spark) for n in range(3)]
    comparison += [sample(rival, n, 50 * million) for n in range(3) for rival in ("duckdb", "polars")]
    growth = [sample("spark", 0, 50 * million), sample("spark", 0, 100 * million, audit=21.0, advise=30.0)]
    names = []
    for kind, samples in (("comparison", comparison), ("growth", growth)):
        sizes = [{**size, "events": events} for events in sorted({found["events"] for found in samples})]
        path = tmp_path / f"pipeline-{kind}.json"
        told = {"schema": pipeline_document.SCHEMA, "kind": kind, "machine": machine, "command": f"{kind}.py"}
        path.write_text(json.dumps({**told, "sizes": sizes, "samples": samples}))
        names.append(str(path))
    return names


def write(names: list[str], docs: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr("sys.argv", ["pipeline_document.py", *names, "--docs", str(docs)])
    pipeline_document.main()
    return {path.name: path.read_text() for path in docs.rglob("*.*")}


@pytest.mark.slow
def test_the_pages_are_the_same_bytes_from_the_same_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = results(tmp_path)
    once = write(names, tmp_path / "once", monkeypatch)
    assert once == write(names[::-1], tmp_path / "again", monkeypatch)
    assert set(once) == {"pipeline-speed.md", "pipeline-growth.svg"}
    assert not [name for name, text in once.items() if name.endswith(".md") and ("{" in text or "nan" in text)]


def test_what_a_small_journal_costs_is_told_with_its_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads(Path(results(tmp_path)[0]).read_text())
    ways = {"plain": 20.0, "flags": 14.0, "archive": 8.0, "at once": 9.0, "left alone": 2.0}
    samples = [{"way": way, "round": 0, "s": s, "cpu_s": 2 * s} for way, s in ways.items()]
    start = {"schema": pipeline_document.START_SCHEMA, "machine": told["machine"], "events": 20_000, "load_before": 0.1}
    path = tmp_path / "pipeline-start.json"
    path.write_text(json.dumps({**start, "samples": samples}))
    speed = write([*results(tmp_path), str(path)], tmp_path / "docs", monkeypatch)["pipeline-speed.md"]
    assert "| the quick compiler, the simple collector | 14 | 28 | 12 | **missed** by 17% |" in speed
    assert "| with the archive of classes | 8 | 16 | 12 | met |" in speed
    assert "| `session start` | not measured |" in speed
    assert "| in a session, asked right after its start | 9 | 18 |  |  |" in speed
    assert "| in a session that was left alone until then | 2 | 4 | 3 | met |" in speed


def test_spark_in_a_session_has_rows_and_goals_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = results(tmp_path, audit=31.0)
    told = json.loads(Path(names[0]).read_text())
    inside = [sample("session", n, 50_000_000, audit=16.0, advise=25.0, again_audit=14.0) for n in range(3)]
    told["samples"] += [{**found, "java_peak_bytes": 5 << 30} for found in inside]
    Path(names[0]).write_text(json.dumps(told))
    speed = write(names, tmp_path / "docs", monkeypatch)["pipeline-speed.md"]
    row = {line.split("|")[1].strip(): line for line in reversed(speed.splitlines()) if line.startswith("| ")}
    assert "| 17 (16 to 18) |" in row["audit, files, in a session"]
    assert row["audit, files, in a session"].endswith("| 1.55 (1.5 to 1.6) | 2 | met |")
    assert row["advise, files, in a session"].endswith("| 2 | **missed** by 18% |")
    assert "| 15 (14 to 16) |" in row["audit, files, in a session, again"]
    assert row["advise, files, in a session, again"].endswith("| 1 (1 to 1) | 2 | met |")
    assert row["audit, files"].endswith("| 2 | **missed** by 45% |")
    assert row["start of the engine"].count("11 (10 to 12)") == 4
    assert "The driver's JVM took at most 2 GiB; the goal of 4 GiB is: met." in speed
    assert "The session's JVM took at most 5 GiB; the goal of 4 GiB is: **missed** by 25%." in speed


def test_the_ratio_of_a_session_is_the_sessions_own() -> None:
    samples = [sample("spark", 0, 1, audit=30.0), sample("session", 0, 1, audit=15.0), sample("duckdb", 0, 1)]
    assert pipeline_run.ratio(samples, "session", "audit", "audit", "duckdb") == 1.5
    assert pipeline_run.ratio(samples, "spark", "audit", "audit", "duckdb") == 3.0
    assert pipeline_run.ratio(samples, "session", "table-recompute", "recompute", "duckdb") is None
    assert pipeline_run.names("session,duckdb") == ["session", "duckdb"]


def test_a_question_that_was_not_asked_keeps_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = results(tmp_path)
    told = json.loads(Path(names[0]).read_text())
    for found in told["samples"]:
        found["s"].pop("table-audit", None)
    Path(names[0]).write_text(json.dumps(told))
    speed = write(names, tmp_path / "docs", monkeypatch)["pipeline-speed.md"]
    assert "| audit, table | not measured | 11 (10 to 12) | 11 (10 to 12) | not measured | 2 | not measured |" in speed


def test_a_smaller_comparison_has_goals_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = results(tmp_path, audit=25.0)
    told = json.loads(Path(names[0]).read_text())
    told["sizes"][0]["events"] = 10_000_000
    told["samples"] = [{**found, "events": 10_000_000} for found in told["samples"]]
    Path(names[0]).with_name("pipeline-10M.json").write_text(json.dumps(told))
    speed = write([*names, str(tmp_path / "pipeline-10M.json")], tmp_path / "docs", monkeypatch)["pipeline-speed.md"]
    tables = [speed.split(f"## {size} events")[1].split("## ")[0] for size in ("50M", "10M")]
    full, smaller = (next(row for row in table.splitlines() if row.startswith("| audit, files |")) for table in tables)
    assert "| 2 | **missed**" in full
    assert smaller.endswith("| 3 | met |")
    assert "| audit, table |" in tables[1]
    assert "| 2 |" not in tables[1]  # no goal where none was set


def test_what_met_its_goal_and_what_missed_it_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = results(tmp_path, audit=31.0, advise=12.0, table_recompute=10.0)
    speed = write(names, tmp_path / "docs", monkeypatch)["pipeline-speed.md"]
    lines = [line for line in speed.splitlines() if line.startswith("| ")]
    row = {line.split("|")[1].strip(): line for line in reversed(lines)}
    assert "**missed** by 45%" in row["audit, files"]  # rounds of 31/10, 32/11 and 33/12
    assert row["advise, files"].endswith("| met |")
    assert row["advise, recomputed, table"].endswith("| 1 (1 to 1) | 1.5 | met |")
    assert "- audit: 2.1 times the time at twice 50M; the goal of 2.2 is met." in speed
    assert "- advise: 3 times the time at twice 50M; the goal of 2.2 is **missed** by 36%." in speed
