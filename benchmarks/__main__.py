"""`python -m benchmarks`: measure, and write docs/performance.md.

    python -m benchmarks run [NAME ...] [--quick] [--beside TEXT] [--out DIR]
    python -m benchmarks document [--results DIR] [--out FILE]
    python -m benchmarks release

Each program answers one question and has two functions: `run(scale, note)` measures and
returns what goes into its JSON file, `table(found)` makes Markdown of that. Each runs
in a process of its own, so that none inherits another's memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.provenance import machine

from . import dearer
from .common import RESULTS, ROOT, Scale
from .document import PROGRAMS, SLOW, Program, page, read, write_pages

PAGE = ROOT / "docs" / "performance.md"
SCHEMA = "reaper-benchmarks/1"


def measure(program: Program, scale: Scale, out: Path, beside: str = "") -> str:
    """Run *program* in this process, write its file, and return its table; notes go to
    stdout.

    The page says *beside* what it ran, if that is not empty.
    """
    about, began = machine(), time.monotonic()
    if beside:
        about["beside"] = beside
    module = program.load()
    found: dict[str, Any] = module.run(scale, lambda text: print(f"# {text}", flush=True))
    head = {
        "schema": SCHEMA,
        "part": program.name,
        "scale": scale,
        "about": about,
        "seconds": time.monotonic() - began,
    }
    whole = out / f"{program.name}.json"
    partial = whole.with_suffix(".json.part")
    partial.write_text(json.dumps({**head, **found}) + "\n")
    partial.rename(whole)
    return str(found["absent"] if "absent" in found else module.table(found))


def run_all(programs: Sequence[Program], scale: Scale, out: Path, beside: str = "") -> list[str]:
    """Run *programs* one after the other, print their tables, and return those that
    failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for index, program in enumerate(programs):
        print(
            f"[{index + 1}/{len(programs)}] {program.name}: {program.title.lower()}",
            file=sys.stderr,
            flush=True,
        )
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            "measure",
            program.name,
            "--scale",
            scale,
            "--out",
            str(out),
            "--beside",
            beside,
        ]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("# "):
                    print(line, end="", flush=True)
                elif sys.stderr.isatty():
                    print(f"\r\x1b[K    {line[2:].rstrip()}", end="", file=sys.stderr, flush=True)
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if process.returncode:
            failed.append(program.name)
            print(f"    {program.name} FAILED; its old results, if any, stay", file=sys.stderr)
    return failed


def explained(results: Path) -> int:
    """1, and a word on stderr, if a figure of *results* got dearer and nobody has said
    why.
    """
    last = json.loads(dearer.LAST.read_text())
    missing = [each.name for each in dearer.dearer(read(results), last) if each.reason is None]
    for name in missing:
        print(
            f"{name}: dearer than in {last['version']}, and benchmarks/dearer.py has no reason",
            file=sys.stderr,
        )
    return 1 if missing else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 good, 1 a program failed or a figure got dearer without a reason,
    2 bad arguments, 130 interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure, and write docs/performance.md."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure: about 25 minutes; with --quick five")
    run.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(PROGRAMS)}; default: all but {' and '.join(SLOW)}",
    )
    run.add_argument("--quick", action="store_true", help="small sizes: is it about right?")
    run.add_argument("--tiny", action="store_true", help="smallest sizes: does it run?")
    run.add_argument(
        "--out", type=Path, default=RESULTS, metavar="DIR", help="where the JSON files go"
    )
    run.add_argument(
        "--beside",
        default="",
        metavar="TEXT",
        help="what else runs on this machine meanwhile; the page says so. The load is measured "
        "before a program begins: what comes later it does not show",
    )
    write = commands.add_parser("document", help="write the page from the JSON files")
    write.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    write.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    commands.add_parser("release", help="keep the figures: the next page is compared with them")
    one = commands.add_parser("measure", help="one program in this process; what `run` starts")
    one.add_argument("name", choices=PROGRAMS)
    one.add_argument("--scale", choices=["tiny", "quick", "full"], default="full")
    one.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    one.add_argument("--beside", default="", metavar="TEXT")
    options = parser.parse_args(arguments)
    try:
        if options.command == "measure":
            print(measure(PROGRAMS[options.name], options.scale, options.out, options.beside))
            return 0
        if options.command == "document":
            if not any(options.results.glob("*.json")):
                write.error(f"--results {options.results}: no results there; measure first")
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(page(options.results))
            if options.out == PAGE:
                write_pages(read(options.results))
            print(f"wrote {options.out}")
            return explained(options.results)
        if options.command == "release":
            dearer.keep(read(RESULTS))
            print(f"wrote {dearer.LAST}")
            return 0
        for name in options.names:
            if name not in PROGRAMS:
                run.error(f"NAME {name}: must be of {', '.join(PROGRAMS)}")
        names = options.names or [name for name in PROGRAMS if name not in SLOW]
        scale: Scale = "tiny" if options.tiny else "quick" if options.quick else "full"
        chosen = [PROGRAMS[name] for name in names]
        failed = run_all(chosen, scale, options.out, options.beside)
    except KeyboardInterrupt:
        print("interrupted; what had been measured by then is kept", file=sys.stderr)
        return 130
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
