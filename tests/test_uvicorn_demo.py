"""`make uvicorn-demo`, shortened: the table before and after."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_demo_prints_what_stock_never_closes_and_guarded_does():
    command = [sys.executable, "-m", "scripts.uvicorn_demo", "--patience", "9", "--no-pause"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "|"]
    attacks = {row[0]: row[1:] for row in rows[2:-1]}
    assert len(attacks) == 12
    assert sum(stock == "never" for stock, _ in attacks.values()) >= 8
    assert not [attack for attack, (_, guarded) in attacks.items() if guarded == "never"]


@pytest.mark.slow
def test_the_probes_page_says_that_stock_closes_by_keep_alive_alone_and_guarded_by_every_timeout(tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "scripts.uvicorn_demo.probes", "--wait", "9", "--trials", "2", "--out", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    stock, guarded = (part.splitlines() for part in page.read_text().split("## ")[1:])
    closed = [{row.split("|")[1].strip(): row.split("|")[-2].strip() for row in rows if "/2 " in row}
              for rows in (stock, guarded)]  # fmt: skip
    assert closed[1] == dict.fromkeys(
        ("first_byte", "headers", "headers_drip", "body", "body_drip", "keep_alive"), "2/2"
    )
    assert closed[0] == dict.fromkeys(closed[1], "0/2") | {"keep_alive": "2/2"}
