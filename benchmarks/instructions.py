"""What the hot path costs in machine instructions, counted by callgrind: the one figure
that no neighbour can disturb.

    python -m benchmarks.instructions    needs valgrind (apt-get install valgrind)

The same program runs under callgrind once as it is and once for each part with that
part repeated more often; the difference over the extra repeats is the part's cost.
Hashing and addresses are fixed, so a count is the same to the last digit each time.
Counts tell nothing of caches: what a touch waits for memory is in
`benchmarks/heart/touch.py`.
"""

from __future__ import annotations

import argparse
import compileall
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from .common import ROOT, callgrind, markdown
from .instructions_program import BEATING, parts

PROGRAM = Path(__file__).with_name("instructions_program.py")

MANY = 5000
EXTRA = {
    "beat": 100,
    "idle tick small": 400,
    "idle tick large": 400,
    "register and release": 2000,
    "the same, among others": 2000,
    "the same, a timeout each": 2000,
    "the same, the least in Python": 2000,
    "the same, a heap": 2000,
}
"""How much more often a part is repeated than in the run that it is compared with; MANY
times those not named.
"""


def collect(home: Path, part: str, repeats: int) -> int:
    """Instructions of one run of the program in *home* under callgrind, with *repeats*
    more of *part*.

    Raises RuntimeError as `callgrind`.
    """
    # Padded: where the stack begins depends on how long the arguments are.
    return callgrind(["-S", PROGRAM.name, part.ljust(32), f"{repeats:06}"], home)


def count(wanted: Sequence[str], note: Callable[[str], None] = lambda _: None) -> dict[str, float]:
    """Instructions of each of *wanted*, net of the loop around it; of `beat` (a touch
    and a move) per lease.

    Cost: one run of the program each, about three seconds of CPU, two at a time.
    """
    note(f"counting the instructions of {len(wanted)} parts")
    # In a folder of its own: the import system lists folders, and what is listed in the
    # checkout may change meanwhile.
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        home = Path(folder)
        shutil.copytree(
            ROOT / "reaper",
            home / "reaper",
            ignore=shutil.ignore_patterns("__pycache__", "pipeline"),
        )
        shutil.copy(PROGRAM, home)
        compileall.compile_dir(home, quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        runs = [("none", 0), ("loop", MANY), *((part, EXTRA.get(part, MANY)) for part in wanted)]
        base, loop, *found = pool.map(lambda each: collect(home, *each), runs)
    each_loop = (loop - base) / MANY
    each = {
        part: (total - base) / EXTRA.get(part, MANY)
        for part, total in zip(wanted, found, strict=True)
    }
    if "beat" in each:
        each["beat"] /= BEATING
    return {
        part: round(cost - (0 if part in EXTRA else each_loop), 1) for part, cost in each.items()
    }


def run(_scale: str = "full", note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """{"instructions": {part: count}} of all parts of the program; {"absent": why}
    without valgrind.
    """
    if shutil.which("valgrind") is None:
        return {"absent": "valgrind is not installed (Debian: apt-get install valgrind)"}
    return {"instructions": count([part for part in parts() if part != "loop"], note)}


def table(found: dict[str, Any]) -> str:
    """A row per part."""
    rows = [[name, f"{cost:,.0f}"] for name, cost in found["instructions"].items()]
    return markdown(["", "instructions"], rows)


def main() -> int:
    """Count and print. Exit status: 0, or 2 without valgrind."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    found = run(note=lambda text: print(text, file=sys.stderr))
    print(found["absent"] if "absent" in found else table(found))
    return 2 if "absent" in found else 0


if __name__ == "__main__":
    sys.exit(main())
