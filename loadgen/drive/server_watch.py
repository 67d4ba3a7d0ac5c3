"""Looks at the server from outside: memory and CPU of its processes, when they are ours to look at.

One rule: what cannot be seen is null. psutil is imported only when there is a process to watch.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import Any

from ..judge.report import UNKNOWN_SERVER
from ..units import BadArgument


class ServerWatch:
    """Samples the process trees under *pids*; without any, `result` is all null."""

    def __init__(self, pids: list[int]) -> None:
        self.roots: list[Any] = []
        if pids:
            try:
                import psutil
            except ImportError:
                raise BadArgument("--server-pid needs psutil: pip install psutil, or leave the option out") from None
            for pid in pids:
                try:
                    self.roots.append(psutil.Process(pid))
                except psutil.Error:
                    raise BadArgument(
                        f"--server-pid {pid}: no such process: give the pid of a running server"
                    ) from None
        self.samples: dict[str, tuple[float, int, float, int]] = {}

    def sample(self, phase: str) -> None:
        """Note memory and CPU time under the name *phase* ("before", "open", "after")."""
        if self.roots:
            rss, cpu, workers = self._look()
            self.samples[phase] = (monotonic(), rss, cpu, workers)

    def result(self, connections: int) -> dict[str, Any]:
        """The report's `server` block for that many connections."""
        before, full, after = (self.samples.get(name) for name in ("before", "open", "after"))
        if before is None or after is None:
            return dict(UNKNOWN_SERVER)
        return {
            "workers": before[3],
            "rss_bytes_per_connection": (full[1] - before[1]) / connections if full and connections else None,
            "cpu_fraction": (after[2] - before[2]) / (after[0] - before[0]),
            "rss_bytes_before": before[1],
            "rss_bytes_open": full[1] if full else None,
        }

    def _look(self) -> tuple[int, float, int]:
        import psutil

        rss, cpu, workers = 0, 0.0, 0
        for root in self.roots:
            try:
                children = root.children(recursive=True)
            except psutil.Error:
                continue
            workers += max(len(children), 1)
            for process in [root, *children]:
                try:
                    rss += process.memory_info().rss
                    times = process.cpu_times()
                    cpu += times.user + times.system
                except psutil.Error:
                    continue  # it ended between listing and looking
        return rss, cpu, workers


def read_server_stats(path: Path) -> dict[str, Any]:
    """The `server` block from a JSON file that the server has written.

    Raises:
        BadArgument: it cannot be read or is no JSON object.
    """
    try:
        stats = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadArgument(f"--server-stats {path}: {error}: give a file with one JSON object") from None
    if not isinstance(stats, dict):
        raise BadArgument(f"--server-stats {path}: holds a {type(stats).__name__}: give a file with one JSON object")
    return UNKNOWN_SERVER | stats
