"""A small HTTP/1.1 server on trio and h11 in which every kind of idleness has its own limit."""

from __future__ import annotations

from .server import HttpServer, reload_from, serve, tls_context

__all__ = ["HttpServer", "serve", "reload_from", "tls_context"]
