"""Streams of one HTTP/2 connection: one takes nothing, or all take in turn."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

from h2.connection import H2Connection
from h2.settings import SettingCodes

from loadgen.clients import Speech
from loadgen.plan.acts import HELLO, Ask, Begin, Done, Kind, Want
from loadgen.playing.play import played
from loadgen.units import Target
from tests.helpers.http2_frames import DATA, RST_STREAM, frames, opening


def one_takes_nothing(
    target: Target, speech: Speech, limit: float, patience: float
) -> tuple[list[int], int]:
    """Ask the server at *target* for much on stream 1, whose window is never opened
    again, and on stream 3 for an answer that takes longer than *limit*, seconds.

    Returns: the streams that were reset, by number, and how many answers were
    whole.
    """
    asks = (Begin(1000, opens=False), Ask("/big"), Ask(f"/slow?{limit + 1.5:g}"), Done(1))
    kind = Kind(name="both", speaks="http2", acts=asks, answers=(Want(None, status=0), HELLO))
    seen = asyncio.run(played(kind, (target.host, target.port), patience, tls=speech.tls))
    ends = [end for _, _, end in seen.streams]
    reset = [2 * place + 1 for place, end in enumerate(ends) if end.startswith("RST_STREAM")]
    return reset, ends.count("whole")


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
