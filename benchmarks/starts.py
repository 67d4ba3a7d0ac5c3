"""What a Python start below `reaper run` costs beside one without, in machine instructions.

    python -m benchmarks.starts                  needs valgrind (Debian: apt-get install valgrind)

Every Python that a command starts imports the hook, also one that serves nothing. So this counts
`python -c pass` as it is and with the hook on its path, under callgrind: no neighbour disturbs it.
"""

from __future__ import annotations

import argparse
import py_compile
import shutil
import sys

from reaper.run.command import HOOK
from reaper.run.report import LENIENT, RUN

from .common import callgrind, markdown

HOOKED = f"""
import os, sys
os.environ[{RUN!r}] = {LENIENT!r}
sys.path.insert(0, {str(HOOK)!r})
try:
    import sitecustomize
except ImportError:  # as `site` has it: there is no other
    pass
"""


def count() -> dict[str, int]:
    """Instructions of a start, bare and with the hook.

    Raises RuntimeError as `callgrind`.
    """
    # In a fresh checkout the first Python compiles the hook, once; that is not what a start costs.
    py_compile.compile(str(HOOK / "sitecustomize.py"), doraise=True)
    return {
        "bare": callgrind(["-I", "-c", "pass"]),
        "below reaper run": callgrind(["-I", "-c", HOOKED]),
    }


def main() -> int:
    """Count and print. Exit status: 0, or 2 without valgrind."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not installed (Debian: apt-get install valgrind)")
        return 2
    found = count()
    rows = [[name, f"{each:,}", f"{each / found['bare']:.3f}"] for name, each in found.items()]
    print(markdown(["a start of Python", "instructions", "of the bare one"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
