"""What `reaper-loadgen conform` asks for, as a WSGI application.

reaper-loadgen conform --app wsgi > conform_app.py
reaper-loadgen conform -- gunicorn --threads 200 -b 127.0.0.1:{port} conform_app:app
"""

import time

EVERY = 0.4
"""Seconds between two events."""


def app(environ, start):
    """The application: what is asked for is in the path, how much of it behind the
    `?`.
    """
    path, number = environ["PATH_INFO"], float(environ["QUERY_STRING"] or 0)
    body = b""
    if path in ("/slow", "/late"):
        time.sleep(number)
    if path != "/early":
        body = environ["wsgi.input"].read()
    if path == "/events":
        start("200 OK", [("content-type", "text/event-stream")])
        return pieces([b"data: tick\n\n"] * int(number), EVERY)
    data = {
        "/drops": [b"0123456789"] * int(number),
        "/pause": [b"first", b"after"],
        "/some": [bytes(int(number))],
        "/echo": [body],
        "/late": [body],
    }.get(path, [b"hello"])
    length = str(sum(map(len, data)))
    start("200 OK", [("content-type", "text/plain"), ("content-length", length)])
    return pieces(data, {"/drops": 0.004, "/pause": number}.get(path, 0))


def pieces(data, rest):
    """The pieces *data*, *rest* seconds apart."""
    for place, piece in enumerate(data):
        if place:
            time.sleep(rest)
        yield piece
