"""A plugin of pytest for uvicorn's own tests, which runs in their process, below
`reaper run`.

uvicorn's tests seldom start a server that is told its protocol by name. Most import the
class and make one connection of it, on a transport and a loop of their own. So the
classes in uvicorn's modules are replaced before a test imports them, and what a test
holds is a `Facing`: ours changes the protocol of a connection as it goes on, and the
test looks at the first one only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import uvicorn.config  # noqa: F401  # this makes `reaper run` import what follows

guarded = import_module("_idle_reaper.servers.uvicorn.http")
shared = import_module("_idle_reaper.servers.uvicorn.shared")
idle = import_module("_idle_reaper.servers.uvicorn.idle")
import_module("_idle_reaper.servers.uvicorn.kinds")  # reads the classes that are replaced below


class Facing:
    """What a test holds in the place of uvicorn's protocol: whichever is in force now.

    Args:
        made: The protocol that the loop would have been given.
    """

    now: Any

    def __init__(self, made: Any) -> None:
        object.__setattr__(self, "now", made)

    def connection_made(self, transport: Any) -> None:
        """Begin the connection. The tests' transport does not hold a protocol, and has
        nothing to say of what is queued.
        """
        transport.set_protocol = lambda protocol: object.__setattr__(self, "now", protocol)
        transport.get_write_buffer_size = lambda: 0
        self.now.connection_made(transport)

    def _awake(self) -> Any:
        if isinstance(self.now, idle.IdleProtocol):
            self.now.wake()
        return self.now

    def __getattr__(self, name: str) -> Any:
        now = self.now if hasattr(self.now, name) else self._awake()
        return getattr(now, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._awake(), name, value)


class OnTheTestsLoop:
    """Mixed into our protocols: made with a loop of the test's own, they use that."""

    __slots__ = ()

    _origin: Any
    loop: Any

    def __new__(cls, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> Any:
        made = super().__new__(cls, config, server_state, app_state, _loop)  # type: ignore[call-arg]
        return made if _loop is None else Facing(made)

    def take_over(self, before: Any) -> None:
        """Go on with the connection of *before*."""
        super().take_over(before)  # type: ignore[misc]
        if self._origin.loop is not None:
            self.loop = shared.Timerless(self._origin.loop)


def replace(module: ModuleType, name: str, kind: Any) -> None:
    """Put a guarded class in the place of uvicorn's class *name*, by that name."""
    made = type(name, (OnTheTestsLoop, kind), {"__slots__": ()})
    setattr(module, name, made)


replace(import_module("uvicorn.protocols.http.h11_impl"), "H11Protocol", guarded.H11)
replace(
    import_module("uvicorn.protocols.http.httptools_impl"), "HttpToolsProtocol", guarded.HttpTools
)
