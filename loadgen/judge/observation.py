"""What the processes of a run saw, each by itself and all together.

All of it is pickled, so it is kept small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .histogram import Histogram
from .records import RecordTable
from .stalls import Answers, Stalls


@dataclass
class Counters:
    """What a heartbeat carries: totals since the start of the process.

    Attributes:
        closed: Connections that the server closed.
        refused: Attempts to connect that failed; `refusal` says why the first did.
        asked: Units of answer (responses, echoed bytes, pongs) that clients asked for.
            Each is counted as one of the next five.
        answered: The answer came.
        refused_acts: The connection was closed before the request could be sent.
        cut: A close came so soon that there was no time for the answer.
        underway: The run ended, or the client left, before there was time for it.
        lost_answers: There was time, and no answer came.
        unanswered: Connections with lost answers.
        surplus: Answers that nobody had asked for.
        wrong: Statuses that were not expected, and how often each came.
        foreign: The beginning of the first answer that is none in the protocol spoken;
            empty if there was none.
        heard: The beginning of the first answer where nobody knows what answers are
            (raw); empty if there was none.
        read_late: Closes that were read beyond one tick, and had come to this machine
            within it.
        ramped: Whether every connection is up, or has failed.
    """

    established: int = 0
    reconnected: int = 0
    open: int = 0
    closed: int = 0
    failed: int = 0
    refused: int = 0
    actions: int = 0
    blocked: int = 0
    asked: int = 0
    answered: int = 0
    lost_answers: int = 0
    refused_acts: int = 0
    cut: int = 0
    underway: int = 0
    surplus: int = 0
    unanswered: int = 0
    read_late: int = 0
    refusal: str = ""
    foreign: bytes = b""
    heard: bytes = b""
    wrong: dict[str, int] = field(default_factory=dict)
    ramped: bool = False
    journal_dropped: int = 0


def summed(each: Iterable[Counters]) -> Counters:
    """Add up the numbers and the counts of *each*; texts are left out."""
    total = Counters()
    for counters in each:
        for name, value in vars(counters).items():
            mine = getattr(total, name)
            if type(value) is int:
                setattr(total, name, mine + value)
            elif isinstance(value, dict):
                mine.update({key: mine.get(key, 0) + count for key, count in value.items()})
    return total


@dataclass
class Outcome:
    """Everything that a process saw, which it sends to the parent at its end."""

    records: RecordTable = field(default_factory=RecordTable)
    counters: Counters = field(default_factory=Counters)
    stalls: Stalls = field(default_factory=Stalls)
    server_stalls: Answers = field(default_factory=Answers)
    lag: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    failures: Counter[str] = field(default_factory=Counter)
    rss_before: int = 0
    rss_open: int = 0
    cpu_seconds: float = 0.0
    user_seconds: float = 0.0
    """The part of `cpu_seconds` that was spent outside the kernel."""


@dataclass
class Observation:
    """What the whole run saw. Instants are seconds on the monotonic clock.

    Attributes:
        ramped: When every connection had been tried; None if the run ended before.
        outcomes: One per process, in the order of their shares: connection i belongs to
            process i modulo their number.
        interrupted: Whether Ctrl-C or SIGTERM ended it.
        because: Why it was ended before its time, if the server was the reason.
        lost: A line about each process that died or fell silent.
        cost: What a simulation took: seconds of CPU, and the bytes by which its
            processes grew.
    """

    started: float
    ramped: float | None
    ended: float
    outcomes: list[Outcome]
    interrupted: bool = False
    because: str | None = None
    lost: list[str] = field(default_factory=list)
    cost: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        self.records = RecordTable()
        self.lag, self.latency, answers = Histogram(), Histogram(), Answers()
        for outcome in self.outcomes:
            self.records.extend(outcome.records)
            self.lag.merge(outcome.lag)
            self.latency.merge(outcome.latency)
            answers.merge(outcome.server_stalls)
        self.server_stalls = answers.supported()
        self.own_stalls = [outcome.stalls for outcome in self.outcomes]

    @property
    def partial(self) -> bool:
        """Whether the run did not see its planned end, or not all of it."""
        return self.interrupted or self.because is not None or bool(self.lost)
