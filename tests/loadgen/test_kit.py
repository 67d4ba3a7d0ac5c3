"""What PASS is worth: servers that are wrong in one way each, and each must fail with
the reason that names its sin.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import select
from dataclasses import replace
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
from tests.helpers.faulty_servers import KIT, TICK, TIMEOUT, Connection, Server

CONNECTIONS = 48


class Clock:
    """Virtual seconds, the same for a server's loop and for the load generator's."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def stopped(self, stops: list[tuple[float, float]]) -> float:
        """Until when something stands still now that does so from, to; 0: it does
        not.
        """
        return max((to for begun, to in stops if begun <= self.now < to), default=0.0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A server's loop in virtual time; *stops*: from, to: it stands still."""

    def __init__(self, clock: Clock, stops: list[tuple[float, float]]) -> None:
        super().__init__()
        self.clock, self.stops = clock, stops

    def time(self) -> float:
        return self.clock.now

    def step(self) -> None:
        """Do everything that is to be done now."""
        if not self.clock.stopped(self.stops):
            for _ in range(5):  # accept, read, call back, answer
                self.call_soon(self.stop)
                self.run_forever()

    def next_timer(self) -> float:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        timers = (timer._when for timer in scheduled if not timer._cancelled)
        return self.clock.stopped(self.stops) or min(timers, default=math.inf)


class Poller:
    """An epoll of real sockets, whose waiting is the server's time; *stops*: when the
    generator stands still.
    """

    def __init__(self, clock: Clock, loop: VirtualLoop, stops: list[tuple[float, float]]) -> None:
        self.epoll, self.clock, self.loop, self.stops = select.epoll(), clock, loop, stops
        self.register, self.modify, self.unregister = (
            self.epoll.register,
            self.epoll.modify,
            self.epoll.unregister,
        )

    def poll(self, wait: float, most: int) -> list[tuple[int, int]]:
        until = self.clock.now + wait
        while True:
            self.loop.step()
            stop = self.clock.stopped(self.stops)
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
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    server_stops: Stops | None = None,
    own_stops: Stops | None = None,
) -> dict[str, Any]:
    """The report on *server*, reached in virtual time by the load generator's own loop,
    over real sockets.
    """
    clock = Clock()
    halts = [
        [(clock.now + begun, clock.now + to) for begun, to in stops or []]
        for stops in (server_stops, own_stops)
    ]
    loop = VirtualLoop(clock, halts[0])
    numbers, all_ = iter(range(10**6)), set[Connection]()
    listening = loop.run_until_complete(
        loop.create_server(
            lambda: Connection(server, numbers, all_, loop), "127.0.0.1", 0, backlog=1000
        )
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
    order = Order(
        plan,
        parse_target(f"127.0.0.1:{port}"),
        server.protocol,
        4 * TICK,
        share=Share(0, CONNECTIONS),
    )
    made = worker.Worker(order, control)  # type: ignore[arg-type]
    made.poller.close()
    made.poller = made.connector.poller = Poller(clock, loop, halts[1])  # type: ignore[assignment]
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
    return build_report(
        plan, observation, {"protocol": server.protocol, "tick_s": TICK}, UNKNOWN_SERVER
    )


@pytest.mark.parametrize("name", KIT)
def test_a_broken_server_fails_for_its_sin_and_a_right_one_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sin = KIT[name].reason
    report = judged(KIT[name], monkeypatch)
    assert report["verdict"] == ("fail" if sin else "pass"), report["reasons"]
    if sin:
        assert any(sin in reason for reason in report["reasons"]), report["reasons"]
        return
    assert report["reaps"]["excused_share"] <= 0.01
    actions = report["actions"]
    assert actions["asked"] == actions["answered"] + actions["cut"] + actions["underway"]


SHORT = [(0.4, 1.0), (1.1, 1.5), (1.42, 1.58), (2.0, 2.3)]
"""Seconds after the start from which to which a process stands still: in the silence,
at its end, and after it.
"""
BUSY = [(0.2 * number, 0.2 * number + 0.12) for number in range(100)]
"""A process of the lowest priority beside one that never rests: it gets two fifths of
the time, in pieces.
"""
LONG = [(0.2, 2.5), (1.2, 2.6), (1.4, 5.0)]


@pytest.mark.parametrize("side", ["server_stops", "own_stops"])
@pytest.mark.parametrize(
    ("stops", "verdict"),
    [
        *(([stop], "pass") for stop in SHORT),
        (BUSY, "pass"),
        *(([stop], "inconclusive") for stop in LONG),
    ],
)
def test_a_right_server_is_accused_of_nothing_on_a_machine_that_stalls(
    stops: Stops, verdict: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = judged(KIT["right"], monkeypatch, **{side: stops})
    assert report["verdict"] == verdict, report["reasons"]
    assert all(
        "too many to say anything" in reason or "undecided" in reason
        for reason in report["reasons"]
    )


def test_an_answer_not_waited_for_is_not_lost_where_the_server_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = judged(
        replace(KIT["right"], mix="silent=2,chatty=4,leave=9"),
        monkeypatch,
        server_stops=[(0.2, 1.4)],
    )
    assert report["actions"]["unanswered"] == 0 < report["actions"]["underway"]
    assert report["verdict"] != "fail", report["reasons"]


def test_the_kit_is_as_large_as_is_said() -> None:
    assert sum(bool(server.reason) for server in KIT.values()) >= 25
