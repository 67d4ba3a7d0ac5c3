"""A model, loaded on demand, shared by threads, and out of memory again when nobody has
asked it for a while. A thread that computes keeps it; while it loads the others wait.

    python -m examples.keeper_model 8080, then: curl 127.0.0.1:8080/small?text=hello
"""

from __future__ import annotations

import contextlib
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import reaper.threads

SECONDS = {"small": 0.2, "large": 1.0}


class Model:
    def __init__(self, name: str) -> None:
        time.sleep(SECONDS[name])  # loading
        self.weights = bytearray(50_000_000)

    def run(self, text: str) -> str:
        return text.upper()


def load(name: str) -> Model:
    print(f"{name}: loading", flush=True)
    return Model(name)


def unload(name: str, model: Model, reason: str) -> None:
    model.weights.clear()
    print(f"{name}: out of memory, {reason}", flush=True)


def main(port: int, idle: float = 300.0) -> None:
    with reaper.threads.open_keeper(load, unload, idle=idle, tick=idle / 10, most=1) as models:

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name, _, query = self.path.strip("/").partition("?")
                if name not in SECONDS:
                    self.send_error(404)
                    return
                with models.use(name) as model:
                    text = model.run(parse_qs(query).get("text", [""])[0])
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode() + b"\n")

        with ThreadingHTTPServer(("127.0.0.1", port), Answer) as server:
            server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(int(sys.argv[1]), *map(float, sys.argv[2:]))
