"""Attach: a server that closes nothing, in a process of its own, and what closes its
silent clients from outside.

python -m examples.attach_leaky 8080
"""

from __future__ import annotations

import signal
import socketserver
import subprocess
import sys


class Leaky(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        try:
            while line := self.rfile.readline():  # for ever, if nothing comes
                self.wfile.write(line.upper())
        except ConnectionError:
            pass  # the client has gone


def serve(port: int) -> None:
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Leaky) as server:
        server.daemon_threads = True
        print("serving", flush=True)
        server.serve_forever()


def main(port: int) -> int:
    with subprocess.Popen(
        [sys.executable, __file__, "serve", str(port)], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        attach = [
            sys.executable,
            "-m",
            "reaper",
            "attach",
            "--pid",
            str(server.pid),
        ]  # any process will do
        limits = ["--idle", "2s", "--first-byte", "2s", "--tick", "500ms", "--close"]
        with subprocess.Popen(attach + limits) as watch:
            signal.signal(
                signal.SIGTERM, lambda *_: watch.terminate()
            )  # it says what it did, and ends
            status = watch.wait()
        server.terminate()
    return status


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        sys.exit(main(int(sys.argv[1])))
