"""Ends a run early that can show nothing more: no server, no answer, or another
protocol.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from ..judge.observation import Counters
from ..units import Target

FIRST_ANSWER = 10.0
"""Seconds after the first request within which some request must have been answered."""
TLS_ALERT = b"\x15\x03"
H2_SETTINGS = b"\x04\x00\x00\x00\x00\x00"
"""The bytes after the length in the frame that every HTTP/2 server begins with."""


class Watchdog:
    """Looks at the heartbeats of one run."""

    def __init__(self, target: Target, protocol: str, first_answer: float = FIRST_ANSWER) -> None:
        self.target = target
        self.protocol = protocol
        self.first_answer = first_answer
        self.asked_since = 0.0

    def look(self, now: float, counters: Sequence[Counters]) -> str | None:
        """Why the run should end at *now*; None if it should go on."""
        foreign = next((each.foreign for each in counters if each.foreign), b"")
        if foreign and (what := recognise(self.protocol, foreign)):
            return f"{self.target} {what}"
        if any(each.established for each in counters):
            return self._unanswered(now, counters)
        code = next((each.refusal for each in counters if each.refused), None)
        if code is None:
            return None
        if not hasattr(errno, code):
            return f"{self.target} refused every connection: {recognise_refusal(code)}"
        words = os.strerror(getattr(errno, code)).lower()
        return f"{words} by {self.target}: is the server running there?"

    def _unanswered(self, now: float, counters: Sequence[Counters]) -> str | None:
        if any(each.answered for each in counters) or not any(each.asked for each in counters):
            return None
        self.asked_since = self.asked_since or now
        if now - self.asked_since < self.first_answer:
            return None
        others = "raw, or http" if self.protocol == "echo" else "raw, or echo"
        words = f"answered nothing within {self.first_answer:.0f} s"
        return f"{self.target} {words}: if it speaks another protocol, give --protocol {others}"


def recognise(protocol: str, data: bytes) -> str | None:
    """Say what a server is that answered *data* in *protocol*, and what to type
    instead.

    The words end a sentence about the server. None: it cannot be told.
    """
    line = data.split(b"\r\n")[0].split(b"\n")[0][:60].decode("latin-1")
    if data.startswith(b"HTTP/") and protocol != "http":
        return f'answered "{line}": did you mean --protocol http?'
    if data.startswith(TLS_ALERT):
        return "speaks TLS: did you mean https:// or --tls?"
    if data[3:9] == H2_SETTINGS:
        return (
            "speaks HTTP/2 only: this program speaks HTTP/1.1; "
            "have the server offer it too (ALPN http/1.1)"
        )
    if data.startswith(b"SSH-"):
        return f'answered "{line}": this is an SSH server'
    if protocol == "http" and data.startswith((b"GET ", b"POST ")):
        return "sent the request back: did you mean --protocol echo?"
    return None


def recognise_refusal(why: str) -> str:
    """Say why a handshake failed, and what to do about it."""
    if why == "CERTIFICATE_VERIFY_FAILED":
        return (
            "its certificate cannot be verified: give --ca FILE, --server-name NAME or --insecure"
        )
    if why == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
        return "it speaks HTTP/2 only, and this program HTTP/1.1"
    if why in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"):
        return f"it speaks no TLS ({why}): leave out --tls, or write http:// or ws://"
    return why
