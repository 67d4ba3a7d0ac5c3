"""`make uvicorn-demo`, shortened: the table before and after."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_demo_prints_what_stock_never_closes_and_guarded_does():
    command = [sys.executable, "-m", "scripts.uvicorn_demo", "--rounds", "0", "--patience", "9", "--no-pause"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "|"]
    attacks = {row[0]: row[1:] for row in rows[2:-1]}
    assert len(attacks) == 12
    assert sum(stock == "never" for stock, _ in attacks.values()) >= 8
    assert not [attack for attack, (_, guarded) in attacks.items() if guarded == "never"]
