"""Does to the running server what three of the mending commands promise, where no other
tool can.

The rule of this module: *only what was found, and looked at once more*. Connections are
named by the kernel's cookies, so none that was opened since is touched.
"""

from __future__ import annotations

import os
import socket

from ..attach.closing import CAP_NET_ADMIN, Hands, has_capability, take
from ..attach.kernel import Linux, Refusal
from ..attach.targets import Target
from ..attach.tcpinfo import CLOSE_WAIT
from .facts import Examination
from .findings import Finding

ROOM = 4096
"""Connections that may wait in a queue, after it was mended."""
ASKS = 60
"""Seconds of silence after which a connection is asked for: less than any NAT forgets
in.
"""


def mend(found: Finding, seen: Examination, target: Target, kernel: Linux) -> tuple[bool, str]:
    """Mend *found*, close-wait or outgoing: whether all of it is, and what was done, in
    words.

    Raises:
        Refusal: a right is missing. Nothing has changed.
    """
    if found.kind == "close-wait":
        return _end(found, seen, kernel)
    return _ask(found, seen, target)


def _end(found: Finding, seen: Examination, kernel: Linux) -> tuple[bool, str]:
    if not has_capability(CAP_NET_ADMIN):
        raise Refusal("--mend close-wait needs CAP_NET_ADMIN: run as root")
    ended = 0
    idents = found.seen.idents
    for ident, now in zip(idents, kernel.look(idents), strict=True):
        was = seen.last.connections[ident]
        if now is not None and now.state == CLOSE_WAIT and now.acked == was.acked:
            ended += kernel.destroy(ident)
    gone = f", {len(idents) - ended:,} had gone" if ended < len(idents) else ""
    return True, f"{ended:,} ended{gone}"


def _ask(found: Finding, seen: Examination, target: Target) -> tuple[bool, str]:
    hands, idents = Hands(target, False), found.seen.idents
    said = [hands.ask(ident, seen.last.connections[ident].inode, ASKS) for ident in idents]
    count = said.count("asked")
    return count == len(said), f"{count:,} of {len(said):,} connections have keep-alives now"


def widen(target: Target) -> tuple[bool, str]:
    """Listen once more, with more room: the connections that wait stay where they are.

    Raises:
        Refusal: a right is missing.
    """
    for one in target.listeners():
        place = target.find(one.inode)
        if place is None or one.room >= ROOM:
            continue
        try:
            with socket.socket(fileno=take(*place)) as sock:
                sock.listen(ROOM)
        except OSError as error:
            raise Refusal(
                f"--mend backlog: the socket of process {place[0]} may not be taken "
                f"({os.strerror(error.errno or 0)}): run as its user or as root"
            ) from None
    least = min(one.room for one in target.listeners())
    if least < ROOM:  # net.core.somaxconn of its network namespace is the most that a queue gets
        return False, f"room for {least:,} only; first: sysctl -w net.core.somaxconn={ROOM}"
    return True, f"room for {least:,} connections now"
