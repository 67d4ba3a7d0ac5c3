"""What a server speaks, when it is not what the clients speak.

One rule: a guess is made from what the server sent, never from its silence, and ends in what to type instead.
"""

from __future__ import annotations

TLS_ALERT = b"\x15\x03"


def recognise(protocol: str, data: bytes) -> str | None:
    """What a server does that answered clients of *protocol* with *data*, and what to type instead, as the end of a
    sentence about it; None: it cannot be told."""
    line = data.split(b"\r\n")[0].split(b"\n")[0][:60].decode("latin-1")
    if data.startswith(b"HTTP/") and protocol != "http":
        return f'answered "{line}": did you mean --protocol http?'
    if data.startswith(TLS_ALERT):
        return "speaks TLS: this program does not; give the address of its plain listener"
    if data.startswith(b"SSH-"):
        return f'answered "{line}": this is an SSH server'
    if protocol == "http" and data.startswith((b"GET ", b"POST ")):
        return "sent the request back: did you mean --protocol echo?"
    return None
