"""A small HTTP/1.1 server on trio and h11 in which every kind of idleness has its own limit."""

from __future__ import annotations

from .server import HttpServer, reload_from, serve

__all__ = ["HttpServer", "serve", "reload_from"]
