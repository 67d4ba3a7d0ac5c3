"""The command `report`: an audit and an advice, and the page of both."""

from __future__ import annotations

import argparse

from ..advise.command import add_policy, policy_of, run_advise
from ..arguments import AddCommand, Progress, show
from ..audit.command import add_law, law_of, run_audit
from ..places import write_text
from ..read.command import Request, add_inputs, asking


def add(command: AddCommand) -> None:
    """Declare `report`."""
    sub = command("report", _report, "Audit and advice as one HTML page that opens offline.")
    add_inputs(sub)
    add_law(sub)
    add_policy(sub)


def _report(arguments: argparse.Namespace, progress: Progress) -> int:
    request = Request.of("report", arguments)
    law, policy = law_of(arguments), policy_of(arguments)
    with asking(request, progress) as (spark, server, client):
        from .run import gather, render

        audited = run_audit(spark, server, client, request.out, law, progress)
        advice = run_advise(spark, server, None, request.out, policy, progress)
        progress("gathering the charts")
        charts = gather(audited, server)
        page = request.out / "report.html"
        write_text(page, render(audited.summary, advice, charts))
    outcome = {
        "result": audited.summary["result"],
        "page": str(page),
        "reasons": audited.summary["reasons"],
    }
    show(arguments.json, outcome, f"{page}: audit {audited.summary['result'].upper()}")
    return 0 if audited.passed else 1
