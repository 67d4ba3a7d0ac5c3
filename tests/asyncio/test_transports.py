"""What is known of a transport that is gone."""

from __future__ import annotations

import asyncio
import ssl

from reaper.asyncio import transports


def test_a_transport_of_tls_that_was_closed_twice_is_gone(certificate: tuple[str, str]) -> None:
    known: list[object] = []

    async def run() -> None:
        gone = asyncio.Event()

        def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            transport = writer.transport
            transport.close()
            transport.close()  # as uvicorn does when its connection is lost
            gone.set()
            known.append((transports.descriptor_of(transport), transports.queued(transport)))
            known.append((transports.is_tls(transport), transports.protocol_of(transport)))

        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ours.load_cert_chain(*certificate)
        theirs = ssl.create_default_context(cafile=certificate[0])
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ours) as server:
            address = server.sockets[0].getsockname()
            _, writer = await asyncio.open_connection(
                *address, ssl=theirs, server_hostname="localhost"
            )
            await gone.wait()
            writer.transport.abort()

    asyncio.run(run())
    assert known == [(-1, 0), (True, None)]
