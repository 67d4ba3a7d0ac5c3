"""What the check of a journal costs this process: bytes read, and seconds, with the rows counted by Spark and here.

    python -m benchmarks.pipeline.checking --events 1M 10M 50M

Bytes are what the kernel says that this process has read from files: Spark's Java is another process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.pipeline.generate.command import count
from benchmarks.pipeline.generate.run import Plan, generate
from reaper.pipeline.engine import open_session
from reaper.pipeline.read.inputs import check
from reaper.pipeline.read.spark_counts import verify


def bytes_read() -> int:
    """From files, by this process, since it began."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def measure(directory: Path, spark: Any) -> tuple[float, float, float, int]:
    """Megabytes read here, seconds, seconds of this process's CPU, files."""
    before, began, cpu = bytes_read(), time.perf_counter(), time.process_time()
    found = check([directory], spark=spark)
    assert not found.quarantined
    return (
        (bytes_read() - before) / 1e6,
        time.perf_counter() - began,
        time.process_time() - cpu,
        len(found.files),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=count, nargs="+", default=[1_000_000], metavar="N", help="such as 1M 10M 50M")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="the first also warms the JVM up; default 3")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reaper-check-") as scratch:
        places = {rows: Path(scratch, str(rows)) for rows in arguments.events}
        for rows, place in places.items():
            generate(Plan(rows), place, lambda _: None)
        head = f"{'rows':>12} {'files':>6} {'round':>6} {'counted by':>11}"
        print(f"{head} {'MB read here':>13} {'s':>7} {'CPU s here':>11}")
        with open_session("checking", "local[*]", rows=None) as spark:
            verify(spark, True)
            for number in range(1, arguments.rounds + 1):
                for rows, place in places.items():
                    for name, session in (("Spark", spark), ("here", None)):
                        read, wall, cpu, files = measure(place, session)
                        shown = f"{rows:>12,} {files:>6} {number:>6} {name:>11}"
                        print(f"{shown} {read:>13.2f} {wall:>7.2f} {cpu:>11.2f}", flush=True)


if __name__ == "__main__":
    main()
