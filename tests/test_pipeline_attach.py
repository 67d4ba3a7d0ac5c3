"""A foreign server guarded from outside, judged three times: by the load generator, by the guard's own journal, and by
both journals joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.read.inputs import check
from scripts import attach_demo


@pytest.mark.slow
def test_the_demo_passes_and_so_does_the_audit_of_both_journals(spark: Any, tmp_path: Path) -> None:
    assert attach_demo.run(200, 3, tmp_path) == 0
    server, client = check([tmp_path / "attach"]), check([tmp_path / "client"])
    summary = audit(spark, server, client, tmp_path / "audit", Settings()).summary
    verdicts = {name: count for name, count in summary["verdicts"].items() if count}
    assert verdicts == {"ok_reaped": 100, "ok_closed": 100}
    assert summary["joined"]["pairs"] == 200
