"""One process of the load generator: an epoll loop, and one heap of next actions.

A connection takes a few hundred bytes.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Any

from ..judge.observation import Outcome
from ..judge.records import How
from ..plan.behaviours import CLOSEST, Act
from ..plan.capacity import raise_descriptor_limit
from .client import HEARTBEAT, Client, Order, Pace, rss_bytes
from .connecting import Connector
from .journal import ClientJournal, to_ns
from .protocols import READ_BYTES, Dialect, dialect_for
from .wire import waited

ANSWER_TIME = 1.0
"""Seconds after which an answer counts as lost; half a timeout where that is less."""
BLOCKED_DELAY = 0.01
"""Seconds until a send that found the kernel's buffer full is tried again."""
CONNECTING_SLICE = 0.01
"""Seconds of a turn after which no further connection is begun, and no handshake goes
on.

What is ready is so in the next turn too. Five hundred handshakes of TLS in one turn
were seen to make every other client 2 s late.
"""
MOST_EVENTS = 4096
LEFT_PER_BEAT = 500
"""Connections left at the end of a run between two heartbeats."""


class Worker:
    """The loop of one process. `run` is the whole life of that."""

    def __init__(self, order: Order, control: Connection) -> None:
        self.order = order
        self.plan = order.plan
        self.law = order.plan.law
        self.control = control
        self.dialect: Dialect = dialect_for(
            order.protocol, order.target, order.paths, order.statuses
        )
        self.poller = select.epoll()
        self.clients: dict[int, Client] = {}
        self.due: list[tuple[float, int, Client]] = []
        self.sequence = 0
        self.pace = Pace(order.processes, order.plan.beat)
        self.connector = Connector(
            order, self.dialect, self.poller, self.clients, self.on_established, self.on_refused
        )
        self.outcome = seen = Outcome()
        self.counters, self.records, self.failures = seen.counters, seen.records, seen.failures
        self.stalls, self.server_stalls = seen.stalls, seen.server_stalls
        self.lag, self.latency = seen.lag, seen.latency
        # answers, seconds beyond patience, and the instants between which they were
        # waited for
        self.owing: list[tuple[int, float, float, float]] = []
        self.end = float("inf")
        self.connect_until = 0.0  # of this turn
        self.looked = 0.0  # the previous return of poll: what it did not show had not arrived yet
        self.draining = False
        self.news = False  # something the parent should know at once
        self.journal = (
            ClientJournal(order.journal, order.target, self.law)
            if order.journal is not None
            else None
        )

    # -- life

    def run(self) -> None:
        """Wait for the start, run the plan, send the outcome."""
        self.outcome.rss_before = rss_bytes()
        self.control.send("ready")
        self.connector.started = self.control.recv()
        self.poller.register(self.control.fileno(), select.EPOLLIN)
        self.looked = monotonic()
        self.loop()
        self.account_left()
        self.note_dialect()
        if self.journal is not None:
            self.counters.journal_dropped = self.journal.finish(monotonic())
        self.outcome.user_seconds, system, *_ = os.times()
        self.outcome.cpu_seconds = self.outcome.user_seconds + system
        self.control.send(self.outcome)

    def loop(self) -> None:
        """Poll, read, act, until the run's end has been dealt with."""
        heartbeat = monotonic() + HEARTBEAT
        on_event = self.on_event
        while True:
            now = monotonic()
            step = self.due[0][0] if self.due else self.end
            # A connection may be overdue: that is no lag.
            wake = max(min(step, self.connector.next_instant(), heartbeat, self.end), now)
            if (look := self.pace.look(self.looked, step)) > now:
                sleep(look - now)
                now = monotonic()
                wake = max(wake, look)
            events = self.poller.poll(max(wake - now, 0.0), MOST_EVENTS)
            now = monotonic()
            self.connect_until = now + CONNECTING_SLICE
            if not events:
                self.note_lag(now, now - wake)
            for fd, mask in events:
                on_event(fd, mask, now)
            self.act_on_due(now)
            self.connector.open_more(now, self.connect_until)
            self.looked = now
            if now >= heartbeat or self.news:
                heartbeat = now + self.pace.heartbeat
                self.beat()
            if now >= self.end and not self.draining:
                self.stop_acting(now)
            if self.draining and (now >= self.end or not self.clients):
                break
            if (
                self.counters.ramped
                and not self.clients
                and all(client.established for _, _, client in self.due)
            ):
                # Every client is gone and none comes back: nothing more can happen.
                self.stop_acting(now)
                break
        self.leave_all(self.clients.values())

    def note_lag(self, now: float, lag: float) -> None:
        """Note that something is done at *now* which was due *lag* seconds ago."""
        self.lag.add(lag)
        self.stalls.add(now, lag)

    def beat(self) -> None:
        """Report to the parent how far this process is."""
        self.news = False
        self.note_dialect()
        if not self.counters.ramped and self.connector.ramped:
            self.counters.ramped = True
            self.outcome.rss_open = rss_bytes()
        self.control.send(self.counters)

    def note_dialect(self) -> None:
        """Take over what the dialect has counted, for the parent."""
        self.counters.foreign = self.dialect.foreign
        self.counters.heard = self.dialect.heard
        self.counters.wrong = dict(self.dialect.wrong)

    def on_control(self) -> None:
        """Hear from the parent when the run ends; -inf: now. A parent that is gone ends
        it too.
        """
        try:
            self.end = self.control.recv()
        except (EOFError, OSError):
            self.end = float("-inf")
        self.draining = False

    def stop_acting(self, now: float) -> None:
        """Act no more, at the end of the run; only what is overdue is watched on, for a
        while.
        """
        at_once = self.end < 0
        self.draining = True
        refused = [client for _, _, client in self.due if client.tries and not client.established]
        self.due.clear()
        self.connector.give_up()
        for client in refused:
            self.fail(client)
        self.leave_all(
            client for client in self.clients.values() if at_once or not self.awaited(client, now)
        )
        self.end = now if at_once else now + self.law.tick + self.order.patience

    def awaited(self, client: Client, now: float) -> bool:
        """Whether the server should have closed it by *now*, or still owes it an
        answer.
        """
        if client.answered < client.asked and client.behaviour.judged:
            return True
        silent = client.sock is None and client.final and client.behaviour.judged
        return silent and now >= client.sent + client.behaviour.timeout

    def leave_all(self, clients: Iterable[Client]) -> None:
        """Leave *clients*, with a sign of life now and then.

        Ten thousand closes may take half a minute.
        """
        for number, client in enumerate(list(clients), 1):
            self.leave(client)
            if number % LEFT_PER_BEAT == 0:
                self.beat()

    def leave(self, client: Client) -> None:
        """Stop watching a connection that is still open (or was never established)."""
        if client.sock is not None:
            self.connector.drop(client)
            return
        last_look = monotonic()  # not *now*: something may have been sent since
        self.record(client, How.OPEN, last_look, last_look)
        self.forget(client)

    # -- connecting

    def on_established(
        self, client: Client, address: tuple[Any, ...], now: float, heard: bytes
    ) -> None:
        """Begin the plan of a connection that stands. The server has sent *heard*
        already.
        """
        if self.journal is not None:
            client.log = self.journal.opened(client.behaviour, now, address)
        if client.incarnation:
            self.counters.reconnected += 1
        else:
            self.counters.established += 1
        self.counters.open += 1
        client.established = now
        # Until something is sent, the server's clock starts somewhere between the call
        # to connect and now.
        client.sent, client.seen = client.began, now
        if self.dialect.stateful:
            client.parser = self.dialect.parser()
        self.plan_next(client, now)
        if heard:
            self.hear(client, heard, now)

    def on_refused(self, client: Client, why: str, again: float | None) -> None:
        """Let a connection that was refused wait for *again*; None: it has failed."""
        self.counters.refused += 1
        client.refusal = why
        if not self.counters.refusal:
            self.counters.refusal, self.news = why, True
        if again is None:
            self.fail(client)
        else:
            self.push(again, client)

    def fail(self, client: Client) -> None:
        """Record a connection that will not be established."""
        self.failures[client.refusal] += 1
        self.counters.failed += 1
        now = monotonic()
        self.record(client, How.FAILED, now, now)

    # -- acting

    def push(self, when: float, client: Client) -> None:
        self.sequence += 1
        heappush(self.due, (when, self.sequence, client))

    def plan_next(self, client: Client, now: float) -> None:
        """Put the client's next step on the heap, or note that it is silent for
        good.
        """
        when = client.next_step()
        if when is None:
            self.connector.answered_first(client)  # a mute client never asks
        elif client.number == 0 and when <= now:
            self.act(client, now, when)
        else:  # overdue ones too: the heap is worked off in the same turn, without recursion
            self.push(self.pace.step(when) if client.number else when, client)

    def act_on_due(self, now: float) -> None:
        """Do what is due at *now*."""
        due = self.due
        while due and due[0][0] <= now:
            when, _, client = heappop(due)
            if client.fd < 0:
                if client.established:
                    continue  # it has ended since this was planned
                if client.tries:
                    self.connector.retry(client)
                else:
                    self.connector.begin(client)  # a reconnection
                continue
            if client.outbox is not None:
                if self.send(client, client.outbox):
                    self.go_on(client, now)
            elif client.sock is None:
                self.note_lag(now, now - when)
                self.act(client, now, when)

    def act(self, client: Client, now: float, when: float) -> None:
        """Do the client's step, which was due at *when*, and plan the one after it."""
        self.counters.actions += 1
        client.number += 1
        act = client.act
        if act is Act.RESET:
            with borrowed(client.fd) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if act is Act.CLOSE or act is Act.RESET:
            self.record(client, How.SELF, now, monotonic())
            self.forget(client)
            return
        if act is Act.READ:
            if self.read_little(client):
                self.plan_next(client, now)
            return
        payload, owed = (b"", 0) if act is Act.SHUT else self.dialect.payload(act)
        if owed:
            if client.parser is None:
                client.parser = self.dialect.parser()
            if client.answered >= client.asked:
                client.owed_since = now
            client.asked += owed
            self.counters.asked += owed
        else:
            self.connector.answered_first(client)
        client.intended = when
        if not payload or self.send(client, payload):
            self.go_on(client, now)

    def go_on(self, client: Client, now: float) -> None:
        """After a step: plan the next one, unless the kernel has yet to take all of
        this one.
        """
        if client.outbox is not None:
            return
        if client.act in (Act.HALF_CLOSE, Act.SHUT):
            with borrowed(client.fd) as sock:
                sock.shutdown(socket.SHUT_WR)
        elif client.act in (Act.ASK_MUCH, Act.ASK_MUCH_OFTEN):
            self.poller.modify(
                client.fd, 0
            )  # only hang-ups: what comes is read piece by piece, or never
        behaviour = client.behaviour
        client.final = client.final or (behaviour.deadline and client.number > behaviour.counted)
        self.plan_next(client, now)

    def read_little(self, client: Client) -> bool:
        """Do a slow reader's step; False when the connection turned out to be
        closed.
        """
        try:
            data = client.read(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.closed(client, How.FIN, monotonic())
        return bool(data)

    def send(self, client: Client, payload: bytes) -> bool:
        """Hand *payload* to the kernel; False when the connection turned out to be
        closed.
        """
        before = monotonic()
        try:
            written = client.write(payload)
        except BlockingIOError:
            written = 0
        except OSError:
            by = monotonic()
            client.overslept = client.too_late(by, self.looked)
            if client.answered < client.asked and client.outbox is None:  # none of it went out
                refused = min(self.dialect.payload(client.act)[1], client.asked - client.answered)
                client.asked -= refused
                self.counters.refused_acts += refused
            self.closed(client, How.RST, by)
            return False
        if written:
            after = monotonic()
            client.overslept = client.number > 1 and client.too_late(after, self.looked)
            if client.log is not None:
                client.log.touch(to_ns(before), written)
            if not client.final:  # a deadline is not moved by what is sent after it was set
                client.sent = before
                if client.answered >= client.asked:
                    client.seen = after
        client.outbox = payload[written:] or None
        if client.outbox is not None:
            self.counters.blocked += 1
            self.push(before + BLOCKED_DELAY, client)
        return True

    # -- hearing

    def on_event(self, fd: int, mask: int, now: float) -> None:
        client = self.clients.get(fd)
        if client is None:
            if fd == self.control.fileno():
                self.on_control()
            return
        if client.sock is not None:
            if monotonic() < self.connect_until:
                self.connector.on_event(client, now)
            return
        try:
            data = client.read(65536)
        except BlockingIOError:
            return
        except OSError:
            self.closed(client, How.RST, monotonic())
            return
        if not data:
            # The event said so at `now`; the read only confirmed it.
            self.closed(client, How.FIN, now)
            return
        self.hear(client, data, now)

    def hear(self, client: Client, data: bytes, now: float) -> None:
        """Take in *data*, which has come at *now*."""
        done, reply = self.dialect.count(client.parser, data)
        if reply and client.behaviour.pongs and not self.pong(client, reply):
            return
        if self.dialect.foreign and not self.counters.foreign:
            self.news = True
        owed = client.asked - client.answered
        if self.dialect.answers:
            self.counters.surplus += max(done - owed, 0)
        if not owed or not done:
            return
        done = min(done, owed)
        client.answered += done
        self.counters.answered += done
        self.server_stalls.add(now, now - client.owed_since)
        client.owed_since = now
        if client.answered >= client.asked:
            self.connector.answered_first(client)
            if not self.dialect.stateful:
                client.parser = None
            if not client.final or not client.behaviour.deadline:
                client.seen = now
            self.latency.add(now - client.intended)
            if self.draining and not self.awaited(client, now):
                self.leave(client)

    def pong(self, client: Client, reply: bytes) -> bool:
        """Answer what the protocol wants answered; False when the connection turned out
        to be closed.
        """
        before = monotonic()
        try:
            if client.outbox is None:
                client.write(reply)
        except BlockingIOError:
            return True  # the server does not read: it misses no pong
        except OSError:
            self.closed(client, How.RST, monotonic())
            return False
        if not client.final:
            client.sent = before
        return True

    def closed(self, client: Client, how: How, by: float) -> None:
        """Keep the record of a connection that the server has closed, for the
        verdict.
        """
        due = client.sent + client.behaviour.timeout
        late = client.final and by > due + self.law.tick
        if late or self.looked < due <= by:
            # The kernel says when the end came: that this program looked late is no
            # lateness of the server's, and hides no early close. The kernel is asked
            # before our own clock: what passes in between must not make the close
            # earlier.
            ago = waited(client.fd)
            came = min(monotonic() - ago, by)
            self.counters.read_late += late and came <= due + self.law.tick
            by = max(came, min(self.looked, by))
        self.record(client, how, self.looked, by)
        self.counters.closed += 1
        self.forget(client)

    def record(self, client: Client, how: How, after: float, by: float) -> None:
        self.records.append(client.record(how, after, by))
        if client.answered < client.asked:
            self.account(client, how, by)
        if client.log is not None:
            end = client.log.close_peer if how in (How.FIN, How.RST) else client.log.close_app
            end(to_ns(by), how.name)

    def account(self, client: Client, how: How, by: float) -> None:
        """Count what became of the answers that are owed at the end of a connection."""
        owed = client.asked - client.answered
        closed = how in (How.FIN, How.RST)
        if closed:
            # No answer came in all that time: the server may have stood still.
            self.server_stalls.add(by, by - client.owed_since)
        # A close with a request unread is the keep-alive race, however long the server
        # stood still in it; who throws requests away closes a whole timeout later.
        share = CLOSEST if closed else 0.5
        window = client.owed_since, by
        # one long lag, or several in a row
        own = max(self.stalls.between(*window), self.stalls.total(*window))
        patience = min(ANSWER_TIME, share * client.behaviour.timeout) + own
        waited_for = by - client.owed_since
        if waited_for > patience and not client.overslept:
            self.owing.append((owed, 0.0 if closed else waited_for - patience, *window))
        elif closed:
            self.counters.cut += owed
        else:
            self.counters.underway += owed

    def account_left(self) -> None:
        """Count the answers that were owed to those that left.

        Only what came later shows whether the server stood still for all just then.
        """
        for owed, beyond, *window in self.owing:
            if beyond and beyond <= self.server_stalls.total(*window):
                self.counters.underway += owed
            else:
                self.counters.lost_answers += owed
                self.counters.unanswered += 1

    def forget(self, client: Client) -> None:
        del self.clients[client.fd]
        client.close()  # epoll forgets a descriptor when its last duplicate is closed
        client.parser = None
        self.connector.answered_first(client)
        self.counters.open -= 1
        delay = client.behaviour.reconnect
        if delay is not None and not self.draining:
            again = client.incarnation + 1
            key = self.plan.key(client.index, again)
            self.push(monotonic() + delay, Client(client.index, again, key, client.behaviour))


def borrowed(fd: int) -> socket.socket:
    """Make a socket on a copy of *fd*, for a call that needs one. The caller closes
    it.
    """
    return socket.socket(fileno=os.dup(fd))


def main(order: Order, control: Connection) -> None:
    """Run a child process.

    It ignores signals to the whole group: they are the parent's, which decides when all
    stop.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Nothing here makes cycles. A collection would be our own lag, and would write into
    # pages that all processes share.
    gc.disable()
    raise_descriptor_limit()
    # Where the parent is gone, nothing is left to do.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        Worker(order, control).run()
