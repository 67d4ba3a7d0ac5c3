"""What `reaper run` changes in uvicorn. The protocol is chosen by `Config.http`, as
`--http` does on the command line.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..guest import PACKAGE, Visit, after, around
from .names import HTTP2

KINDS = {"auto": "Auto", "httptools": "HttpTools", "h11": "H11"}
"""The class of `reaper.uvicorn` for each value of uvicorn's `--http`."""


def change(module: ModuleType, visit: Visit) -> None:
    """Have each `Config` name a guarded protocol, and each `Server` say on which
    sockets it listens.
    """

    @after(module.Config, "__init__")
    def told(_result: None, config: Any, *_others: Any, **_options: Any) -> None:
        name = KINDS.get(config.http) if isinstance(config.http, str) else None
        http2 = config.http == "zttp" and bool(getattr(config, "http2", False))
        if http2:
            name = "Http2"
        if name is None:
            if "reaper" not in repr(config.http):
                visit.left_alone(
                    f"its protocol is {config.http!r}, not one of {', '.join(KINDS)}, "
                    "or zttp with HTTP/2",
                )
            return
        if http2:
            try:
                from uvicorn.protocols.http import zttp_h2_impl  # noqa: F401
            except ImportError:
                return  # uvicorn says what its HTTP/2 needs
        if not visit.fits("uvicorn", *([HTTP2] if http2 else [])):
            return
        config.http = f"{PACKAGE}.uvicorn:{name}"
        if http2:
            config.http2 = False  # uvicorn refuses it beside any class but its own
        if config.loop == "auto":  # bounds TLS handshakes; a loop that was asked for stays
            config.loop = f"{PACKAGE}.uvicorn:loop"

    @around(module.Server, "startup")
    def startup(method: Any) -> Any:
        async def instead(self: Any, sockets: Any = None) -> None:
            await method(self, sockets=sockets)
            if "reaper" in f"{self.config.http_protocol_class.__module__}":
                found = sockets or [
                    sock for each in getattr(self, "servers", ()) for sock in each.sockets
                ]
                visit.listens(found, keep_alive=self.config.timeout_keep_alive)

        return instead
