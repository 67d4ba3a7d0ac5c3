"""`python -m benchmarks`: run the suite, write the document.

python -m benchmarks run [--quick] [--only touch,ticks] [--out DIR]
python -m benchmarks document [--results DIR] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import suite
from .common import RESULTS, ROOT
from .page.results import NoResults


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 good, 1 a part failed, 2 bad arguments, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, and write docs/performance.md.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure: about 20 minutes; with --quick three")
    run.add_argument("--quick", action="store_true", help="small sizes: is it about right?")
    run.add_argument("--tiny", action="store_true", help="smallest sizes: does it run?")
    names = ", ".join(part.name for part in suite.PARTS if suite.present(part))
    run.add_argument("--only", metavar="PARTS", help=f"a list with commas, of {names}")
    run.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the JSON files go")
    write = commands.add_parser("document", help="write the document and its plots from the JSON files")
    write.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    write.add_argument("--out", type=Path, default=ROOT / "docs" / "performance.md", metavar="FILE")
    part = commands.add_parser("part", help="run one part in this process; what `run` starts")
    part.add_argument("name", choices=[part.name for part in suite.PARTS])
    part.add_argument("--scale", choices=["tiny", "quick", "full"], default="full")
    part.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        if options.command == "part":
            suite.run_part(options.name, options.scale, options.out)
            return 0
        if options.command == "document":
            from .page import document  # with it comes matplotlib, which no part needs

            document.write(options.results, options.out)
            print(f"wrote {options.out}")
            return 0
        try:
            parts = suite.chosen(options.only.split(",") if options.only else None)
        except ValueError as error:
            run.error(str(error))
        failed = suite.run_all(parts, "tiny" if options.tiny else "quick" if options.quick else "full", options.out)
    except KeyboardInterrupt:
        print("interrupted; what had been measured by then is kept", file=sys.stderr)
        return 130
    except NoResults as error:
        print(error, file=sys.stderr)
        return 2
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
