"""The report on access logs: the advice, and which requests a proxy lost to an idle
close. One HTML file that opens offline.

An access log does not show single closes, so nothing in it is audited.
"""

from __future__ import annotations

import time
from typing import Any

from ...html.parts import card, document, footer, header, table, tiles, warning
from ...html.units import seconds, spoken
from .run import advice_cards


def render(advice: dict[str, Any], lost: dict[str, Any] | None) -> str:
    """The page as HTML.

    Args:
        advice: What `advise` says of the logs.
        lost: What `losses` says of them; None: they do not name the servers behind.
    """
    verdict, title = _verdict(advice, lost)
    requests = sum(entry["silences"] for entry in advice["listeners"].values())
    text = (
        f"{advice['source']} logs of {seconds(advice['observed_s'])}: "
        f"{advice['rows_judged']:,} lines, {requests:,} silences after a request."
    )
    body = [
        header(verdict, "report on access logs", title, text),
        _tiles(advice, lost),
        _aside(advice),
        _losses(lost),
        advice_cards(advice),
        footer(
            [
                *advice["notes"],
                *(lost["notes"] if lost is not None else []),
                (
                    "An access log names no close for silence: whether each came in time only a "
                    "journal can tell."
                ),
                (
                    f"Made {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by python -m "
                    "reaper.pipeline report."
                ),
            ]
        ),
    ]
    return document(f"reaper: {title}", body)


def _verdict(advice: dict[str, Any], lost: dict[str, Any] | None) -> tuple[str, str]:
    """The class of the header, and the headline."""
    if lost is not None and lost["lost"]:
        return "fail", "Requests were lost to connections that were closed as they came"
    if advice["result"] == "pass":
        return "pass", "The log says which timeout this traffic wants"
    return "inconclusive", "Inconclusive: the log does not say enough"


def _tiles(advice: dict[str, Any], lost: dict[str, Any] | None) -> str:
    shown = [
        (f"advised {name}", seconds(timeout["timeout_s"]), f"for {timeout['listener']}", "")
        for name, timeout in list(advice["config"].get("timeouts", {}).items())[:2]
    ]
    if lost is not None:
        said = f"of {lost['requests']:,} that went to a server"
        style = "bad" if lost["lost"] else ""
        shown.append(("requests lost", f"{lost['lost']:,}", said, style))
        if lost["keep_alive_s"] is not None:
            wanted, idle = f"{lost['keep_alive_s']:g}s", spoken(lost["proxy_idle_s"])
            shown.append(
                ("keep_alive that ends it", wanted, f"the proxy keeps an idle one for {idle}", "")
            )
    return tiles(shown)


def _aside(advice: dict[str, Any]) -> str:
    reasons = [f"{entry['path']}: {entry['reason']}" for entry in advice["quarantined"]]
    return warning("Not read", reasons) if reasons else ""


def _losses(lost: dict[str, Any] | None) -> str:
    if lost is None:
        return ""
    rows = [
        [
            name,
            f"{entry['requests']:,}",
            f"{entry['lost']:,}",
            " to ".join(dict.fromkeys(map(spoken, entry["silence_s"] or ()))) or "-",
            f"{entry['untold']:,}",
            f"{entry['failed_otherwise']:,}",
        ]
        for name, entry in lost["upstreams"].items()
    ]
    head = ["server", "requests", "lost", "after silences of", "untold", "failed otherwise"]
    text = (
        "Lost: the server closed its idle connection as the request came. Untold: the server "
        "closed at once, but not after the same silence."
    )
    return card("Requests lost to an idle close", text, table(head, rows, {1, 2, 4, 5}))
