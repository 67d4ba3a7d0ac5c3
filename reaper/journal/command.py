"""`reaper journal ship`: its flags, its signals, and what it says.

Exit status 0: every finished file has arrived. 1: some are still here, and why is said.
2: bad arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.flags import duration
from ..config.running import alone, progress_on_stderr, stoppable
from ..errors import InvalidArgument, ReaperError, needs, one_line

if TYPE_CHECKING:
    from .ship import Shipped

ABOUT = "What becomes of a journal's files."
LONGEST_PAUSE = 60.0
"""Seconds between two tries of a place that fails, at most; more where `--every` is
more.
"""


def add_commands(commands: Any) -> None:
    """Add `ship` to *commands*, argparse's subparsers; it sets `run` to what runs
    it.
    """
    text = (
        "Bring finished files to where they are read: whole, once, and deleted here after they "
        "arrived."
    )
    ship = commands.add_parser("ship", help=text, description=text)
    ship.set_defaults(run=_run, prog=ship.prog)
    ship.add_argument(
        "--journal", type=Path, required=True, metavar="DIR", help="the journal of this machine"
    )
    ship.add_argument(
        "--to",
        required=True,
        metavar="URI|DIR",
        help="a directory here, or file:, s3:, gs:, hdfs:, viewfs: or abfs:",
    )
    ship.add_argument(
        "--watch", action="store_true", help="go on until SIGTERM or Ctrl-C; default: once"
    )
    ship.add_argument(
        "--every",
        type=duration(0.001),
        default=10.0,
        metavar="DURATION",
        help="with --watch: how often; default 10s",
    )
    ship.add_argument("--keep", action="store_true", help="delete nothing here")
    ship.add_argument("--json", action="store_true", help="print the summary as JSON")
    ship.add_argument("--quiet", action="store_true", help="no progress on stderr")


def _run(arguments: argparse.Namespace) -> int:
    try:
        return _ship(arguments)
    except (ReaperError, ImportError) as error:
        print(f"{arguments.prog}: {error}", file=sys.stderr)
        return 2


def _ship(arguments: argparse.Namespace) -> int:
    with needs("this", "idle-reaper[journal]"):
        from .places import Place
        from .ship import LOCK, Shipper

    journal: Path = arguments.journal
    if not journal.is_dir():
        raise InvalidArgument(f"--journal {str(journal)!r} is not a directory")
    try:
        place = Place(arguments.to)
        if place.local is not None:
            _apart(journal, place.local)
        place.reach()
    except InvalidArgument as error:
        raise InvalidArgument(f"--to {error}") from None
    progress = progress_on_stderr(arguments.quiet)

    def busy(pid: str) -> Exception:
        return InvalidArgument(f"process {pid} ships {journal} already")

    try:
        with alone(journal / LOCK, busy), stoppable() as stop:
            shipper = Shipper(journal, place, keep=arguments.keep, progress=progress)
            said, pause = shipper.once(stop).failed, arguments.every
            _complain(said, {})
            while arguments.watch and not stop.wait(pause):
                failed = shipper.once(stop).failed
                _complain(failed, said)
                said = failed
                pause = (
                    min(2 * pause, max(LONGEST_PAUSE, arguments.every))
                    if "" in failed
                    else arguments.every
                )
    except OSError as error:
        raise InvalidArgument(
            f"--journal {str(journal)!r} cannot be worked in: {one_line(error)}"
        ) from None
    print(
        json.dumps(shipper.shipped.as_json(place.uri), indent=2)
        if arguments.json
        else as_text(shipper.shipped)
    )
    return 1 if shipper.shipped.failed else 0


def _apart(journal: Path, to: Path) -> None:
    here, there = journal.resolve(), to.resolve()
    if here.is_relative_to(there) or there.is_relative_to(here):
        raise InvalidArgument(
            f"{str(to)!r} and --journal {str(journal)!r} lie within each other: name another"
        )


def _complain(failed: dict[str, str], said: dict[str, str]) -> None:
    for name, reason in failed.items():
        if said.get(name) != reason:
            print(
                f"not shipped: {name}: {reason}" if name else f"stopped: {reason}",
                file=sys.stderr,
                flush=True,
            )


def as_text(shipped: Shipped) -> str:
    """The summary as lines to read."""
    text = f"{shipped.files:,} file(s) arrived, {shipped.bytes / 1e6:,.1f} MB"
    if shipped.already_there:
        text += f"; {shipped.already_there:,} of them were there already"
    if shipped.waiting:
        text += f"; {shipped.waiting:,} wait"
    return text + (
        f"; {shipped.growing:,} stream(s) are still being written" if shipped.growing else ""
    )
