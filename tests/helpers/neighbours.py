"""Streams of one HTTP/2 connection: one takes nothing, or all take in turn."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

from h2.connection import H2Connection
from h2.settings import SettingCodes

from loadgen.clients import Speech
from loadgen.http2 import Http2
from loadgen.units import Target
from tests.helpers.http2_frames import DATA, RST_STREAM, frames, opening


def one_takes_nothing(
    target: Target, speech: Speech, limit: float, patience: float
) -> tuple[list[int], int]:
    """Ask the server at *target* for much on stream 1, whose window is never opened
    again, and on stream 3 for an answer that takes longer than *limit*, seconds.

    Returns: the streams that were reset, in that order, and how many answers were
    whole.
    """
    reset: list[int] = []

    async def both(client: Http2) -> None:
        client.begin(1000)
        client.ask("/big")
        client.ask(f"/slow?{limit + 1.5:g}")
        await client.answered.wait()

    async def run() -> int:
        client = Http2(target, speech, "both")
        heard = client._heard

        def note(event: object) -> bool:
            if type(event).__name__ == "StreamReset":
                reset.append(event.stream_id)  # type: ignore[attr-defined]
            heard(event)
            return client.answered.is_set() or type(event).__name__ == "ConnectionTerminated"

        client._heard = note  # type: ignore[method-assign]
        return (await client.play(both, patience)).answered

    return reset, asyncio.run(run())


def all_share_a_window(client: socket.socket, streams: int, size: int, takes: float) -> int:
    """Ask over *client* for *size* bytes on each of *streams*, whose own windows are
    wide, and take them at a rate by which all of them take *takes* seconds.

    Returns: how many bytes came before the server ended the connection, or all had
    come.
    """
    speaks = H2Connection()
    speaks.initiate_connection()
    speaks.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: streams * size})
    names = {":method": "GET", ":path": f"/some?{size}", ":scheme": "http", ":authority": "h"}
    for number in range(1, 2 * streams, 2):
        speaks.send_headers(number, list(names.items()), end_stream=True)
    client.sendall(speaks.data_to_send())
    read = 0
    for frame, _, payload in frames(client):
        read += len(payload) if frame == DATA else 0
        if frame == RST_STREAM or read == streams * size:
            break
        if frame == DATA and payload:
            time.sleep(takes * len(payload) / (streams * size))
            with suppress(OSError):  # the server has closed it: what it said before is read
                client.sendall(opening(len(payload))[:13])  # of the connection alone
    return read
