"""Clients of HTTP/2 that others wrote, each asking a server for all of its answers."""

from __future__ import annotations

import subprocess

from tests.helpers.server_process import installed


def h2load_has_all(target: str, connections: int) -> None:
    """h2load has every answer to 1,000 requests on *connections*, 50 at a time on
    each.
    """
    command = [installed("h2load", "nghttp2-client"), "-n", "1000", "-c", str(connections)]
    url = f"http://{target}/some?2000"
    done = subprocess.run([*command, "-m", "50", url], capture_output=True, text=True, check=True)
    counts = "1000 total, 1000 started, 1000 done, 1000 succeeded, 0 failed, 0 errored, 0 timeout"
    assert f"requests: {counts}" in done.stdout


def nghttp_has_all(target: str) -> None:
    """nghttp has the whole of a long answer."""
    command = [installed("nghttp", "nghttp2-client"), f"http://{target}/some?300000"]
    assert len(subprocess.run(command, capture_output=True, check=True).stdout) == 300_000
