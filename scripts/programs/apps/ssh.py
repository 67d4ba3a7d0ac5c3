from __future__ import annotations

import asyncio
import sys

import asyncssh


async def main() -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", int(sys.argv[1]), server_host_keys=[key])
    await server.wait_closed()


asyncio.run(main())
