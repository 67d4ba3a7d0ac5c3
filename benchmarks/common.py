"""What every benchmark shares: how time is taken, how samples are reported, what they
were taken on.

One rule: a comparison is a ratio within one round. The machine's moods hit both sides
of a round alike, so the median of such ratios means something where the figures
themselves swing by half from run to run.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

Scale = Literal["tiny", "quick", "full"]
"""How much: tiny sees that it runs, quick that it is about right, full is what the
document is made of.
"""

Note = Callable[[str], None]
"""Called now and then with what is being done: one short line."""

LONGEST = 600
"""Seconds that one run under valgrind or strace may take."""

CACHE_BYTES = 64 << 20
"""Read before a pass that is to find nothing in the caches; twice the last-level cache
of the machines at hand.
"""


def by_scale(scale: Scale, tiny: Any, quick: Any, full: Any) -> Any:
    """The one of the three that belongs to *scale*."""
    return {"tiny": tiny, "quick": quick, "full": full}[scale]


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Median, p10 and p90, least and most of *samples*, and the samples themselves in
    the order they were taken.
    """
    ordered = sorted(samples)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(last * 0.1)],
        "p90": ordered[round(last * 0.9)],
        "min": ordered[0],
        "max": ordered[-1],
        "samples": [float(f"{sample:.6g}") for sample in samples],
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """The spread of ours/theirs, round by round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the first column is to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def times(found: dict[str, Any], digits: int = 2) -> str:
    """A spread of ratios as the pages have it: median (10th to 90th percentile)."""
    return f"{found['median']:.{digits}f}x ({found['p10']:.{digits}f}-{found['p90']:.{digits}f})"


def figure(value: float | None) -> str:
    """Three significant digits, thousands with commas; `-` for None."""
    if value is None:
        return "-"
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def short(n: int | str) -> str:
    """1,000,000 as 1M."""
    n = int(n)
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if n >= size and n % (size // 10) == 0:
            return f"{n / size:g}{letter}"
    return f"{n:,}"


def ns_of(function: Callable[..., object], *args: Any) -> int:
    """Nanoseconds of CPU time, of all threads of this process, of one call: what others
    take meanwhile is not in it.
    """
    before = time.process_time_ns()
    function(*args)
    return time.process_time_ns() - before


def loop_only(items: Iterable[Any]) -> None:
    """What every pass pays and no touch is to blame for."""
    for _ in items:
        pass


_cold = numpy.ones(CACHE_BYTES // 8)  # ones: zeros would all be one page of the kernel


def cool() -> None:
    """Push whatever lies in the processor's caches out of them. About 10 ms."""
    _cold.sum()


def names(count: int) -> list[str]:
    """*count* keys as a server has them."""
    return [f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}:{i & 65535}" for i in range(count)]


def under(tool: list[str], program: list[str], cwd: Path = ROOT) -> str:
    """What *tool* says on stderr of a Python *program*, whose hashing and environment
    are fixed: it counts, so every run must be the same. Raises RuntimeError: it failed;
    the message is its output.
    """
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"}
    command = [*tool, sys.executable, *program]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode:
        raise RuntimeError(f"{tool[0]} failed: {done.stderr[-2000:]}")
    return done.stderr


def callgrind(program: list[str], cwd: Path = ROOT, *flags: str) -> int:
    """Machine instructions of a Python *program*. Raises RuntimeError as `under`, or
    nothing was counted.
    """
    said = under(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *flags], program, cwd
    )
    found = re.search(r"Collected : (\d+)", said)
    if found is None:
        raise RuntimeError(f"callgrind counted nothing: {said[-2000:]}")
    return int(found[1])
