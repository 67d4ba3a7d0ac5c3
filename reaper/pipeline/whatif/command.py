"""The command `what-if`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ...config.flags import Parser
from ..arguments import AddCommand, Fault, Progress, positive_ns, share, show, write_json
from ..places import write_text
from ..read.command import add_inputs, asking, read_inputs
from .settings import CannotTell, Rule, Setting, duration, parse


def add(command: AddCommand) -> None:
    """Declare `what-if`."""
    sub: Parser = command("what-if", _what_if, "Replay a journal under other settings, and say how well each is known.")
    add_inputs(sub, client=False)
    sub.add_argument(
        "--set", nargs="+", action="append", default=[], metavar="KEY=VALUE", dest="sets",
        help="one row: timeout=20s, timeout.LISTENER=20s, timeout.LISTENER@75s=60s (only where 75s was in force), "
        "tick=, jitter=; may be repeated",
    )  # fmt: skip
    sub.add_argument("--timeouts", metavar="D,D,...", help="a row for each: that timeout in place of every other")
    sub.add_argument(
        "--tick", type=positive_ns, metavar="DURATION", help="of every row but the first; default: the log's"
    )
    sub.add_argument(
        "--jitter", type=share, default=0.0, metavar="SHARE", help="of every row but the first; default none"
    )


def _what_if(arguments: argparse.Namespace, progress: Progress) -> int:
    from .answer import as_text, render

    try:
        base, variants = _settings(arguments)
        with asking("what-if", arguments, progress) as spark:
            from .run import what_if

            arguments.out.mkdir(parents=True, exist_ok=True)
            server, _ = read_inputs(spark, arguments, progress)
            result = what_if(spark, server, base, variants, arguments.sets, progress)
            text = as_text(result.summary)
            write_json(arguments.out / "what-if.json", result.summary)
            write_text(arguments.out / "what-if.txt", text + "\n")
            write_text(arguments.out / "what-if.html", render(result.summary, result.curves))
    except CannotTell as error:
        raise Fault(str(error)) from None
    show(arguments, result.summary, text)
    asked = result.summary["rows"][1:]
    if asked and all(row["refused"] for row in asked):
        raise Fault(f"the log cannot tell: {asked[0]['refused']}")
    return 0 if result.complete else 1


def _settings(arguments: argparse.Namespace) -> tuple[Setting, list[Setting]]:
    """What every `--set` starts from; the rows that need no look into the log."""
    base = Setting("", tick_ns=arguments.tick, jitter=arguments.jitter)
    for words in arguments.sets:
        parse(words, base)  # what makes no sense is said before Spark is started
    variants = []
    for text in filter(None, (arguments.timeouts or "").split(",")):
        try:
            timeout = positive_ns(text.strip())
        except argparse.ArgumentTypeError as error:
            raise CannotTell(f"--timeouts: {error}") from None
        variants.append(replace(base, name=f"timeout={duration(timeout)}", rules=(Rule(timeout),)))
    if not variants and not arguments.sets:
        changes = [f"tick={duration(arguments.tick)}"] if arguments.tick is not None else []
        changes += [f"jitter={base.jitter:g}"] if base.jitter else []
        if not changes:
            raise CannotTell("nothing to compare: give --timeouts, --set, --tick or --jitter")
        variants.append(replace(base, name=" ".join(changes)))
    return base, variants
