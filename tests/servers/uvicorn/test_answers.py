"""uvicorn, guarded: what a request pays for the streams that a stop has to end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import reaper.asyncio.reaper
from reaper.config import ReaperConfig
from reaper.servers.uvicorn.answers import Answers, Promises
from tests.helpers.driver_loop import Loop
from tests.servers.uvicorn.test_quiet import ask, serving

pytestmark = pytest.mark.anyio

OURS = Path(reaper.__file__).parent
WAKES = reaper.asyncio.reaper.__file__
BOTH = ["data_received", "__call__", "sent", "sent", "on_response_complete"]
AFTERWARDS = ["call_later", "timeout_keep_alive_handler", "touch"]
CALLS = {
    "HttpTools": ["on_message_complete", *BOTH, "lower", *AFTERWARDS],
    "H11": [*BOTH, *AFTERWARDS],
}
"""The functions of ours that a request and its response call."""


def is_ours(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(OURS)


def in_a_wake(frame: FrameType | None) -> bool:
    """Whether the loop has called the reaper itself, below which *frame* runs, or the
    timer by which the protocols of who rests are dropped.
    """
    outermost = None
    while frame is not None:
        if is_ours(frame):
            outermost = frame
        frame = frame.f_back
    if outermost is None:
        return False
    code = outermost.f_code
    return code.co_filename == WAKES or code.co_name == "_have_rested"


@contextmanager
def calls() -> Iterator[list[str]]:
    """The functions of ours that this thread calls within the block, but for a wake of
    the reaper, which is nobody's request.
    """
    found: list[str] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_ours(frame) and not in_a_wake(frame):
            found.append(frame.f_code.co_name)

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("protocol", CALLS)
async def test_a_request_that_is_no_stream_calls_these_functions_of_ours_and_no_more(
    protocol: str,
) -> None:
    async with serving(protocol, keep_alive=500) as served:
        reader, writer = await served.connect()
        await ask(reader, writer)  # uvicorn's protocol is made
        with calls() as found:
            await ask(reader, writer)
        writer.close()
        await asyncio.sleep(0)
    assert sorted(found) == sorted(CALLS[protocol])


async def test_a_stop_looks_into_no_task_that_does_not_show_its_coroutine() -> None:
    """As one of a loop that is not asyncio's; uvicorn's own tests have such."""

    async def application(scope: object, receive: object, send: object) -> None:
        """Is not called."""

    tasks: Any = [object()]
    answers = Answers(application, ReaperConfig(), Loop().driver, Promises(), tasks)
    answers.stop(2.0)
    assert answers.seconds == 2.0
