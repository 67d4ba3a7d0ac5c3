"""TLS: a client has two seconds for its handshake, however it drips, and then may be
silent for three.

python -m examples.tls_echo 8443 cert.pem key.pem
"""

from __future__ import annotations

import ssl
import sys

import trio

import reaper.trio


async def main(port: int, context: ssl.SSLContext) -> None:
    async with reaper.trio.open_reaper(tick=0.5) as r:

        async def echo(plain: trio.SocketStream) -> None:
            try:
                with r.watch(plain, idle=3) as connection:
                    stream = trio.SSLStream(
                        connection.stream, context, server_side=True, https_compatible=True
                    )
                    handshake = connection.deadline(2, "handshake")  # bytes do not extend it
                    await stream.do_handshake()
                    handshake.release()
                    async for data in stream:
                        await stream.send_all(data)
                if connection.reaped:
                    print("closed:", connection.reason, flush=True)
            except trio.BrokenResourceError:
                pass  # no TLS, or the client reset the connection

        # It closes the socket, without a goodbye of TLS to a client that may not read
        # it.
        await trio.serve_tcp(echo, port, host="127.0.0.1")


if __name__ == "__main__":
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    trio.run(main, int(sys.argv[1]), context)
