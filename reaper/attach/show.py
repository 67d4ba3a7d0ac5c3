"""Shows a watch: a live table on a terminal, a line per event in a pipe, an object per
line for a machine.

One rule: *a line can be acted on*. It names the connection as `ss` and the server's log
do. It says what was done or would be done, by which limit, and for how long the client
had been silent.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from ..config.durations import format_duration
from ..metrics import Family
from .judge import NONE
from .netlink import addresses_of
from .output import Output
from .watch import Event, Watch

SCHEMA = "reaper-attach/1"
RECENT = 100
"""The most lines of what happened lately that the table keeps."""
REFRESH = 0.5
"""Seconds between two pictures on a terminal."""

WORDS = {
    "closed": "closed",
    "due": "would close",
    "averted": "averted",
    "unsure": "cannot tell",
    "unreachable": "cannot reach",
    "found": "found",
    "gone": "gone",
}


def text_of(event: Event) -> str:
    """*event* in one line, without the time of day."""
    local, remote = addresses_of(event.ident)
    said = f"{WORDS[event.kind]:12} {remote} -> {local}"
    if event.kind == "averted":
        return f"{said}  the final check found it in use"
    if event.kind in ("found", "gone"):
        return said
    silence = max(event.at - event.since, 0.0)
    limit = format_duration(round(event.limit, 3))
    said = f"{said}  {event.reason} {limit}: silent for {silence:.2f} s"
    if event.kind == "unsure":
        return f"{said}, or waiting for an answer: --even-unanswered closes it all the same"
    if event.overdue:
        return f"{said}, due before this watch began"
    if event.kind == "unreachable":
        return said
    return f"{said}, {max(event.at - event.due, 0.0):.2f} s after it was due"


def record_of(event: Event, wall: float) -> dict[str, Any]:
    """*event* as an object for JSON.

    Args:
        event: What happened.
        wall: Unix time less the monotonic clock's, seconds.
    """
    local, remote = addresses_of(event.ident)
    found: dict[str, Any] = {"event": event.kind, "client": str(remote), "server": str(local)}
    if event.at != NONE:
        found["time"] = round(event.at + wall, 3)
    if event.kind in ("due", "closed", "unsure", "unreachable"):
        found |= {
            "reason": event.reason,
            "limit_s": round(event.limit, 3),
            "silent_s": round(event.at - event.since, 3),
            "late_s": round(event.at - event.due, 3),
            "overdue": event.overdue,
        }
    return found


def dropped_record(count: int) -> str:
    """The line of JSON that stands in the place of *count* dropped lines."""
    return json.dumps({"event": "dropped", "lines": count})


class View:
    """One way to show a watch. This one only passes on what is said of the target.

    Args:
        line: Prints one line.
    """

    def __init__(self, line: Callable[[str], object]) -> None:
        self._line = line

    def start(self, what: str, closes: bool) -> None:
        """Show that a watch of *what* begins; *closes*: whether it closes anything."""

    def note(self, event: Event) -> None:
        """Show one event of the watch."""

    def say(self, text: str) -> None:
        """Show a line about the target, or about the watch itself."""
        self._line(text)

    def refresh(self, now: float) -> float | None:
        """Draw anew if it is time; returns when the next time is. None: this view never
        draws.
        """
        return None

    def end(self) -> None:
        """Show that the watch is over."""


def summary(watch: Watch) -> str:
    """What the watch has done so far, in one line."""
    events = watch.counts.events
    ended = (
        f"{events['closed']} closed"
        if events["closed"] or not events["due"]
        else f"{events['due']} would close"
    )
    parts = [f"{len(watch)} watched", ended, f"{events['gone']} gone"]
    parts += [
        f"{events[kind]} {kind}" for kind in ("averted", "unsure", "unreachable") if events[kind]
    ]
    if watch.counts.timely:
        parts.append(f"{watch.counts.max_lateness * 1e3:.0f} ms late at most")
    return ", ".join(parts)


def families(watch: Watch, lines_dropped: int = 0) -> Iterator[Family]:
    """The metrics of *watch* for `reaper.metrics`, under names that do not change.

    Args:
        watch: The watch.
        lines_dropped: How many lines of its output were dropped.
    """
    counts = watch.counts
    yield Family("reaper_attach_connections", "gauge", "Connections watched.", len(watch))
    for kind, doc in (
        ("found", "Connections found."),
        ("gone", "Connections that ended without us."),
        ("averted", "Connections spared by the final check."),
        (
            "unsure",
            "Silent connections that may be waiting for an answer: the kernel does not tell.",
        ),
        ("unreachable", "Due connections that no process we may touch holds."),
    ):
        yield Family(f"reaper_attach_{kind}", "counter", doc, counts.events[kind])
    for kind, doc in (
        ("closed", "Connections closed."),
        ("due", "Connections that would have been closed."),
    ):
        reasons = dict(counts.reasons) if counts.events[kind] else {}
        yield Family(f"reaper_attach_{kind}", "counter", doc, reasons, "reason")
    yield Family("reaper_attach_looks", "counter", "Looks at single connections.", counts.looks)
    yield Family("reaper_attach_dumps", "counter", "Dumps of the kernel's table.", counts.dumps)
    yield Family(
        "reaper_attach_lines_dropped",
        "counter",
        "Lines that no reader took in time.",
        lines_dropped,
    )
    yield Family(
        "reaper_attach_lateness_max_seconds",
        "gauge",
        "The latest a connection was.",
        counts.max_lateness,
    )


class Lines(View):
    """Prints a line for each event that a user may want to act on."""

    def __init__(self, watch: Watch, line: Callable[[str], object]) -> None:
        super().__init__(line)
        self._watch = watch

    def start(self, what: str, closes: bool) -> None:
        self.say(
            f"watching {what}; "
            + ("closing what is due" if closes else "closing nothing (--close does)")
        )

    def note(self, event: Event) -> None:
        if event.kind not in ("found", "gone"):
            self.say(text_of(event))

    def say(self, text: str) -> None:
        self._line(f"{time.strftime('%H:%M:%S')} {text}")

    def end(self) -> None:
        self.say(summary(self._watch))


class Json(View):
    """Prints a JSON object per line: `start`, every event, `say`, `end`."""

    def __init__(self, watch: Watch, clock: Callable[[], float], out: Output) -> None:
        super().__init__(out.line)
        self._watch = watch
        self._wall = time.time() - clock()
        self._out = out

    def start(self, what: str, closes: bool) -> None:
        self._print({"event": "start", "schema": SCHEMA, "target": what, "closes": closes})

    def note(self, event: Event) -> None:
        self._print(record_of(event, self._wall))

    def say(self, text: str) -> None:
        self._print({"event": "say", "text": text})

    def end(self) -> None:
        counts = self._watch.counts
        self._print(
            {
                "event": "end",
                "watched": len(self._watch),
                **{kind: counts.events[kind] for kind in WORDS},
                "reasons": dict(counts.reasons),
                "looks": counts.looks,
                "dumps": counts.dumps,
                "late_max_s": round(counts.max_lateness, 3),
                "lines_dropped": self._out.dropped,
            }
        )

    def _print(self, record: dict[str, Any]) -> None:
        self._line(json.dumps(record))


class Table(Lines):
    """A live table of the connections that may be due next, above what happened lately.

    Cost: as many looks as there are rows, twice a second.

    Raises:
        ImportError: there is no rich.
    """

    def __init__(self, watch: Watch, out: Output) -> None:
        from rich.console import Console
        from rich.live import Live

        self._recent: deque[str] = deque(maxlen=RECENT)
        super().__init__(watch, self._recent.append)
        self._out = out
        self._console = Console(file=cast(IO[str], out))
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)
        self._next = 0.0
        self._title = ""

    def start(self, what: str, closes: bool) -> None:
        self._title = f"{what}: " + (
            "closing what is due" if closes else "closing nothing (--close does)"
        )
        self._live.start()

    def refresh(self, now: float) -> float | None:
        if now >= self._next:
            self._next = now + REFRESH
            # A stopped terminal is shown one picture, the latest, once it goes on.
            if not self._out.waits:
                self._draw()
        return self._next

    def end(self) -> None:
        self._draw()
        self._live.stop()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table as Grid
        from rich.text import Text

        room = self._console.height - 4  # title, head, summary, and the line of the cursor
        grid = Grid(box=None, expand=True, header_style="reverse", pad_edge=False)
        for name in ("client", "server", "turn", "silent", "limit", "in"):
            grid.add_column(
                name, justify="right" if name in ("silent", "in") else "left", no_wrap=True
            )
        for ident, seen, verdict in self._watch.soonest(max(room // 2, 1)):
            local, remote = addresses_of(ident)
            turn = {True: "client's", False: "server's", None: "not known"}[verdict.peers_turn]
            left = f"{verdict.at - seen.before:.1f} s" if verdict.reason else "-"
            if verdict.due:
                left = "due" if verdict.sure else "cannot tell"
            grid.add_row(
                str(remote),
                str(local),
                turn,
                f"{seen.received_ago:.1f} s",
                verdict.reason or "-",
                left,
            )
        recent = list(self._recent)[-max(room - grid.row_count, 1) :]
        lines = [
            Text(line, no_wrap=True, overflow="ellipsis")
            for line in (self._title, summary(self._watch), *recent)
        ]
        self._live.update(Group(lines[0], grid, *lines[1:]), refresh=True)
