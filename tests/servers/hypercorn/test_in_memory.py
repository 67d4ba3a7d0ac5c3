"""What `reaper run` does with the connections of hypercorn that are none: a test's, in
memory.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from reaper.servers.hypercorn import phases
from reaper.servers.hypercorn import trio as on_trio


def test_a_writer_in_memory_is_left_alone() -> None:
    server = SimpleNamespace(writer=object())
    served: list[Any] = []

    async def run(self: Any) -> None:
        served.append(self.writer)

    asyncio.run(phases.guarded_run(run)(server))
    assert served == [server.writer]
    assert vars(server) == {"writer": server.writer}


def test_a_stream_in_memory_is_left_alone_on_trio() -> None:
    stream, _ = trio.testing.memory_stream_pair()
    server = SimpleNamespace(stream=stream)
    served: list[Any] = []

    async def run(self: Any) -> None:
        served.append(self.stream)

    trio.run(on_trio.guarded_run(run), server)
    assert served == [stream]
    assert vars(server) == {"stream": stream}
