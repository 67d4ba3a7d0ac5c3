"""A small HTTP/1.1 server on trio and h11 in which every kind of idleness has its own limit.

The rule of this room: *before each wait it is said what is waited for, and that alone decides what ends it*. Read
`transport` (bytes), `connection` (requests), `routes` and `views` (answers), `server` (all connections of a process),
`hangups` (peers that go meanwhile), `counters`; then `process`, which runs one.
"""

from __future__ import annotations

from .process import reload_from, serve
from .server import HttpServer

__all__ = ["HttpServer", "serve", "reload_from"]
