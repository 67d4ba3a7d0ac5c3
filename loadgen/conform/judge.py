"""What became of a client, by what it saw.

One rule: *an end counts from the last act that the server can have counted from*, and
is early only if it was so from the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.acts import Drip, Kind, Pings, Want
from ..playing.client import OWN_LAG, Seen

HELD, HIDDEN = "held", "ended unseen"
FRAMES = ("GOAWAY", "RST_STREAM")


@dataclass(frozen=True)
class End:
    """What became of one client.

    Attributes:
        kept: Whether one that lives got all that it wanted; None: it does not live.
        after: Seconds from the beginning of the limit to the end; None: it was held.
        early: The same from the last instant at which the limit can have begun.
        says: The status of the last answer, if there was one.
        doubt: Why this proves nothing; "" if it does.
        about: What it heard, for people.
        how: The frame of HTTP/2 that ended it; "": none did.
        behind: Whether it was ended, and its own full window hid when.
    """

    kept: bool | None
    after: float | None = None
    early: float | None = None
    says: int = 0
    doubt: str = ""
    about: str = ""
    how: str = ""
    behind: bool = False

    @property
    def words(self) -> str:
        """For the table."""
        if self.kept is not None:
            return "kept" if self.kept else "lost"
        if self.after is None:
            return HIDDEN if self.behind else HELD
        said = str(self.says) if self.says >= 400 else self.how
        return f"{self.after:.1f} s" + (f", {said}" if said else "")


def judged(kind: Kind, seen: Seen, stop: float = 0.0) -> End:
    """What became of a client of *kind* that saw *seen*. *stop*: when its server was
    told to stop: what ends it counts from then on.
    """
    doubt = f"{seen.late:.2f} s late itself" if seen.late > OWN_LAG else ""
    heard = seen.data[-60:].decode("latin-1").replace("\r\n", " ").strip()
    statuses = [status for status, _ in seen.answers]
    about = f"{len(seen.marks) - 1} of {len(kind.acts)} acts, {statuses}, {seen.how} {heard!r}"
    if kind.lives:
        kept = len(seen.answers) >= len(kind.answers) and all(
            meets(want, answer) for want, answer in zip(kind.answers, seen.answers, strict=False)
        )
        kept = kept and not seen.lost and not seen.broke and kind.heard(seen.data)
        return End(kept=kept, doubt="" if kept else doubt, about=about)
    says = statuses[-1] if statuses else 0
    since = len(kind.acts) if kind.since is None else kind.since
    if seen.ended is None:
        return End(kept=None, says=says, doubt=doubt, about=about, behind=seen.behind)
    how = seen.how.partition(" ")[0] if seen.how.startswith(FRAMES) else ""
    if len(seen.marks) <= since:
        drips = since and isinstance(kind.acts[since - 1], Drip | Pings)
        if len(seen.marks) < since or not drips:  # ended before it had begun what is limited
            return End(None, 0.0, 0.0, says, doubt, about, how)
        began = done = seen.marks[since - 1][1]
    else:
        drips = since and isinstance(kind.acts[since - 1], Drip | Pings)
        done = seen.marks[since][0] if drips else seen.marks[since][1]
        began = min(_last_sent(kind, seen, since), done)
    done, began = max(done, stop), max(began, stop)
    return End(None, seen.ended - done, seen.ended - began, says, doubt, about, how)


def _last_sent(kind: Kind, seen: Seen, since: int) -> float:
    """When the last act up to *since* began that can have sent anything."""
    for place in range(since, 0, -1):
        name = type(kind.acts[place - 1]).__name__
        if name not in ("Until", "Up", "Done", "Rest", "At", "Deaf", "Hear", "Take"):
            return seen.marks[place][0]
    return seen.marks[0][0]


def meets(want: Want, answer: tuple[int, bytes]) -> bool:
    """Whether *answer*, a status and a body, is what is wanted."""
    status, body = answer
    if not want.status:
        return True
    if not body.endswith(want.ends):
        return False
    if isinstance(want.body, int):
        return status == want.status and len(body) == want.body
    return status == want.status and (want.body is None or body == want.body)
