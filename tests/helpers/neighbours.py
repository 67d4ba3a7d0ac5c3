"""Streams of one HTTP/2 connection: one takes nothing, or all take in turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from loadgen.clients import Speech
from loadgen.plan.acts import HELLO, Ask, Begin, Deaf, Done, Hear, Kind, Take, Want
from loadgen.playing.client import Gone
from loadgen.playing.play import played
from loadgen.units import Target
from tests.helpers.http2_clients import talking
from tests.helpers.program_trials import Addressed


def one_takes_nothing(
    target: Target, speech: Speech, limit: float, patience: float
) -> tuple[list[int], int]:
    """Ask the server at *target* for much on stream 1, whose window is never opened
    again, and on stream 3 for an answer that takes longer than *limit*, seconds.

    Returns: the streams that were reset, by number, and how many answers were
    whole.
    """
    # A stall of the server puts off the reset, perhaps behind the answer: await both.
    slow = Ask(f"/slow?{limit + 1.5:g}")
    asks = (Begin(1000, opens=False), Ask("/big"), slow, Done(0), Done(1))
    kind = Kind(name="both", speaks="http2", acts=asks, answers=(Want(None, status=0), HELLO))
    seen = asyncio.run(played(kind, (target.host, target.port), patience, tls=speech.tls))
    ends = [end for _, _, end in seen.streams]
    reset = [2 * place + 1 for place, end in enumerate(ends) if end.startswith("RST_STREAM")]
    return reset, ends.count("whole")


def all_share_a_window(server: Addressed, streams: int, size: int, takes: float) -> int:
    """Ask for *size* bytes on each of *streams*, whose own windows are wide, and take
    them at a rate by which all of them take *takes* seconds.

    Returns: how many bytes came before the server ended the connection, or all had
    come.
    """
    slowly = Take(size, takes / streams, streams * size)
    with talking(server, Begin(streams * size)) as client:
        with suppress(Gone):
            client.do(*[Ask(f"/some?{size}")] * streams, Deaf(), slowly, Hear())
            client.do(*map(Done, range(streams)))
        return sum(len(client.stream(number).body) for number in range(streams))
