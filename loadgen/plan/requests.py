"""The bytes of requests that acts send."""

from __future__ import annotations


def get(path: str = "/", *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request without a body."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(path: str = "/echo", body: bytes = b"hello", *headers: str) -> bytes:
    """A request with *body*."""
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


PING, GOODBYE = 9, 8
"""Opcodes of a WebSocket's frames."""
MASK = bytes(4)
"""Every mask is of zeros, so that what is sent is what is read."""


def frame(data: bytes, opcode: int = 1, *, last: bool = True) -> bytes:
    """A frame of a WebSocket client; *data* has at most 125 bytes."""
    return bytes([opcode | (0x80 if last else 0), 0x80 | len(data)]) + MASK + data
