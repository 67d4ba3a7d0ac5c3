"""`loadgen probe`: find out how a server treats idle connections, by waiting.

One rule: every figure is the time a client waited, between bounds that it can prove. Nothing is asked of the server but
patience; a handful of connections per question, started at uneven instants so that a server's tick shows as a pattern
of closes.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any

from .drive.protocols import Dialect, Paths, dialect_for
from .plan.behaviours import Act, draw
from .units import Target, seconds

TRIALS = 12
STAGGER = 2.5
"""Seconds over which the trials of a question are started; at most half of what is waited for an answer."""
DRIP_EVERY = 0.5
HEAD_DELAY = 0.23
SAME_INSTANT = 0.02
"""Closes nearer to each other than this belong to one wake-up of the server."""
ROUND = 0.5
"""Timeouts are guessed in multiples of this many seconds."""
NEAR = 0.12
"""How far, in seconds, an observation may be from a round number to be taken for it."""


@dataclass(frozen=True)
class Question:
    """One thing to find out: what to send, and whether to go on dripping."""

    name: str
    meaning: str
    first: Act | None
    drip: Act | None = None
    answered: bool = False
    delay: float = 0.0
    """Seconds between connecting and the first byte: an odd number, to tell which of the two the server counts from."""


HTTP_QUESTIONS = (
    Question("first_byte", "connected, nothing sent", None),
    Question("headers", "part of the headers, then silence", Act.HEAD_START, delay=HEAD_DELAY),
    Question(
        "headers_drip",
        f"a header line every {seconds(DRIP_EVERY)}, never the end",
        Act.HEAD_START,
        Act.HEAD_LINE,
        delay=HEAD_DELAY,
    ),
    Question("body", "headers, no body, then silence", Act.BODY_START),
    Question("body_drip", f"a byte of body every {seconds(DRIP_EVERY)}", Act.BODY_START, Act.BODY_BYTE),
    Question("keep_alive", "one request, its response, then silence", Act.PING, answered=True),
)
PLAIN_QUESTIONS = (
    Question("first_byte", "connected, nothing sent", None),
    Question("idle", "one byte, then silence", Act.PING, answered=True),
    Question("drip", f"a byte every {seconds(DRIP_EVERY)}", Act.PING, Act.PING),
)


@dataclass
class Trial:
    """One connection that asks one question. Instants in seconds on the monotonic clock."""

    question: Question
    start: float
    sock: socket.socket | None = None
    connected: bool = False
    began: float = 0.0
    first_at: float = float("inf")
    sent: float = 0.0
    drip_at: float = float("inf")
    parser: Any = None
    answer: bytes = b""
    goodbye: bytes = b""
    closed_after: float = 0.0
    closed_by: float = 0.0
    how: str = ""
    failure: str = ""


@dataclass
class Finding:
    """What the trials of one question add up to. Times in seconds; None where nothing was closed."""

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

    def words(self) -> str:
        """Early or late against the expected timeout, for people."""
        if self.expected is None or self.shortest is None or self.longest is None:
            return ""
        early, late = self.expected - self.shortest, self.longest - self.expected
        parts = [f"early by up to {seconds(early)}"] if early > 0 else []
        parts += [f"late by up to {seconds(late)}"] if late > 0 else []
        return ", ".join(parts) or "exact"


def probe(
    target: Target,
    protocol: str,
    wait: float,
    expected: dict[str, float] | None = None,
    path: str = "/",
    trials: int = TRIALS,
) -> list[Finding]:
    """Ask every question of the protocol at once.

    Args:
        wait: seconds after which a connection that is still open is left.
        expected: question name -> the timeout the server is configured with, seconds, where known.

    Returns:
        One finding per question, in the order of the questions.
    """
    dialect = dialect_for(protocol, target, Paths(path))
    questions = HTTP_QUESTIONS if protocol == "http" else PLAIN_QUESTIONS
    begin = monotonic()
    running = [
        Trial(question, begin + min(STAGGER, wait / 2) * (number + draw(number, asked)) / trials)
        for asked, question in enumerate(questions)
        for number in range(trials)
    ]
    _Loop(target, dialect, running, wait).run()
    return [
        summarise(
            question,
            [trial for trial in running if trial.question is question],
            wait,
            (expected or {}).get(question.name),
        )
        for question in questions
    ]


class _Loop:
    """Drives all trials in one thread."""

    def __init__(self, target: Target, dialect: Dialect, trials: list[Trial], wait: float) -> None:
        self.target = target
        self.dialect = dialect
        self.waiting = sorted(trials, key=lambda trial: -trial.start)
        self.limit = wait
        self.selector = selectors.DefaultSelector()
        self.looked = monotonic()

    def run(self) -> None:
        running: dict[int, Trial] = {}
        while self.waiting or running:
            now = monotonic()
            instants = [min(trial.drip_at, trial.first_at) for trial in running.values()] + [
                t.sent + self.limit for t in running.values() if t.sent
            ]
            wake = min([*instants, self.waiting[-1].start if self.waiting else float("inf"), now + 1.0])
            events = self.selector.select(max(wake - now, 0.0))
            now = monotonic()
            for key, _ in events:
                trial: Trial = key.data
                if trial.connected:
                    self._hear(trial, now)
                else:
                    self._connected(trial, now)
            self.looked = now
            while self.waiting and self.waiting[-1].start <= now:
                trial = self.waiting.pop()
                if self._connect(trial):
                    running[id(trial)] = trial
            for trial in list(running.values()):
                first = trial.question.first
                if trial.sock is not None and now >= trial.first_at and first is not None:
                    self._begin(trial, first)
                if trial.sock is not None and now >= trial.drip_at and trial.question.drip is not None:
                    trial.drip_at = now + DRIP_EVERY
                    self._send(trial, trial.question.drip)
                if trial.sock is not None and trial.sent and now >= trial.sent + self.limit:
                    self._leave(trial)
                if trial.sock is None:
                    del running[id(trial)]
        self.selector.close()

    def _connect(self, trial: Trial) -> bool:
        sock = socket.socket(self.target.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trial.sock = sock
        trial.began = trial.sent = monotonic()
        code = sock.connect_ex((self.target.host, self.target.port))
        if code not in (0, errno.EINPROGRESS):
            trial.failure = errno.errorcode.get(code, str(code))
            sock.close()
            trial.sock = None
            return False
        self.selector.register(sock, selectors.EVENT_WRITE, trial)
        return True

    def _connected(self, trial: Trial, now: float) -> None:
        sock = trial.sock
        if sock is None:
            return
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            trial.failure = errno.errorcode.get(code, str(code))
            self._leave(trial)
            return
        trial.connected = True
        self.selector.modify(sock, selectors.EVENT_READ, trial)
        if trial.question.first is not None:
            trial.first_at = now + trial.question.delay

    def _begin(self, trial: Trial, first: Act) -> None:
        trial.first_at = float("inf")
        if trial.question.answered:
            trial.parser = self.dialect.parser()
        trial.sent = monotonic()
        self._send(trial, first)
        if trial.question.drip is not None:
            trial.drip_at = trial.sent + DRIP_EVERY

    def _send(self, trial: Trial, act: Act) -> None:
        if trial.sock is None:
            return
        try:
            trial.sock.send(self.dialect.payload(act)[0])
        except OSError:
            self._closed(trial, "RST", monotonic())

    def _hear(self, trial: Trial, now: float) -> None:
        if trial.sock is None:
            return
        try:
            data = trial.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self._closed(trial, "RST", monotonic())
            return
        if not data:
            self._closed(trial, "FIN", now)
        elif trial.question.answered and not trial.closed_after:
            trial.answer += data
            if self.dialect.count(trial.parser, data).answers:
                trial.closed_after = now  # answered: what comes from now on is a goodbye
        elif trial.question.drip is not Act.PING:
            trial.goodbye += data

    def _closed(self, trial: Trial, how: str, by: float) -> None:
        trial.how = how
        trial.closed_after, trial.closed_by = self.looked, by
        self._leave(trial)

    def _leave(self, trial: Trial) -> None:
        if trial.sock is not None:
            self.selector.unregister(trial.sock)
            trial.sock.close()
            trial.sock = None


def summarise(question: Question, trials: Sequence[Trial], wait: float, expected: float | None) -> Finding:
    """Add up the trials of one question."""
    closed = [trial for trial in trials if trial.how]
    finding = Finding(question.name, question.meaning, len(trials), len(closed), waited=wait)
    finding.failures = sorted({trial.failure for trial in trials if trial.failure})
    finding.hint = next((hint for trial in trials if (hint := _keep_alive_hint(trial.answer))), "")
    if not closed:
        finding.expected, finding.guessed = expected, expected is None
        return finding
    since_sent = [trial.closed_by - trial.sent for trial in closed]
    since_connect = [trial.closed_by - trial.began for trial in closed]
    waits = since_sent
    if question.delay:
        # The server counts from one or from the other; the one that comes out round is it.
        waits = min(since_sent, since_connect, key=lambda waits: _off(min(waits), expected))
        finding.since = "connecting" if waits is since_connect else "first byte"
    finding.shortest, finding.longest = min(waits), max(waits)
    finding.how = "/".join(sorted({trial.how for trial in closed}))
    finding.goodbye = next((_first_line(trial.goodbye) for trial in closed if trial.goodbye), "")
    finding.granularity = granularity(sorted(trial.closed_by for trial in closed))
    if expected is None:
        nearest = round(finding.shortest / ROUND) * ROUND
        expected = nearest if nearest and abs(nearest - finding.shortest) <= NEAR else None
    else:
        finding.guessed = False
    finding.expected = expected
    return finding


def _off(wait: float, expected: float | None) -> float:
    """How far *wait* is from what it should be, or from a round number where that is not known."""
    return abs(wait - (round(wait / ROUND) * ROUND if expected is None else expected))


def granularity(closes: Sequence[float]) -> float | None:
    """The server's tick in seconds, from ascending instants of closing; None when they show no pattern.

    Connections that were started at uneven instants and closed in few common ones were rounded to a tick.
    """
    groups = [closes[0]] if closes else []
    for instant, before in zip(closes[1:], closes, strict=False):
        if instant - before > SAME_INSTANT:
            groups.append(instant)
    if len(groups) < 2 or len(groups) > len(closes) * 0.6:
        return None
    return median(later - earlier for earlier, later in pairwise(groups))


def _keep_alive_hint(answer: bytes) -> str:
    for line in answer.split(b"\r\n"):
        if line.lower().startswith(b"keep-alive:"):
            return line.decode("latin-1")
    return ""


def _first_line(data: bytes) -> str:
    return data.split(b"\r\n", 1)[0][:40].decode("latin-1")


HEADINGS = ("question", "timeout", "observed", "counted from", "early or late", "tick", "ends with", "closed")


def rows(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """The findings as texts under HEADINGS."""
    table: list[tuple[str, ...]] = []
    for found in findings:
        if found.shortest is None or found.longest is None:
            observed = ", ".join(found.failures) or f"still open after {seconds(found.waited)}"
        else:
            observed = f"{found.shortest:.3f}-{found.longest:.3f}s"
        timeout = "?" if found.expected is None else ("~" if found.guessed else "") + seconds(found.expected)
        tick = "-" if found.granularity is None else seconds(found.granularity)
        ending = " + ".join(part for part in (found.goodbye, found.how) if part) or "-"
        counts = f"{found.closed}/{found.trials}"
        table.append((found.name, timeout, observed, found.since or "-", found.words() or "-", tick, ending, counts))
    return table


def as_text(findings: Sequence[Finding], markdown: bool = False) -> str:
    """The table, aligned for a terminal or as Markdown. `~` marks a timeout that was guessed from the observation."""
    table = [HEADINGS, *rows(findings)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines = [
        ("| {} |" if markdown else "{}")
        .format((" | " if markdown else "  ").join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
        .rstrip()
        for row in table
    ]
    if markdown:
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    hints = {found.hint for found in findings if found.hint}
    return "\n".join(lines + [f"the server says: {hint}" for hint in sorted(hints)])
