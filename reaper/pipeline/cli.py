"""The commands: audit, advise, live, report. Exit status 0 = good, 1 = the check it ran failed, 2 = bad arguments.

What a machine may read goes to stdout with `--json`, what a person wants to follow goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .inputs import Inputs, check
from .session import NoJava, open_session

if TYPE_CHECKING:
    from .advise import Advice, Policy
    from .audit import Audit, Settings

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}

Progress = Callable[[str], None]


class Fault(Exception):
    """The arguments cannot be worked with. The message is the one line that is shown."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def duration_ns(text: str) -> int:
    """`250ms`, `30s`, `5m`, `1h`, `7d` as ns; for argparse."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 250ms, 30s, 5m, 1h or 7d")
    return round(float(match[1]) * _UNITS_NS[match[2]])


def share(text: str) -> float:
    """`0.001` or `0.1%` as a share between 0 and 1, both exclusive; for argparse."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 0.001 or 0.1%")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = _parser().parse_args(argv)
    began = time.monotonic()

    def progress(text: str) -> None:
        if not arguments.quiet:
            print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        status: int = arguments.run(arguments, progress)
    except (Fault, NoJava, FileNotFoundError) as error:
        print(f"{arguments.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{arguments.prog}: stopped", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m reaper.pipeline", description="What journals and access logs tell, read with Spark."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace, Progress], int], summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(run=run, prog=sub.prog)
        sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go; made if missing")
        sub.add_argument(
            "--master", metavar="URL", help="a Spark master, or sc://... ; default: what the environment says"
        )
        sub.add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")
        sub.add_argument("--quiet", action="store_true", help="no progress on stderr")
        return sub

    sub = command("audit", _audit, "One verdict per connection: did the law of time hold?")
    _add_inputs(sub)
    _add_law(sub)
    sub = command("advise", _advise, "Which timeout, tick and wheel size this traffic wants, as a reaper.toml.")
    _add_inputs(sub, required=False)
    _add_policy(sub)
    sub = command("report", _report, "Audit and advice as one HTML page that opens offline.")
    _add_inputs(sub)
    _add_law(sub)
    _add_policy(sub)
    sub = command("live", _live, "Follow a growing journal: windowed figures and idle connections across servers.")
    sub.add_argument("--events", type=Path, required=True, metavar="DIR", help="a journal, still written to")
    sub.add_argument(
        "--for", type=duration_ns, dest="seconds_ns", metavar="DURATION", help="stop after it; default: at once"
    )
    sub.add_argument(
        "--window", type=duration_ns, default=10 * 10**9, metavar="DURATION", help="of the figures; default 10s"
    )
    sub.add_argument(
        "--delay", type=duration_ns, default=60 * 10**9, metavar="DURATION", help="how late rows may come; default 60s"
    )
    sub.add_argument("--drain", action="store_true", help="nobody writes any more: let the last connections come out")
    return parser


def _add_inputs(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--events", type=Path, nargs="+", default=[], required=required, metavar="DIR", help="journals of servers"
    )
    parser.add_argument(
        "--client", type=Path, nargs="+", default=[], metavar="DIR", help="journals of the load generator"
    )
    parser.add_argument("--no-checksums", action="store_true", help="do not verify every page before reading")
    parser.add_argument(
        "--max-age", type=duration_ns, default=3650 * _UNITS_NS["d"], metavar="DURATION",
        help="put files aside that ended longer ago; default 3650d",
    )  # fmt: skip


def _add_law(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace", type=duration_ns, metavar="DURATION", help="lateness excused beyond one tick; default 250ms"
    )
    parser.add_argument(
        "--flight",
        type=duration_ns,
        metavar="DURATION",
        help="bytes sent so shortly before a reap crossed it; default 50ms",
    )
    parser.add_argument(
        "--tick", type=duration_ns, metavar="DURATION", help="of files that do not state it; default 1s"
    )


def _add_policy(parser: argparse.ArgumentParser) -> None:
    from .requests import FORMATS
    from .survival import BALANCERS

    parser.add_argument(
        "--logs", type=Path, nargs="+", default=[], metavar="FILE", help="access logs instead of journals"
    )
    parser.add_argument("--format", choices=sorted(FORMATS), help="their format")
    parser.add_argument(
        "--timeout", type=duration_ns, metavar="DURATION", help="timeout in force when they were written; default 75s"
    )
    parser.add_argument(
        "--max-cut",
        type=share,
        default=0.001,
        metavar="SHARE",
        help="silences that may be cut though they would have ended; default 0.1%%",
    )
    parser.add_argument(
        "--behind", choices=sorted(BALANCERS), help="the load balancer in front: the timeout must outlast its own"
    )
    parser.add_argument(
        "--longest",
        type=duration_ns,
        default=3600 * 10**9,
        metavar="DURATION",
        help="longest timeout to consider; default 1h",
    )


def _inputs(arguments: argparse.Namespace, progress: Progress) -> tuple[Inputs, Inputs | None]:
    options: dict[str, Any] = {
        "checksums": not arguments.no_checksums,
        "max_age_ns": arguments.max_age,
        "progress": progress,
    }
    _require(arguments.events + arguments.client)
    server = check(arguments.events, **options)
    client = check(arguments.client, **options) if arguments.client else None
    for found in (server, client):
        for entry in found.quarantined if found else ():
            progress(f"put aside: {entry['path']}: {entry['reason']}")
        if found and found.growing:
            progress(f"{found.growing} stream(s) are no Parquet yet and are not read")
    return server, client


def _settings(arguments: argparse.Namespace) -> Settings:
    from .audit import Settings

    given = {"grace_ns": arguments.grace, "flight_ns": arguments.flight, "tick_ns": arguments.tick}
    return Settings(**{key: value for key, value in given.items() if value is not None})


def _policy(arguments: argparse.Namespace) -> Policy:
    from .advise import Policy

    return Policy(max_cut=arguments.max_cut, behind=arguments.behind, longest_s=arguments.longest / 1e9)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _show(arguments: argparse.Namespace, summary: object, text: str) -> None:
    print(json.dumps(summary, indent=2) if arguments.json else text)


def _run_audit(
    spark: Any, arguments: argparse.Namespace, server: Inputs, client: Inputs | None, progress: Progress
) -> Audit:
    from .audit import as_text, audit

    arguments.out.mkdir(parents=True, exist_ok=True)
    result = audit(spark, server, client, arguments.out, _settings(arguments), progress)
    _write(arguments.out / "audit.json", result.summary)
    (arguments.out / "audit.txt").write_text(as_text(result.summary) + "\n", encoding="utf-8")
    return result


def _audit(arguments: argparse.Namespace, progress: Progress) -> int:
    from .audit import as_text

    server, client = _inputs(arguments, progress)
    progress("starting Spark")
    with open_session("audit", arguments.master, rows=_rows(server, client)) as spark:
        result = _run_audit(spark, arguments, server, client, progress)
    _show(arguments, result.summary, as_text(result.summary))
    return 0 if result.passed else 1


def _run_advise(spark: Any, arguments: argparse.Namespace, server: Inputs, progress: Progress) -> Advice:
    from .advise import advise, as_text, as_toml

    logs = (arguments.format, arguments.logs, arguments.timeout or 75 * 10**9) if arguments.logs else None
    result = advise(spark, server, logs, _policy(arguments), progress)
    _write(arguments.out / "advice.json", result.summary)
    (arguments.out / "advice.txt").write_text(as_text(result.summary) + "\n", encoding="utf-8")
    (arguments.out / "reaper.toml").write_text(as_toml(result.summary), encoding="utf-8")
    return result


def _advise(arguments: argparse.Namespace, progress: Progress) -> int:
    from .advise import as_text

    if bool(arguments.events) == bool(arguments.logs):
        raise Fault("one of --events DIR and --logs FILE must be given, and not both")
    if arguments.logs and not arguments.format:
        raise Fault("--logs needs --format, one of: see --help")
    _require(arguments.logs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    server, _ = _inputs(arguments, progress)
    progress("starting Spark")
    with open_session("advise", arguments.master, rows=_rows(server, None)) as spark:
        result = _run_advise(spark, arguments, server, progress)
    _show(arguments, result.summary, as_text(result.summary))
    return 0 if result.complete else 1


def _report(arguments: argparse.Namespace, progress: Progress) -> int:
    from .page import gather, render

    if arguments.logs:
        raise Fault("report reads journals: --logs is for advise")
    server, client = _inputs(arguments, progress)
    progress("starting Spark")
    with open_session("report", arguments.master, rows=_rows(server, client)) as spark:
        audited = _run_audit(spark, arguments, server, client, progress)
        advice = _run_advise(spark, arguments, server, progress)
        progress("gathering the charts")
        charts = gather(spark, audited, server)
    page = arguments.out / "report.html"
    page.write_text(render(audited.summary, advice.summary, charts), encoding="utf-8")
    outcome = {"result": audited.summary["result"], "page": str(page), "reasons": audited.summary["reasons"]}
    _show(arguments, outcome, f"{page}: audit {audited.summary['result'].upper()}")
    return 0 if audited.passed else 1


def _live(arguments: argparse.Namespace, progress: Progress) -> int:
    from .live import as_text, follow

    _require([arguments.events])
    progress("starting Spark")
    with open_session("live", arguments.master) as spark:
        summary = follow(
            spark,
            arguments.events,
            arguments.out,
            window_ns=arguments.window,
            delay_ns=arguments.delay,
            seconds=(arguments.seconds_ns or 0) / 1e9,
            drain=arguments.drain,
            progress=progress,
        )
    _show(arguments, summary, as_text(summary))
    return 1 if summary["dropped_by_watermark"] else 0


def _rows(server: Inputs, client: Inputs | None) -> int:
    return sum(facts.rows for found in (server, client) if found for facts in found.files)


def _require(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise Fault(f"no such file or directory: {path}")
