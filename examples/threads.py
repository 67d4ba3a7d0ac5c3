"""Threads: a server of the standard library whose silent clients are closed, without a
touch in its handler.

python -m examples.threads 8080
"""

from __future__ import annotations

import socketserver
import sys
from socket import socket
from typing import Any

from reaper.attach import Guard


class Shout(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        try:
            while (
                line := self.rfile.readline()
            ):  # an end of file, when the guard has ended the connection
                self.wfile.write(line.upper())
        except ConnectionError:
            pass  # the client has gone


class Guarded(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True

    def __init__(self, port: int, guard: Guard) -> None:
        super().__init__(("127.0.0.1", port), Shout)
        self.guard = guard

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if isinstance(request, socket):
            self.guard.add(request)
        super().process_request(request, client_address)


if __name__ == "__main__":
    with Guard(idle=2, first_byte=2, tick=0.5) as guard, Guarded(int(sys.argv[1]), guard) as server:
        server.serve_forever()
