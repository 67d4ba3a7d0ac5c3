"""uvicorn, guarded, but for one part of the guard.

    python -m benchmarks.servers.without PART ARGUMENT...    the arguments are uvicorn's

For counting: what a request costs less without a part is what the part costs. Such a
server is of no other use: without a part it guards nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from reaper.servers.uvicorn import answers, http, shared


def _nothing() -> None:
    """All of the guard."""


def _header() -> None:
    answers.Promises.add = lambda self, cycle: cycle.default_headers  # type: ignore[method-assign]


def _application() -> None:
    answers.Answers.__call__ = (  # type: ignore[method-assign]
        lambda self, scope, receive, send: self.app(scope, receive, send)
    )


def _received() -> None:
    kind: Any = http.Auto
    del kind.data_received


def _idle() -> None:
    shared.Timerless.call_later = lambda self, delay, callback: None  # type: ignore[method-assign]


PARTS: dict[str, Callable[[], None]] = {
    "all": _nothing,
    "header": _header,
    "application": _application,
    "received": _received,
    "idle": _idle,
}
"""By name, what takes it away."""


def main() -> None:
    """Take the part away, and start uvicorn."""
    import uvicorn

    PARTS[sys.argv.pop(1)]()
    uvicorn.main()


if __name__ == "__main__":
    main()
