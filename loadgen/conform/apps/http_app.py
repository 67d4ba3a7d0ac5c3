"""What `reaper-loadgen conform` asks for, as a server of Python's `http.server`.

reaper-loadgen conform --app http > conform_app.py
reaper-loadgen conform -- python conform_app.py {port}
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVERY = 0.4
"""Seconds between two events."""


class Handler(BaseHTTPRequestHandler):
    """A connection: what is asked for is in the path, how much of it behind the `?`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        """Answer a request."""
        path, _, query = self.path.partition("?")
        number = float(query or 0)
        if path in ("/slow", "/late"):
            time.sleep(number)
        body = b"" if path == "/early" else self.body()
        pieces, rest = {
            "/events": ([b"data: tick\n\n"] * int(number), EVERY),
            "/drops": ([b"0123456789"] * int(number), 0.004),
            "/pause": ([b"first", b"after"], number),
            "/some": ([bytes(int(number))], 0),
            "/echo": ([body], 0),
            "/late": ([body], 0),
        }.get(path, ([b"hello"], 0))
        self.send_response(200)
        if path == "/events":
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(sum(map(len, pieces))))
        self.end_headers()
        for place, piece in enumerate(pieces if self.command != "HEAD" else ()):
            if place:
                time.sleep(rest)
            self.wfile.write(piece)
        if path == "/early":
            self.body()

    def do_POST(self):
        """As a GET, which may have a body, too."""
        self.do_GET()

    def do_HEAD(self):
        """As a GET, without a body in the answer."""
        self.do_GET()

    def body(self):
        """The body of the request."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(iter(self.chunk, b""))
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def chunk(self):
        """A chunk of it; after the last one comes nothing."""
        size = int(self.rfile.readline().partition(b";")[0], 16)
        data = self.rfile.read(size)
        while self.rfile.readline().strip() and not size:
            pass  # a trailer
        return data

    def log_message(self, *_):
        """Say nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
