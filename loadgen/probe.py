"""`loadgen probe`: find out how a server treats idle connections, by waiting for it to
close them.

One rule: every figure is the time for which a client waited, between bounds that the
client can prove. A question is a few connections that do the same thing. They begin at
uneven instants, so that a server's tick shows: its closes come together.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from xml.sax.saxutils import quoteattr

from . import http2
from .clients import Client, Ended, Speech, behaviour
from .drive.watchdog import recognise, recognise_refusal
from .plan.behaviours import KINDS, draw
from .units import BadArgument, Target, seconds

TRIALS = 12
STAGGER = 2.5
"""Seconds over which the trials of a question are started; at most half of the time
waited.
"""
DRIP_EVERY = "500ms"
HEAD_DELAY = 0.23
SAME_INSTANT = 0.02
"""Closes nearer to each other than this belong to one wake-up of the server."""
USUAL_TICKS = (10.0, 5.0, 2.0, 1.0, 0.5)
"""Ticks, in seconds, that are looked for where the closes do not come together."""
UNLIKELY = 0.002
"""Chance of a pattern from which on it is taken for the server's and not for an
accident.
"""
ROUND = 0.5
"""Timeouts are guessed in multiples of this many seconds."""
NEAR = 0.12
"""How far, in seconds, an observation may be from a round number to be taken for it."""
LONG = 86400.0
"""T of the behaviours that are asked with, seconds: nothing is due by it."""


@dataclass(frozen=True)
class Question:
    """One thing to find out, and the behaviour of the clients that find it out."""

    name: str
    meaning: str
    kind: str
    delay: float = 0.0
    """Seconds between connecting and the first byte.

    It is an odd number, to tell which of the two instants the server counts from.
    """


FIRST_BYTE = Question("first_byte", "connected, nothing sent", "mute")
TLS_QUESTIONS = (
    Question(
        "handshake",
        "the beginning of a TLS handshake, then silence",
        "stalled_handshake",
        HEAD_DELAY,
    ),
    Question("handshake_drip", "a byte of it every 500ms", "slow_handshake", HEAD_DELAY),
)
QUESTIONS = {
    "http": (
        FIRST_BYTE,
        Question("headers", "part of the headers, then silence", "stalled_headers", HEAD_DELAY),
        Question(
            "headers_drip", "a header line every 500ms, never the end", "slow_headers", HEAD_DELAY
        ),
        Question("body", "headers, no body, then silence", "no_body"),
        Question("body_drip", "a byte of body every 500ms", "slow_body"),
        Question("keep_alive", "one request, its response, then silence", "silent"),
    ),
    "ws": (
        Question(
            "upgrade_drip",
            "the handshake of a WebSocket, a line every 500ms",
            "slow_upgrade",
            HEAD_DELAY,
        ),
        Question("silent", "upgraded, then silence, no pongs either", "silent_upgrade"),
        Question("pongs", "upgraded, then nothing but pongs", "pong_only"),
        Question("listens", "one message, then nothing but pongs", "listener"),
        Question("message_drip", "a byte of a long message every 500ms", "slow_message"),
    ),
    "echo": (
        FIRST_BYTE,
        Question("idle", "one byte, then silence", "silent"),
        Question("drip", "a byte every 500ms", "drip"),
    ),
}
QUESTIONS["http2"] = (
    FIRST_BYTE,
    Question("headers", "half of a header block, then silence", "half_headers"),
    Question("headers_drip", "an empty CONTINUATION every 500ms, never the end", "dripped_headers"),
    Question("body", "half of a body, then silence", "half_body"),
    Question("body_drip", "a byte of body every 500ms", "dripped_body"),
    Question("body_empty", "an empty DATA frame every 500ms", "empty_body"),
    Question("no_stream", "settings, and never a request", "no_stream"),
    Question("window", "a long answer, and a window that is never opened again", "unopened"),
    Question("window_pings", "the same, with PING and PRIORITY every 500ms", "unopened_pings"),
    Question("slow_reader", "a window opened by 16 KiB every 500ms: it is alive", "slow_reader"),
    Question("keep_alive", "one request, its response, then silence", "silent"),
    Question("pings", "one request, its response, then a PING every 500ms", "pings"),
    Question("rapid_reset", "4,000 requests a second, each reset at once", "rapid_reset"),
    Question("ping_flood", "4,000 PINGs a second", "ping_flood"),
    Question("settings_flood", "4,000 SETTINGS a second", "settings_flood"),
)
QUESTIONS["raw"] = QUESTIONS["echo"]
NAMES = tuple(dict.fromkeys(each.name for each in (*TLS_QUESTIONS, *sum(QUESTIONS.values(), ()))))


@dataclass
class Finding:
    """What the trials of one question add up to.

    Attributes:
        trials: How many connections asked.
        closed: How many of them the server closed.
        shortest, longest: The waits, in seconds; None if the server closed none.
        expected: The timeout that was given, or guessed, in seconds; None if there is
            neither.
        guessed: Whether nobody said what to expect.
        granularity: The server's tick in seconds, if its closes show one.
        since: What the server counts from, where that can be told.
        how: "FIN", "RST" or both.
        goodbye: The first line that the server said before it closed.
        hint: The `Keep-Alive` header of its answers.
        waited: Seconds after which a connection that was still open was left.
        failures: Why connections could not be established.
    """

    name: str
    meaning: str
    trials: int
    closed: int
    shortest: float | None = None
    longest: float | None = None
    expected: float | None = None
    guessed: bool = True
    granularity: float | None = None
    since: str = ""
    how: str = ""
    goodbye: str = ""
    hint: str = ""
    waited: float = 0.0
    failures: list[str] = field(default_factory=list)
    remark: str = ""
    """What the server is, where it is not what was asked for."""

    def words(self) -> str:
        """Say how early or late the closes were against the expected timeout."""
        if self.expected is None or self.shortest is None or self.longest is None:
            return ""
        early, late = self.expected - self.shortest, self.longest - self.expected
        parts = [f"early by up to {seconds(early)}"] if early > 0 else []
        parts += [f"late by up to {seconds(late)}"] if late > 0 else []
        return ", ".join(parts) or "exact"

    def observed(self) -> str:
        """Say what the shortest and the longest wait were, or why there is none."""
        if self.shortest is None or self.longest is None:
            return ", ".join(self.failures) or f"still open after {seconds(self.waited)}"
        return f"{self.shortest:.3f}-{self.longest:.3f}s"

    def broken(self, tolerance: float) -> str:
        """Say what is not as expected; empty if all is, or if nothing was expected.

        *tolerance*: seconds by which a close may be early.
        """
        if self.guessed or self.expected is None:
            return ""
        if self.shortest is None:
            return f"{seconds(self.expected)} expected: {self.observed()}"
        if self.shortest < self.expected - tolerance:
            closed = f"closed after {self.shortest:.3f}s: {self.words()}"
            return f"{seconds(self.expected)} expected, {closed}"
        return ""


def probe(
    target: Target,
    speech: Speech,
    wait: float,
    expected: dict[str, float] | None = None,
    trials: int = TRIALS,
    one_by_one: bool = False,
    only: Collection[str] | None = None,
) -> list[Finding]:
    """Ask every question of the protocol; returns a finding for each, in their order.

    Args:
        wait: Seconds after which a connection that is still open is left.
        expected: The timeouts that the server is known to have, in seconds, by
            question.
        trials: Connections per question.
        one_by_one: Whether a question waits for the one before it. All at once, they
            may take every thread of a small server, and what they wait for then is a
            thread.
        only: The questions that are asked, by name; None: all.
    """
    handshake = speech.tls and speech.protocol != "http2"
    asked = (*(TLS_QUESTIONS if handshake else ()), *QUESTIONS[speech.protocol])
    questions = [each for each in asked if only is None or each.name in only]
    slow = replace(speech, timeout=LONG)
    ends = asyncio.run(_ask(questions, target, slow, wait, trials, one_by_one))
    return [
        summarise(question, found, wait, (expected or {}).get(question.name))
        for question, found in zip(questions, ends, strict=True)
    ]


async def _ask(
    questions: Sequence[Question],
    target: Target,
    speech: Speech,
    wait: float,
    trials: int,
    one_by_one: bool,
) -> list[list[Ended]]:
    async def trial(question: Question, asked: int, number: int) -> Ended:
        try:
            return await played(question, asked, number)
        except BadArgument:
            raise
        except Exception as error:  # which would take the answers of all others along
            return Ended(question.kind, failure=f"{type(error).__name__}: {error}")

    async def played(question: Question, asked: int, number: int) -> Ended:
        await asyncio.sleep(min(STAGGER, wait / 2) * (number + draw(number, asked)) / trials)
        if speech.protocol == "http2":
            return await http2.play(question.kind, target, speech, wait)
        parameters = {"every": DRIP_EVERY, "delay": f"{question.delay}s"}
        known = {
            name: text
            for name, text in parameters.items()
            if name in KINDS[question.kind].__dataclass_fields__
        }
        client = Client(behaviour(question.kind, LONG, **known), target, speech)
        return await client.play(patience=wait + question.delay)

    async def all_of(asked: int, question: Question) -> list[Ended]:
        return await asyncio.gather(*(trial(question, asked, number) for number in range(trials)))

    if one_by_one:
        return [await all_of(*each) for each in enumerate(questions)]
    return await asyncio.gather(*(all_of(*each) for each in enumerate(questions)))


def summarise(
    question: Question, trials: Sequence[Ended], wait: float, expected: float | None
) -> Finding:
    """Add up the trials of one question."""
    closed = [trial for trial in trials if trial.borne is not None]
    finding = Finding(question.name, question.meaning, len(trials), len(closed), waited=wait)
    finding.failures = sorted({trial.failure for trial in trials if trial.failure})
    finding.hint = next(filter(None, (_keep_alive_hint(trial.answer) for trial in trials)), "")
    finding.remark = next(filter(None, map(_remark, trials)), "")
    finding.expected, finding.guessed = expected, expected is None
    if not closed:
        return finding
    since_sent = [trial.at - trial.since for trial in closed]
    since_connect = [trial.at - trial.ready for trial in closed]
    waits = since_sent
    if question.delay:
        # The server counts from one or from the other; the one that comes out round is
        # it.
        waits = min(since_sent, since_connect, key=lambda waits: _off(min(waits), expected))
        finding.since = "connecting" if waits is since_connect else "first byte"
    finding.shortest, finding.longest = min(waits), max(waits)
    finding.how = "/".join(sorted({"RST" if trial.how == "reset" else "FIN" for trial in closed}))
    finding.goodbye = next((_first_line(trial.said) for trial in closed if trial.said), "")
    finding.granularity = granularity(sorted(trial.at for trial in closed))
    if finding.guessed:
        finding.expected = guess(finding.shortest, finding.longest, finding.granularity)
    return finding


def guess(shortest: float, longest: float, tick: float | None) -> float | None:
    """The timeout that a server probably has which closed after such waits; None: none
    is likely.

    A server without a visible tick closes at its timeout, which is a round number near
    the shortest wait. A server that looks once per *tick* closes from its timeout until
    a tick after it: all waits lie within that window, and of two round numbers for
    which they do, a multiple of the tick is the likelier one.
    """
    if tick is not None:
        low, high = longest - tick - NEAR, shortest + NEAR
        steps = range(max(math.ceil(low / ROUND), 1), math.floor(high / ROUND) + 1)
        windows = [step * ROUND for step in steps]
        whole = max(round(tick / ROUND), 1) * ROUND
        if likely := [each for each in windows if each % whole == 0] or windows:
            return likely[-1]
    nearest = round(shortest / ROUND) * ROUND
    return nearest if nearest and abs(nearest - shortest) <= NEAR else None


def _remark(trial: Ended) -> str:
    """Name in one line a server that does not speak the protocol that it was asked
    in.
    """
    if what := recognise("http", trial.answer or trial.said):
        return f"the server {what}"
    known = recognise_refusal(trial.failure) if trial.failure else trial.failure
    return f"refused: {known}" if known != trial.failure else ""


def _off(wait: float, expected: float | None) -> float:
    """How far *wait* is from *expected*, or from a round number where nothing is
    expected.
    """
    return abs(wait - (round(wait / ROUND) * ROUND if expected is None else expected))


def granularity(closes: Sequence[float]) -> float | None:
    """The server's tick in seconds, from the ascending instants of closes; None if none
    shows.

    Connections that were begun at uneven instants were rounded to a tick if they were
    closed in a few common ones. The closes of a few connections may all have an instant
    of their own; then the gaps between them show the tick, if all of them are multiples
    of it.
    """
    groups = [closes[0]] if closes else []
    for instant, before in zip(closes[1:], closes, strict=False):
        if instant - before > SAME_INSTANT:
            groups.append(instant)
    gaps = [later - earlier for earlier, later in pairwise(groups)]
    if not gaps:
        return None
    if len(groups) <= len(closes) * 0.6:
        return median(gaps)
    for tick in USUAL_TICKS:
        # By chance a gap is that near a multiple in so many of all cases.
        chance = (2 * SAME_INSTANT / tick) ** len(gaps)
        if chance <= UNLIKELY and all(_near_multiple(gap, tick) for gap in gaps):
            return tick
    return None


def _near_multiple(gap: float, tick: float) -> bool:
    times = round(gap / tick)
    return times > 0 and abs(gap - times * tick) <= SAME_INSTANT


def _keep_alive_hint(answer: bytes) -> str:
    lines = answer.decode("latin-1").split("\r\n")
    return next((line for line in lines if line.lower().startswith("keep-alive:")), "")


def _first_line(data: bytes) -> str:
    line = data.split(b"\r\n", 1)[0][:40]
    return (
        line.decode("ascii")
        if line.isascii() and line.decode("ascii").isprintable()
        else f"{len(data)} bytes"
    )


HEADINGS = (
    "question",
    "timeout",
    "observed",
    "counted from",
    "early or late",
    "tick",
    "ends with",
    "closed",
)


def as_text(findings: Sequence[Finding], markdown: bool = False) -> str:
    """Write the table for a terminal, or as Markdown.

    `~` marks a timeout that was guessed from the waits.
    """
    table: list[tuple[str, ...]] = [HEADINGS]
    for found in findings:
        timeout = (
            "?"
            if found.expected is None
            else ("~" if found.guessed else "") + seconds(found.expected)
        )
        tick = "" if found.granularity is None else seconds(found.granularity)
        ending = " + ".join(part for part in (found.goodbye, found.how) if part)
        counts = f"{found.closed}/{found.trials}"
        row = (
            found.name,
            timeout,
            found.observed(),
            found.since,
            found.words(),
            tick,
            ending,
            counts,
        )
        table.append(tuple(cell or "-" for cell in row))
    hints = {f"the server says: {found.hint}" for found in findings if found.hint}
    return "\n".join(
        aligned(table, markdown)
        + sorted(hints | {found.remark for found in findings if found.remark})
    )


def aligned(table: Sequence[Sequence[str]], markdown: bool = False) -> list[str]:
    """Write the lines of a table for a terminal, or as Markdown; the first row is its
    head.
    """
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        ("| {} |" if markdown else "{}")
        .format(
            (" | " if markdown else "  ").join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            )
        )
        .rstrip()
        for row in table
    ]
    if markdown:
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines


def checked(findings: Sequence[Finding], tolerance: float) -> list[str]:
    """Write a line for each question that has an expected answer, for CI."""
    return [
        f"not ok {found.name}: {why}"
        if (why := found.broken(tolerance))
        else f"ok {found.name}: {found.observed()}"
        for found in findings
        if not found.guessed
    ]


def write_junit(findings: Sequence[Finding], tolerance: float, target: str, path: Path) -> None:
    """Write what `checked` says to *path* as JUnit XML, a test case for each
    question.
    """
    cases, failures = [], 0
    for found in findings:
        if found.guessed:
            continue
        why = found.broken(tolerance)
        failures += bool(why)
        inside = f"<failure message={quoteattr(why)}/>" if why else ""
        spent = found.longest if found.longest is not None else found.waited
        cases.append(
            f"  <testcase classname={quoteattr(target)} name={quoteattr(found.name)} "
            f"time='{spent:.3f}'>{inside}</testcase>"
        )
    head = f"<testsuite name='reaper-loadgen probe' tests='{len(cases)}' failures='{failures}'>"
    path.write_text(
        "\n".join(["<?xml version='1.0' encoding='utf-8'?>", head, *cases, "</testsuite>", ""])
    )
