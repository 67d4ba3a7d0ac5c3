"""What one run of `python -m reaper attach` was asked to do, as a value.

One rule: *argparse ends at the command*. All code behind the command is given a
`Request`, whose fields are typed, checked and documented. The namespace of the flags
stays in the command.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.settings import Attach
from .kernel import Refusal
from .netlink import Network


@dataclass(frozen=True, slots=True)
class Request:
    """Whose connections to watch, within which limits, and where to say what happens.

    Raises:
        Refusal: two of the wishes contradict each other.
    """

    pid: int | None
    """Watch the servers of this process and of its children; None: those behind
    `listen`.
    """
    listen: str | None
    """Watch the server behind this address, `HOST:PORT`; None: the one of `pid`."""
    config: Attach
    """The limits, the tick, and the way in which connections are closed."""
    closes: bool = False
    """Whether what is due is closed; otherwise it is only shown."""
    only: tuple[Network, ...] = ()
    """Watch clients of these networks alone; empty: those of every network."""
    never: tuple[Network, ...] = ()
    """Never watch clients of these networks."""
    as_json: bool = False
    """Whether each line of the output is a JSON object."""
    journal: Path | None = None
    """The folder into which a journal of what happens is written."""
    metrics: str | None = None
    """The address, `HOST:PORT`, at which Prometheus metrics are served."""
    learn: Path | None = None
    """The folder into which the silences of the clients are written; then nothing is
    closed.
    """
    gap: float = 5.0
    """The shortest silence that `learn` writes, seconds."""

    def __post_init__(self) -> None:
        if self.learn is not None and (self.closes or self.journal or self.metrics is not None):
            raise Refusal(
                "--learn closes nothing and has its own journal: "
                "leave --close, --journal and --metrics out"
            )
