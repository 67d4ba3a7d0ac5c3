"""A gRPC server of grpc.aio: /answers.Answers/slow answers late, /answers.Answers/pause
stops halfway through its stream.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

SLOW = float(os.environ["SLOW"])


async def slow(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(SLOW)
    return b"ok"


async def pause(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.sleep(SLOW)
    yield b"last"


async def main() -> None:
    server = grpc.aio.server()
    methods = {
        "slow": grpc.unary_unary_rpc_method_handler(slow),
        "pause": grpc.unary_stream_rpc_method_handler(pause),
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("answers.Answers", methods)]
    )
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
