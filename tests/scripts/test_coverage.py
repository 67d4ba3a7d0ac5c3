"""The page of coverage: a row per room that says of how many, and the modules that
nothing enters.
"""

from __future__ import annotations

import json
from pathlib import Path

from scripts.coverage import main, page


def found(lines: int, run: int, branches: int = 0, taken: int = 0) -> dict[str, dict[str, int]]:
    return {
        "summary": {
            "num_statements": lines,
            "covered_lines": run,
            "num_branches": branches,
            "covered_branches": taken,
        }
    }


REPORT = {
    "files": {
        "reaper/core/ring.py": found(60, 60, 20, 15),
        "reaper/core/wheel.py": found(140, 100, 20, 15),
        "reaper/logs.py": found(10, 0),
        "loadgen/plan/mix.py": found(50, 5, 10, 0),
    }
}


def test_a_room_has_the_sum_of_its_files_and_the_last_row_that_of_all() -> None:
    rows = [line for line in page(REPORT).splitlines() if line.count("|") == 6]
    assert rows[2:] == [
        "| loadgen/plan | 50 | 10 % | 10 | 0 % |",
        "| reaper | 10 | 0 % | 0 | - |",
        "| reaper/core | 200 | 80 % | 40 | 75 % |",
        "| together | 260 | 63 % | 50 | 60 % |",
    ]


def test_the_least_covered_modules_come_first_and_short_ones_do_not_come() -> None:
    rows = [line for line in page(REPORT).splitlines() if line.count("|") == 4]
    assert [row.split()[1] for row in rows[2:]] == [
        "loadgen/plan/mix.py",
        "reaper/core/wheel.py",
        "reaper/core/ring.py",
    ]


def test_the_command_writes_the_page_and_says_the_sum(tmp_path: Path, capsys: object) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps(REPORT))
    assert main([str(report), str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == page(REPORT)
