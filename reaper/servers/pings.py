"""Event streams that have gone quiet are pinged, before a proxy takes them for dead.

The rule of this module: *a ping is written where nothing else is, or not at all*. It
goes between two events; only once the headers are out; only while the application sends
nothing and the client has taken all that was sent. Whatever cannot be read counts as
inside of an event.

All streams of a server lie in one ring, as in `reaper.core.ring`: a slot for each tick,
and a stream that writes stores the open tick. So a stream has no task and no timer, and
writing costs it a store. A ping comes no earlier than `timeouts.stream_ping` after the
last bytes, and at most one tick later, or a quarter of itself if that is less.

The servers of asyncio send without waiting while there is room, so a ping needs no task
either: its coroutine is run by hand. If it has to wait nevertheless, a task finishes
it, and what the application sends meanwhile waits for it.
"""

from __future__ import annotations

import random
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, Protocol

from ..config.settings import ReaperConfig
from ..core.ticks import deadline_to_tick, seconds_to_ms_deadline, seconds_to_tick
from ..driver.driver import Driver
from ..policy.boundaries import BOUNDARY, EARLY, INSIDE, NEW, Kind, may_ping, without_mark

USUAL = 15.0
"""Seconds between two pings of a response that asks for them where
`timeouts.stream_ping` is off.
"""

TOGETHER = 64
"""Pings that are sent before the loop is let run again."""

PINGING = -1
"""`Quiet.sends` while a ping waits to be sent."""


class Speaker(Protocol):
    """Sends for the owner of a stream."""

    def is_over(self, owner: Any) -> bool:
        """Whether it is too late to send."""

    def is_blocked(self, owner: Any) -> bool:
        """Whether the client has yet to take something."""

    def speak(self, owner: Any, message: Any) -> Awaitable[Any]:
        """Send *message* past the application."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* as a task."""

    def event(self) -> Any:
        """An event of the framework that runs."""


class Quiet:
    """An event stream whose bytes are followed.

    Attributes:
        owner: The exchange that it belongs to; None once it is over.
        kind: The format of its pings.
        stands: Where in an event its last byte lies.
        sends: How many messages of the application are being sent, the first one from
            the beginning on; or `PINGING`.
        tick: The tick in which it has last written something.
    """

    __slots__ = ("kind", "owner", "sends", "stands", "tick")

    def __init__(self, owner: Any, kind: Kind, stands: int) -> None:
        self.owner: Any = owner
        self.kind: Kind = kind
        self.stands: int = stands
        self.sends: int = 1
        self.tick: int = 0


class Pings:
    """Follows the event streams of one server, and pings those that are quiet.

    Args:
        speaker: Sends for them.
        config: `timeouts.stream_ping`, `server.stream_retry` and the tick are taken
            from it.
        driver: Its clock is used. It calls once in a tick while any stream is open.
    Attributes:
        sent: How many pings were sent.
    """

    def __init__(self, speaker: Speaker, config: ReaperConfig, driver: Driver) -> None:
        seconds = config.timeouts.stream_ping or USUAL
        self.step: float = min(config.reaper.tick, seconds / 4)
        step, wait = (seconds_to_ms_deadline(each) for each in (self.step, seconds))
        self._ticks = deadline_to_tick(wait, step)
        self._slots: list[list[Quiet]] = [[] for _ in range(self._ticks + 1)]
        self.tick: int = 0
        self._lying = 0  # streams in slots, ended ones included until their slot comes round
        self._since = 0.0  # when the open tick began, by the loop's own clock
        self._speaker = speaker
        self._driver = driver
        self._retry = config.server.stream_retry
        self._held: dict[Quiet, bytes] = {}  # what may be a mark, of streams pinged before it
        self._pending: dict[Quiet, Any] = {}  # pings that wait to be sent
        self.sent: int = 0

    def __len__(self) -> int:
        """How many streams are in the ring. One that has ended may stay there for the
        time of one ping.
        """
        return self._lying

    # ---- what the application sends

    async def start(
        self, quiet: Quiet, send: Callable[[Any], Awaitable[Any]], message: Any, *, pinged: bool
    ) -> None:
        """Send *message*, with which the response of *quiet* begins; *pinged*: it will
        be.
        """
        try:
            await send(message)
        except BaseException:
            self.over(quiet)
            raise
        self.begin(quiet, pinged=pinged)

    def begin(self, quiet: Quiet, *, pinged: bool) -> None:
        """The first message of the response of *quiet* was sent; *pinged*: it will be
        pinged.
        """
        quiet.sends -= 1
        if pinged and quiet.owner is not None:
            self._add(quiet)

    async def pended(self, quiet: Quiet) -> None:
        """Wait until the pending ping of *quiet* was sent."""
        await self._pending[quiet].wait()

    async def goes_on(
        self, quiet: Quiet, send: Callable[[Any], Awaitable[Any]], message: Any
    ) -> None:
        """Send *message*, which comes after the first one of the response of
        *quiet*.
        """
        while quiet.sends < 0:
            await self.pended(quiet)
        body = message.get("body", b"")
        if quiet.stands == EARLY and message["type"] == "http.response.body":
            body, message = self._first(quiet, body, message)
        if not message.get("more_body", False):
            self.over(quiet)  # or it is no piece of the body: a file, or trailers
        quiet.sends += 1
        try:
            await send(message)
        except BaseException:
            quiet.stands = INSIDE  # how much of it was written is not known
            raise
        finally:
            quiet.sends -= 1
        if body:
            quiet.tick = self.tick
            quiet.stands = _after(quiet, body)

    def _first(self, quiet: Quiet, body: Any, message: Any) -> tuple[Any, Any]:
        """The application's first bytes after a ping: *body* and *message* without a
        byte order mark.
        """
        if not quiet.kind.events:
            return body, message
        last = not message.get("more_body", False)
        body, held, over = without_mark(self._held.pop(quiet, b""), bytes(body))
        if last:
            body, held = body + held, b""
        if held:
            self._held[quiet] = held
        elif over and not body:
            quiet.stands = BOUNDARY  # it was nothing but the mark
        return body, {**message, "body": body}

    def over(self, quiet: Quiet) -> None:
        """The response of *quiet* is complete, or its application has returned."""
        quiet.owner = None
        if self._held:
            self._held.pop(quiet, None)

    # ---- the ring

    def _add(self, quiet: Quiet) -> None:
        quiet.tick = self.tick
        self._slots[self.tick % len(self._slots)].append(quiet)
        self._lying += 1
        if self._lying == 1:
            self._since = self._driver.clock.read()
            self._driver.after(self.step, self._turn)

    def _turn(self) -> None:
        """A tick is over."""
        now = self._driver.clock.read()
        # After a stall several are over at once: a proxy counts those seconds, too.
        passed = max(seconds_to_tick(now, self._since, self.step), 1)
        self._since = now
        due = self.advance(passed)
        if self._lying:
            self._driver.after(self.step, self._turn)
        if due:
            self._speaker.run(self.ping(due))

    def advance(self, passed: int) -> list[Quiet]:
        """Let *passed* ticks pass; return the streams that were quiet. They stay in the
        ring.
        """
        slots, size = self._slots, len(self._slots)
        due: list[Quiet] = []
        old, self.tick = self.tick, self.tick + passed
        for touched in range(old - self._ticks, min(self.tick - self._ticks, old + 1)):
            lying, slots[touched % size] = slots[touched % size], []
            for quiet in lying:
                if quiet.owner is None:
                    self._lying -= 1
                elif quiet.tick == touched:
                    due.append(quiet)
                else:
                    slots[quiet.tick % size].append(quiet)
        for quiet in due:
            quiet.tick = self.tick
        slots[self.tick % size] += due
        return due

    # ---- what is written besides

    async def ping(self, due: list[Quiet]) -> None:
        """Ping those of *due* that stand between two events."""
        for number, quiet in enumerate(due):
            if number % TOGETHER == TOGETHER - 1:
                await self.rests()
            if self.say(quiet, quiet.kind.ping):
                self.sent += 1
                if quiet.stands == NEW:
                    quiet.stands = EARLY

    async def rests(self) -> None:
        """Let the loop run once."""
        await _once()

    def retry(self, quiet: Quiet | None) -> None:
        """Say when the client of *quiet*, whose stream is about to end, may come
        back.
        """
        if self._retry and quiet is not None and quiet.kind.events:
            seconds = self._retry * (1 + random.random())
            self.say(quiet, b"retry: %d\n\n" % round(seconds * 1000))

    def say(self, quiet: Quiet, data: bytes) -> bool:
        """Write *data*, which begins and ends at a boundary, if *quiet* stands at one
        and nothing waits to be sent. Returns whether that was done, or has begun.
        """
        owner, speaker = quiet.owner, self._speaker
        if owner is None or quiet.sends or not may_ping(quiet.stands) or quiet in self._held:
            return False
        if speaker.is_over(owner):
            self.over(quiet)
            return False
        if speaker.is_blocked(owner):
            return False
        message = {"type": "http.response.body", "body": data, "more_body": True}
        self._send(quiet, speaker.speak(owner, message))
        return True

    def _send(self, quiet: Quiet, sending: Awaitable[Any]) -> None:
        steps = iter(sending.__await__())
        try:
            waits = next(steps)
        except StopIteration:
            return
        except Exception:  # the server refuses it: the response has ended, or the client has left
            self.over(quiet)
            return
        self.wait_for(quiet)
        self._speaker.run(self._finish(quiet, waits, steps))

    async def _finish(self, quiet: Quiet, waits: Any, steps: Iterator[Any]) -> None:
        try:
            await _rest(waits, steps)
        except Exception:
            self.over(quiet)
        finally:
            self.was_sent(quiet)

    def wait_for(self, quiet: Quiet) -> None:
        """Hold back what the application sends until `was_sent`."""
        quiet.sends = PINGING
        self._pending[quiet] = self._speaker.event()

    def was_sent(self, quiet: Quiet) -> None:
        """The ping that has waited was sent."""
        quiet.sends = 0
        self._pending.pop(quiet).set()


class TaskPings(Pings):
    """As `Pings`, where what is sent always waits, as in trio: a ping has a task of its
    own while it is sent.
    """

    def _send(self, quiet: Quiet, sending: Awaitable[Any]) -> None:
        self.wait_for(quiet)
        self._speaker.run(self._sends(quiet, sending))

    async def _sends(self, quiet: Quiet, sending: Awaitable[Any]) -> None:
        try:
            await sending
        except Exception:  # as in the base
            self.over(quiet)
        finally:
            self.was_sent(quiet)


def _after(quiet: Quiet, body: Any) -> int:
    try:
        return quiet.kind.after(quiet.stands, body if type(body) is bytes else bytes(body))
    except Exception:
        return INSIDE  # what cannot be read may be anything


@types.coroutine
def _once() -> Generator[None, None, None]:
    """One pass of asyncio's loop."""
    yield


@types.coroutine
def _rest(waits: Any, steps: Iterator[Any]) -> Generator[Any, Any, Any]:
    """Finish a coroutine that was begun by hand and waits for *waits*."""
    yield waits
    return (yield from steps)
