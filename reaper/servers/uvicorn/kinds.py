"""Those of uvicorn's classes that are guarded and installed."""

from __future__ import annotations

import sys
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .names import HTTP2_MODULE, HTTPTOOLS

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:  # httptools is an extra of uvicorn's
    PROTOCOLS: tuple[type, ...] = (H11Protocol,)
else:
    PROTOCOLS = (H11Protocol, HttpToolsProtocol)
"""uvicorn's HTTP protocols that are installed."""

CYCLES: tuple[Any, ...] = tuple(
    vars(sys.modules[protocol.__module__])["RequestResponseCycle"] for protocol in PROTOCOLS
)
"""uvicorn's object for one request and its response, of each of them. Within its method
`run_asgi`, which is the coroutine of a task, it is `self`.
"""

_LOWER: tuple[Any, ...] = CYCLES[1:] if HTTPTOOLS.is_tested else ()


def is_lower(cycle: Any) -> bool:
    """Whether *cycle* checks the name of each header, and then writes it as its `lower`
    returns it. That of httptools does, in the versions that were tried.
    """
    return isinstance(cycle, _LOWER)


def cycles() -> tuple[Any, ...]:
    """`CYCLES`, and the class of HTTP/2 if it is imported."""
    module = sys.modules.get(HTTP2_MODULE)
    return CYCLES if module is None else (*CYCLES, vars(module)["RequestResponseCycle"])
