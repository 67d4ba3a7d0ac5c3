"""The same as a WSGI application."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

SLOW = float(os.environ.get("SLOW", "1"))


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterator[bytes]:
    path = environ["PATH_INFO"]
    if path == "/slow":
        time.sleep(SLOW)
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    parts = [b"first", b"last"] if path == "/pause" else [b"ok"]
    start_response("200 OK", [("Content-Length", str(sum(map(len, parts))))])
    yield parts[0]
    for part in parts[1:]:
        time.sleep(SLOW)
        yield part
