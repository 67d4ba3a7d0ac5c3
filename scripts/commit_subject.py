"""Refuses a commit message whose first line is no `area: what changed` of at most 72
characters.

    python3 scripts/commit_subject.py .git/COMMIT_EDITMSG

It needs nothing but Python: it runs before a commit, wherever that is made. Whether the
subject says something is for a reviewer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

LONGEST = 72
"""Characters; what `git log --oneline` shows in a terminal of 80 columns."""

FORM = re.compile(r"(fixup! |squash! |Revert \")?[a-z0-9][\w./, -]*: \S.*")
MADE_BY_GIT = ("Merge ", "Revert ")


def wrong(message: str) -> str | None:
    """What is wrong with *message*, in one line; None: nothing."""
    subject, _, rest = message.partition("\n")
    if subject.startswith(MADE_BY_GIT):
        return None
    if len(subject) > LONGEST:
        return f"the subject has {len(subject)} characters, at most {LONGEST} are shown: {subject}"
    if not FORM.fullmatch(subject):
        return f"{subject!r}: expected `area: what changed`, as `core: bound a cascade`"
    if rest and not rest.startswith("\n"):
        return "the line after the subject is empty, and then the body says why"
    return None


def main(arguments: Sequence[str]) -> int:
    """Judge the message in the file that is named; exit status 1 refuses the commit."""
    (path,) = arguments
    text = "\n".join(
        line for line in Path(path).read_text().splitlines() if not line.startswith("#")
    )
    if found := wrong(text.strip("\n")):
        print(found, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
