"""The command `report`: an audit and an advice, and the page of both. For access logs:
an advice, the requests that were lost, and the page of both.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..advise.command import add_logs, add_policy, logs_of, policy_of, run_advise
from ..arguments import AddCommand, Fault, Progress, show, write_answer
from ..audit.command import add_law, law_of, run_audit
from ..losses.formats import KNOWN
from ..places import write_text
from ..read.command import Request, add_inputs, asking

if TYPE_CHECKING:
    from ..advise.run import AccessLogs


def add(command: AddCommand) -> None:
    """Declare `report`."""
    sub = command("report", _report, "Audit and advice as one HTML page that opens offline.")
    add_inputs(sub, required=False)
    add_logs(sub)
    add_law(sub)
    add_policy(sub)


def _report(arguments: argparse.Namespace, progress: Progress) -> int:
    if arguments.logs and arguments.client:
        raise Fault("--client is for --events: an access log is not audited")
    if (logs := logs_of(arguments)) is not None:
        return _of_logs(arguments, logs, progress)
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


def _of_logs(arguments: argparse.Namespace, logs: AccessLogs, progress: Progress) -> int:
    request, policy = Request.of("report", arguments), policy_of(arguments)
    with asking(request, progress) as (spark, server, _):
        from ..losses.run import as_text, losses
        from .logs import render

        advice = run_advise(spark, server, logs, request.out, policy, progress)
        name, paths, _ = logs
        lost = losses(spark, name, paths, progress=progress) if name in KNOWN else None
        if lost is not None and lost["requests"]:
            write_answer(request.out, "losses", lost, as_text(lost))
        else:  # the log says nothing of the servers behind
            lost = None
        page = request.out / "report.html"
        write_text(page, render(advice, lost))
    result = "fail" if lost is not None and lost["lost"] else advice["result"]
    outcome = {"result": result, "page": str(page), "reasons": advice["notes"]}
    show(arguments.json, outcome, f"{page}: {result.upper()}")
    return 0 if result == "pass" else 1
