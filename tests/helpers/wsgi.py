"""A WSGI application that answers as tests/helpers/asgi.py does."""

from __future__ import annotations

import time


def application(environ, start_response):
    """`/` says hello, `/slow?N` after N seconds, `/big` much, `/some?N` N bytes,
    `/echo` what it was sent, and `/events` says hello before it reads what it is sent.
    """
    path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
    if path == "/events":
        return greets(environ, start_response)
    body = b"hello"
    if path == "/slow":
        time.sleep(float(query or 2))
    elif path == "/big":
        body = bytes(20_000_000)
    elif path == "/some":
        body = bytes(int(query))
    elif path == "/echo":
        body = environ["wsgi.input"].read()
    start_response("200 OK", [("content-type", "text/plain"), ("content-length", str(len(body)))])
    return [body]


def greets(environ, start_response):
    start_response("200 OK", [("content-type", "text/plain")])
    yield b"hello"
    yield environ["wsgi.input"].read()
