"""A small HTTP/1.1 server on trio and h11 in which every kind of idleness has its own
limit.

The rule of this room: *before each wait a connection says what it waits for, and that
alone decides what ends it*. Every read loop ends with the wake that began it, and every
buffer has a limit. Read `transport` (bytes), `shared` and `connection` (requests),
`waiting` (connections without a task), `routes` (answers), `server` (all connections of
a process).
"""

from __future__ import annotations

from .server import HttpServer

__all__ = ["HttpServer"]
