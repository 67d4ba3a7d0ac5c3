"""Claim: the table of the cheapest holds in docs/timeouts.md is what the default settings come to."""

from __future__ import annotations

import re
from pathlib import Path

from reaper.config import ReaperConfig
from server_example.http.connection import OVERHEAD_BYTES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "timeouts.md"
HOUR = 3600.0


def rows() -> dict[str, tuple[str, str]]:
    """What the client does -> (bytes per hour, at most)."""
    section = PAGE.read_text().split("## The cheapest hold")[1].split("\n## ")[0]
    cells = [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if line.startswith("| ")]
    return {does: (cost, most) for does, cost, most, _ in cells[1:] if not does.startswith("---")}


def test_the_table_of_holds_is_what_the_defaults_come_to() -> None:
    config = ReaperConfig()
    timeouts, limits = config.timeouts, config.limits
    found = {does.split(",")[0].split(" (")[0]: row for does, row in rows().items()}
    seconds = {name: f"{getattr(timeouts, name):g} s" for name in ("first_byte", "half_closed", "linger")}
    assert timeouts.headers == timeouts.handshake == timeouts.first_byte
    body = (2 * limits.max_body_bytes + OVERHEAD_BYTES) / limits.min_in_rate
    assert found == {
        "connects and says nothing": ("none", seconds["first_byte"]),
        "drips headers": ("any", seconds["first_byte"]),
        "sends a body": (f"{limits.min_in_rate * HOUR:,.0f}", f"{body / HOUR:.1f} h per request"),
        "waits for a request that takes long": (
            f"{38 * HOUR / timeouts.request:.0f}",
            f"{timeouts.request / 60:.0f} min per request, {limits.max_requests} requests",
        ),
        "shuts its side while it waits": ("none", seconds["half_closed"]),
        "takes a response slowly": (f"{limits.min_out_rate * HOUR:,.0f}", "until it has all"),
        "asks again just before it is closed": (
            f"{26 * HOUR / timeouts.keep_alive:,.0f}",
            f"{timeouts.keep_alive:.0f} s per request, {limits.max_requests} requests",
        ),
        "keeps a tunnel": (f"{HOUR / timeouts.tunnel:.0f}", f"{timeouts.tunnel_age / HOUR:.0f} h"),
        "does not close after the last response": ("none", seconds["linger"]),
    }
    assert len(b"GET / HTTP/1.1\r\nHost:x\r\n\r\n") == 26
    assert len(b"GET /sleep?s=300 HTTP/1.1\r\nHost: x\r\n\r\n") == 38
