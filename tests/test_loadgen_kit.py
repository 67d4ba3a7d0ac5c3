"""What PASS is worth: servers that are wrong in one way each, and each must fail with the reason that names its sin."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from loadgen.drive import connecting, wire, worker
from loadgen.drive.client import Order
from loadgen.judge.observation import Observation
from loadgen.judge.report import UNKNOWN_SERVER, build_report
from loadgen.plan.capacity import Share
from loadgen.plan.plan import Law, make_plan
from loadgen.plan.scenario import from_mix
from loadgen.units import parse_target

TIMEOUT, TICK = 1.5, 0.5
CONNECTIONS = 48
HTTP = "silent=4,chatty=4,pipelined=2,slow_headers=2"
WS = "silent_upgrade=1,chatty=1"
HEAD, BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", b"\r\nok"
AT_ONCE = 0.001


@dataclass(frozen=True)
class Server:
    """One server. Its ways are functions of a connection's number (from 0) and a request's (from 0).

    Attributes:
        reason: what the verdict's reasons must say; empty: it is right, and must pass.
        delay: seconds by which the close of an idle connection is late; None: it never comes.
        counts: whether a request counts as activity.
        answer: what is sent for a request, given what would be right.
        pause: seconds that an answer waits.
        age: seconds after connecting at which even a live connection is closed; *goodbye*: what is sent before.
        max_age: what the scenario says of that.
    """

    reason: str
    protocol: str = "echo"
    mix: str = "silent=5,chatty=4,drip=1,mute=1,pipelined=1"
    delay: Callable[[int], float | None] = lambda number: AT_ONCE
    counts: Callable[[int, int], bool] = lambda number, request: True
    answer: Callable[[int, int, bytes], bytes] = lambda number, request, right: right
    pause: Callable[[int], float] = lambda number: 0.0
    age: Callable[[int], float | None] = lambda number: None
    goodbye: bytes = b""
    first_byte: Callable[[int], float | None] | None = None
    max_age: float | None = None
    crash: float | None = None
    dripped_headers_count: bool = False


def some(number: int) -> bool:
    """One connection in five; the clients of a mix are shuffled."""
    return number % 5 == 2


EARLY = -0.4 * TIMEOUT
KIT = {
    "right": Server(""),
    "right, over HTTP": Server("", "http", HTTP),
    "right, over WebSocket": Server("", "ws", WS),
    "right, and old connections end as the scenario says": Server("", age=lambda number: 2.0, max_age=1.9),
    "early": Server("early", delay=lambda number: EARLY if some(number) else AT_ONCE),
    "early by a tenth": Server("early", delay=lambda number: -0.1 * TIMEOUT),
    "late by 2.5 ticks": Server("late", delay=lambda number: 2.5 * TICK),
    "late, and one connection answered slowly": Server(
        "late", delay=lambda number: 2.5 * TICK, pause=lambda number: 2.5 * TICK if number == 7 else 0.0
    ),
    "some late": Server("late", delay=lambda number: 4 * TICK if some(number) else AT_ONCE),
    "never": Server("missed", delay=lambda number: None),
    "some never": Server("missed", delay=lambda number: None if some(number) else AT_ONCE),
    "never those that said nothing": Server("missed", first_byte=lambda number: None),
    "too early those that said nothing": Server("early", first_byte=lambda number: EARLY),
    "counts from connecting": Server("false", counts=lambda number, request: False),
    "counts three requests": Server("false", counts=lambda number, request: request < 3),
    "cuts the live": Server("false", age=lambda number: 1.0 if some(number) else None),
    "cuts the old, and nobody said so": Server("false", age=lambda number: 2.0),
    "cuts the young, whatever the scenario says": Server("false", age=lambda number: 1.0, max_age=1.9),
    "crashes": Server("false", crash=1.5),
    "answers the first request alone": Server("never came", answer=lambda n, k, right: b"" if k else right),
    "drops a third": Server("never came", answer=lambda n, k, right: b"" if (n + k) % 3 == 0 else right),
    "answers some connections never": Server("never came", answer=lambda n, k, right: b"" if some(n) else right),
    "answers nothing": Server("never came", answer=lambda n, k, right: b""),
    "answers twice": Server("nobody had asked for", answer=lambda n, k, right: 2 * right),
    "answers something else": Server("that are no echo", answer=lambda n, k, right: b"y" * len(right)),
    "answers half of a burst": Server("never came", answer=lambda n, k, right: right[: (len(right) + 1) // 2]),
    "500 to all": Server("status 500", "http", HTTP, answer=lambda n, k, right: right.replace(b"200", b"500")),
    "503 to some": Server(
        "status 503", "http", HTTP, answer=lambda n, k, right: right.replace(b"200", b"503") if some(n) else right
    ),
    "404 to all": Server("status 404", "http", HTTP, answer=lambda n, k, right: right.replace(b"200", b"404")),
    "an unasked 408 to the live": Server(
        "false", "http", HTTP, age=lambda number: 1.0 if number % 2 else None,
        goodbye=b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n",
    ),
    "announces a close to the live": Server(
        "false", "http", HTTP, age=lambda number: 1.0,
        answer=lambda n, k, right: right.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
    ),
    "an answer without its end": Server("never came", "http", HTTP, answer=lambda n, k, right: right[:-1]),
    "a second answer": Server("nobody had asked for", "http", "chatty=1", answer=lambda n, k, right: 2 * right),
    "no HTTP": Server("no http", "http", HTTP, answer=lambda n, k, right: b"220 hello\r\n"),
    "early, over HTTP": Server("early", "http", HTTP, delay=lambda number: EARLY),
    "headers without a limit": Server("late", "http", HTTP, dripped_headers_count=True),
    "no pongs": Server("never came", "ws", WS, answer=lambda n, k, right: b""),
    "early, over WebSocket": Server("early", "ws", WS, delay=lambda number: EARLY),
    "never, over WebSocket": Server("missed", "ws", WS, delay=lambda number: None),
}  # fmt: skip


class Connection(asyncio.Protocol):
    """One connection of *server*: whole requests, answers, a timer."""

    def __init__(self, server: Server, numbers: Iterator[int], all_: set[Connection], loop: VirtualLoop) -> None:
        self.server, self.number, self.all, self.loop = server, next(numbers), all_, loop
        self.data = b""
        self.requests = 0
        self.upgraded = self.server.protocol != "ws"
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.all.add(self)
        self.wait(self.server.first_byte or self.server.delay)
        if (age := self.server.age(self.number)) is not None:
            self.loop.call_later(age, self.end, self.server.goodbye)

    def connection_lost(self, error: Exception | None) -> None:
        self.all.discard(self)
        if self.timer:
            self.timer.cancel()

    def wait(self, delay: Callable[[int], float | None]) -> None:
        if self.timer:
            self.timer.cancel()
        late = delay(self.number)
        self.timer = None if late is None else self.loop.call_later(TIMEOUT + late, self.end, b"")

    def end(self, goodbye: bytes) -> None:
        self.transport.write(goodbye)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        before = self.data
        self.data += data
        if not self.upgraded:
            if b"\r\n\r\n" in self.data:
                self.upgraded, self.data = True, b""
                self.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                self.wait(self.server.delay)
            return
        if self.server.protocol == "http":
            *whole, self.data = self.data.split(b"\r\n\r\n")
            rights = [HEAD + BODY] * len(whole)
            if not before or whole or self.server.dripped_headers_count:
                self.touch()  # the deadline of headers runs from their first byte
        elif self.server.protocol == "ws":
            rights, self.data = [b"\x8a\x01x"] * (len(self.data) // 7), b""
            self.touch()
        else:
            rights, self.data = [self.data], b""
            self.touch()
        for right in rights:
            said = self.server.answer(self.number, self.requests, right)
            self.requests += 1
            if pause := self.server.pause(self.number):
                self.loop.call_later(pause, self.transport.write, said)
            else:
                self.transport.write(said)

    def touch(self) -> None:
        if self.server.counts(self.number, self.requests):
            self.wait(self.server.delay)


class Clock:
    """Virtual seconds, the same for a server's loop and for the load generator's."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class VirtualLoop(asyncio.SelectorEventLoop):
    """A server's loop in virtual time; *stops*: from, to: it stands still."""

    def __init__(self, clock: Clock, stops: list[tuple[float, float]]) -> None:
        super().__init__()
        self.clock, self.stops = clock, stops

    def time(self) -> float:
        return self.clock.now

    def stopped_until(self) -> float:
        return max((to for begun, to in self.stops if begun <= self.clock.now < to), default=0.0)

    def step(self) -> None:
        """Do everything that is to be done now."""
        if not self.stopped_until():
            for _ in range(5):  # accept, read, call back, answer
                self.call_soon(self.stop)
                self.run_forever()

    def next_timer(self) -> float:
        return self.stopped_until() or min((h._when for h in self._scheduled if not h._cancelled), default=math.inf)  # type: ignore[attr-defined]


class Poller:
    """An epoll of real sockets, whose waiting is the server's time; *stops*: when the generator stands still."""

    def __init__(self, clock: Clock, loop: VirtualLoop, stops: list[tuple[float, float]]) -> None:
        self.epoll, self.clock, self.loop, self.stops = select.epoll(), clock, loop, stops
        self.register, self.modify, self.unregister = self.epoll.register, self.epoll.modify, self.epoll.unregister

    def poll(self, wait: float, most: int) -> list[tuple[int, int]]:
        until = self.clock.now + wait
        while True:
            self.loop.step()
            stop = max((to for begun, to in self.stops if begun <= self.clock.now < to), default=0.0)
            until = max(until, stop)
            if not stop and (events := self.epoll.poll(0, most)):
                self.clock.now += 20e-6
                return events
            if self.clock.now >= until:
                return []
            self.clock.now = max(min(until, self.loop.next_timer()), self.clock.now + 1e-6)


class Control:
    """The parent of a process: it says when to begin, and when to end."""

    def __init__(self, clock: Clock, duration: float) -> None:
        self.clock, self.duration = clock, duration
        self.pipe = os.pipe()
        self.told = [clock.now]
        self.sent: list[Any] = []
        self.ramped = 0.0

    def fileno(self) -> int:
        return self.pipe[0]

    def recv(self) -> float:
        if len(self.told) > 1:
            os.read(self.pipe[0], 1)
        return self.told[-1]

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if getattr(message, "ramped", False) and len(self.told) == 1:
            self.ramped = self.clock.now
            self.told.append(self.clock.now + self.duration)
            os.write(self.pipe[1], b"x")


Stops = list[tuple[float, float]]


def judged(
    server: Server, monkeypatch: pytest.MonkeyPatch, server_stops: Stops | None = None, own_stops: Stops | None = None
) -> dict[str, Any]:
    """The report on *server*, reached in virtual time by the load generator's own loop, over real sockets."""
    clock = Clock()
    loop = VirtualLoop(clock, [(clock.now + begun, clock.now + to) for begun, to in server_stops or []])
    numbers, all_ = iter(range(10**6)), set[Connection]()
    listening = loop.run_until_complete(
        loop.create_server(lambda: Connection(server, numbers, all_, loop), "127.0.0.1", 0, backlog=1000)
    )
    port = listening.sockets[0].getsockname()[1]
    if server.crash:
        loop.call_later(server.crash, lambda: [connection.transport.abort() for connection in all_])
    for module in (worker, connecting, wire):
        monkeypatch.setattr(module, "monotonic", clock)
    monkeypatch.setattr(worker, "waited", lambda fd: 0.0)
    law = Law(TIMEOUT, TICK, 0.0, server.max_age)
    plan = make_plan(from_mix(server.mix), CONNECTIONS, law, 3 * TIMEOUT, 1, 400.0)
    control = Control(clock, plan.duration)
    order = Order(plan, parse_target(f"127.0.0.1:{port}"), server.protocol, 4 * TICK, share=Share(0, CONNECTIONS))
    made = worker.Worker(order, control)  # type: ignore[arg-type]
    made.poller.close()
    stops = [(clock.now + begun, clock.now + to) for begun, to in own_stops or []]
    made.poller = made.connector.poller = Poller(clock, loop, stops)  # type: ignore[assignment]
    gc_was = gc.isenabled()
    made.run()
    if gc_was:
        gc.enable()
        gc.unfreeze()
    listening.close()
    for connection in list(all_):
        connection.transport.abort()
    loop.step()
    loop.close()
    made.poller.epoll.close()  # type: ignore[attr-defined]
    for fd in control.pipe:
        os.close(fd)
    observation = Observation(control.told[0], control.ramped, clock.now, [control.sent[-1]])
    return build_report(plan, observation, {"protocol": server.protocol, "tick_s": TICK}, UNKNOWN_SERVER)


@pytest.mark.parametrize("name", [name for name, server in KIT.items() if server.reason])
def test_a_broken_server_fails_for_its_sin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(KIT[name], monkeypatch)
    assert report["verdict"] == "fail", report["reasons"]
    assert any(KIT[name].reason in reason for reason in report["reasons"]), report["reasons"]


@pytest.mark.parametrize("name", [name for name, server in KIT.items() if not server.reason])
def test_a_right_server_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(KIT[name], monkeypatch)
    assert report["verdict"] == "pass", report["reasons"]
    assert report["reaps"]["excused_share"] <= 0.01
    actions = report["actions"]
    assert actions["asked"] == actions["answered"] + actions["cut"] + actions["underway"]


SHORT = [(0.4, 1.0), (1.1, 1.5), (1.42, 1.58), (2.0, 2.3)]
"""Seconds after the start from which to which a process stands still: in the silence, at its end, and after it."""
LONG = [(0.2, 2.5), (1.2, 2.6), (1.4, 5.0)]


@pytest.mark.parametrize("side", ["server_stops", "own_stops"])
@pytest.mark.parametrize("stop", SHORT)
def test_a_right_server_passes_on_a_machine_that_stalls(
    stop: tuple[float, float], side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = judged(KIT["right"], monkeypatch, **{side: [stop]})
    assert report["verdict"] == "pass", report["reasons"]


@pytest.mark.parametrize("side", ["server_stops", "own_stops"])
@pytest.mark.parametrize("stop", LONG)
def test_a_machine_that_stalls_for_long_accuses_no_right_server(
    stop: tuple[float, float], side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = judged(KIT["right"], monkeypatch, **{side: [stop]})
    assert report["verdict"] == "inconclusive", report["reasons"]
    assert any("too many to say anything" in reason or "undecided" in reason for reason in report["reasons"])


def test_the_kit_is_as_large_as_is_said() -> None:
    assert sum(bool(server.reason) for server in KIT.values()) >= 25
