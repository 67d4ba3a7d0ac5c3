"""The load generator's own lag: told apart from the server's by the kernel's stamps,
and not made worse by judging.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from loadgen.drive import machine
from loadgen.drive import worker as module
from loadgen.drive.client import Client, Order
from loadgen.drive.machine import MachineWatch
from loadgen.drive.wire import GRAIN, waited
from loadgen.judge.records import How
from loadgen.judge.stalls import Stalls
from loadgen.judge.verdict import judge
from loadgen.judge.words import beyond
from loadgen.plan.capacity import Share
from loadgen.plan.plan import Law, make_plan
from loadgen.plan.scenario import from_mix
from loadgen.units import parse_target

TICK = 0.1
LAW = Law(timeout=10.0, tick=TICK)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's socket and the server's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        yield near, far


def test_the_kernel_says_for_how_long_the_end_of_a_stream_was_not_read() -> None:
    with connected() as (near, far):
        far.sendall(b"x")
        near.recv(1)
        time.sleep(4 * GRAIN)  # that this byte came is older than that the stream has ended
        before = time.monotonic()
        far.close()
        time.sleep(4 * GRAIN)
        assert near.recv(1) == b""
        assert 0 < waited(near.fileno()) <= time.monotonic() - before
    near, far = socket.socketpair()
    with near, far:
        assert waited(near.fileno()) == waited(10**6) == 0.0  # no TCP connection: no time is known


@contextmanager
def one_worker(
    mix: str = "silent", protocol: str = "echo", processes: int = 1, beat: float = 0.0
) -> Iterator[module.Worker]:
    """A process of the generator with one connection to make, which the test drives
    itself.
    """
    plan = make_plan(from_mix(mix), 1, LAW, 30.0, 1, 1, beat)
    ours, theirs = multiprocessing.Pipe()
    worker = module.Worker(
        Order(
            plan, parse_target("127.0.0.1:9"), protocol, 1.0, share=Share(0, 1), processes=processes
        ),
        theirs,
    )
    with ours, theirs, closing(worker.poller):
        yield worker


def held(worker: module.Worker, near: socket.socket, ago: float = 0.0, **more: object) -> Client:
    """A client of *worker* on a copy of *near*, established and last heard *ago*
    seconds ago.
    """
    since = time.monotonic() - ago
    client = Client(0, 0, worker.plan.key(0), worker.plan.behaviour(0), fd=os.dup(near.fileno()))
    client.established = client.sent = client.seen = since
    for name, value in more.items():
        setattr(client, name, value)
    worker.clients[client.fd] = client
    return client


def category(worker: module.Worker) -> str:
    """What the one record of *worker* amounts to."""
    (record,) = worker.records
    return judge(record, worker.plan.behaviour(0), LAW, Stalls(), Stalls()).category


def test_a_close_that_came_in_time_and_was_read_late_is_counted_as_our_own() -> None:
    with one_worker() as worker, connected() as (near, far):

        def close_seen(lateness: float) -> int:
            # One instant: what passes between two would be lateness, too.
            now = worker.looked = time.monotonic()
            client = held(worker, near, sent=now - LAW.timeout - lateness, final=True)
            worker.closed(client, How.FIN, now)
            return worker.counters.read_late

        far.close()
        assert close_seen(TICK + 5.0) == 0  # the server's: it has come just now
        time.sleep(0.5 + 2 * GRAIN)  # time enough to ask the kernel and then the clock
        assert close_seen(TICK + 0.05) == 1
        assert close_seen(TICK / 2) == 1
        assert len(worker.records) == 3


def test_a_close_looked_at_long_after_the_loop_woke_for_it_is_not_early() -> None:
    with one_worker() as worker, connected() as (near, far):
        before = time.monotonic()
        far.close()
        client = held(worker, near, sent=before - LAW.timeout - TICK - 0.01, final=True)
        woke = time.monotonic()
        time.sleep(0.25)  # other events come first
        worker.closed(client, How.FIN, woke)
        (record,) = worker.records
        assert before - 2 * GRAIN <= record.closed_by <= woke + 2 * GRAIN
        assert category(worker) == "reaped"


def category_of_a_close_read_when_due(
    early: bool, final: bool, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What a close amounts to that came *early* or in time, and is read, by a program
    that asks the kernel late, at the instant at which it was due.
    """

    def waited_later(fd: int) -> float:
        time.sleep(0.15)
        return waited(fd)

    monkeypatch.setattr(module, "waited", waited_later)
    with one_worker() as worker, connected() as (near, far):
        if early:
            far.close()
        worker.looked = time.monotonic()  # before it is due, however busy the machine
        client = held(worker, near, LAW.timeout - 0.1, final=final)
        time.sleep(0.12)  # this program stands still
        far.close()
        worker.closed(client, How.FIN, time.monotonic())
        return category(worker)


@pytest.mark.parametrize(("final", "verdict"), [(True, "early"), (False, "false")])
def test_an_early_close_that_is_read_when_one_is_due_is_still_early(
    final: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert category_of_a_close_read_when_due(True, final, monkeypatch) == verdict


def test_asking_the_kernel_late_makes_no_close_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert category_of_a_close_read_when_due(False, True, monkeypatch) == "reaped"


@pytest.mark.parametrize("protocol", ["echo", "raw"])
@pytest.mark.parametrize(("answered", "verdict"), [(False, "own_lag"), (True, "false")])
def test_steps_made_up_for_after_a_stall_accuse_no_server_that_closed_meanwhile(
    protocol: str, answered: bool, verdict: str
) -> None:
    with one_worker("chatty", protocol) as worker, connected() as (near, far):
        client = held(worker, near, LAW.timeout + TICK, number=1)
        now = time.monotonic()
        worker.act(client, now, now - TICK)  # the server may have closed it, or be about to
        if answered:
            worker.looked = time.monotonic()
            if protocol == "echo":
                far.sendall(far.recv(1))
                worker.on_event(client.fd, select.EPOLLIN, worker.looked)
        worker.act(client, time.monotonic(), now)
        worker.closed(client, How.RST, time.monotonic())
        assert category(worker) == verdict


def test_the_words_say_whose_the_late_closes_are() -> None:
    reaps = {"observed": 5_000, "late_raw": 40, "late_raw_own": 12}
    assert (
        beyond(reaps)
        == "40 beyond one tick before any allowance (0.80%), 12 of them read late by this program"
    )
    assert (
        beyond({"observed": 5, "late_raw": 0, "late_raw_own": 0})
        == "0 beyond one tick before any allowance"
    )


def test_memory_in_use_counts_what_the_kernel_holds_of_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {"MemTotal": 100, "MemFree": 60, "Buffers": 5, "Cached": 15, "MemAvailable": 80}
    monkeypatch.setattr(machine, "meminfo", lambda: free)
    watch = MachineWatch([])
    monkeypatch.setattr(
        watch, "_trees", lambda *_: machine.Trees()
    )  # other tests may have left a forkserver
    watch.sample("before")
    most = []
    for left in (40, 30, 50):  # what sockets took counts as available still
        free = free | {"MemFree": left}
        watch.glance()
        watch.sample("open")
        most.append(watch.result(0.0)["memory_bytes"]["most_used"])
    assert most == [20, 30, 30]
    assert watch.result(0.0)["process_bytes"] == {"server": None, "generator": None}


def test_handshakes_that_wait_make_no_step_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late, waiting = 1000.0, [], list(range(10, 510))

    class Sockets:
        def poll(self, timeout: float, _: int) -> list[tuple[int, int]]:
            nonlocal now
            now += 0.0 if waiting else timeout
            return [(fd, select.EPOLLIN) for fd in waiting]

    def shake(client: Client, _: float) -> None:
        nonlocal now
        now += 0.001
        waiting.remove(client.fd)

    monkeypatch.setattr(module, "monotonic", lambda: now)
    with one_worker() as worker, closing(socket.socket()) as sock:
        worker.connector.give_up()
        monkeypatch.setattr(worker.connector, "on_event", shake)
        monkeypatch.setattr(worker, "poller", Sockets())
        monkeypatch.setattr(worker, "note_lag", lambda _, lag: late.append(lag))
        for name in ("act", "beat", "leave_all"):
            monkeypatch.setattr(worker, name, lambda *_: None)
        worker.clients = {
            fd: Client(0, 0, 1, worker.plan.behaviour(0), fd=fd, sock=sock) for fd in waiting
        }
        for number in range(100):
            worker.push(1000.005 + number * 0.005, Client(0, 0, 1, worker.plan.behaviour(0), fd=5))
        worker.looked, worker.end = now, 1001.0
        worker.loop()
    assert not waiting
    assert 0 < max(late) <= 2 * module.CONNECTING_SLICE


def test_a_process_that_leaves_many_connections_gives_signs_of_life_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEFT_PER_BEAT", 3)
    beats: list[int] = []
    with one_worker() as worker, connected() as (near, _):
        for _ in range(10):
            held(worker, near)
        monkeypatch.setattr(worker, "beat", lambda: beats.append(len(worker.clients)))
        worker.stop_acting(float("-inf"))
        assert beats == [7, 4, 1]
        assert not worker.clients


def test_a_send_that_finds_the_kernel_full_is_tried_again_and_no_step_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full, real = [BlockingIOError()], os.write

    def write(fd: int, data: bytes) -> int:
        if full:
            raise full.pop()
        return real(fd, data)

    with one_worker("drip") as worker, connected() as (near, far):
        start = time.monotonic()
        client = held(worker, near, established=start)
        monkeypatch.setattr("loadgen.drive.worker.os.write", write)
        worker.plan_next(client, start)
        assert client.outbox == b"x"
        worker.act_on_due(worker.due[0][0])
        assert (far.recv(10), client.number) == (b"x", 1)
        assert not client.outbox
        assert [when for when, _, _ in worker.due] == [start + 9.0]
        os.close(client.fd)


def cut_and_lost(owed_for: float, *lags: float) -> tuple[int, int]:
    """Answers that count as cut, and as lost, of a connection that the server reset
    when one had been owed for so long; *lags*: instants at which this program was 0.4 s
    late.
    """
    with one_worker("chatty") as worker:
        behaviour = replace(worker.plan.behaviour(0), timeout=1.0)
        for instant in lags:
            worker.stalls.add(instant, 0.4)
        worker.account(
            Client(0, 0, 1, behaviour, asked=1, owed_since=1000.0 - owed_for), How.RST, 1000.0
        )
        worker.account_left()
        return worker.counters.cut, worker.counters.lost_answers


def test_an_answer_that_a_close_cut_is_lost_only_where_there_was_time_for_it() -> None:
    assert cut_and_lost(0.7) == (1, 0)
    assert cut_and_lost(0.95) == (0, 1)


def test_an_answer_is_not_lost_that_lags_in_a_row_kept_from_being_read() -> None:
    assert cut_and_lost(1.5, 1000.0) == (0, 1)
    assert cut_and_lost(1.5, 999.1, 999.6, 1000.0) == (1, 0)
