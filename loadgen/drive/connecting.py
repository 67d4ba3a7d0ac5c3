"""Opens the connections of one process: at the plan's pace, from the addresses of its
share.

One rule: connecting gives way. While many connections wait for the kernel or for their
first answer no further one is begun. Otherwise the server's backlog would be measured,
and would overflow into the kernel's retransmission timer.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Any

from .client import Client, Order
from .protocols import Dialect
from .wire import Opening, prepare

IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h; the socket module of Python 3.11 lacks it
UNANSWERED = 512
"""How many connections of all processes may wait for the kernel or for their first
answer.
"""
LEAST_UNANSWERED = 8
RETRIES = 5
RETRY_DELAY = 0.2


class Connector:
    """Begins the connections of a share, and brings each to the instant at which it
    stands.

    Then it calls *established*, with the connection's own address (empty where no
    journal is kept), the instant, and what the server has already sent. Where a
    connection is refused it calls *refused*, with the reason and the instant of the
    next try; None means that it has failed.
    """

    def __init__(
        self,
        order: Order,
        dialect: Dialect,
        poller: select.epoll,
        clients: dict[int, Client],
        established: Callable[[Client, tuple[Any, ...], float, bytes], None],
        refused: Callable[[Client, str, float | None], None],
    ) -> None:
        self.plan = order.plan
        self.tls = order.tls
        self.dialect = dialect
        self.target = order.target
        self.sources = order.share.sources
        self.processes = order.processes
        self.poller = poller
        self.clients = clients  # by descriptor; shared with the owner
        self.established, self.refused = established, refused
        self.indices = range(order.share.number, order.plan.connections, order.processes)
        self.begun = 0  # of the indices
        self.connecting = (
            0  # begun and neither established nor failed, those that wait for a retry included
        )
        self.unanswered = 0
        self.most_unanswered = max(UNANSWERED // order.processes, LEAST_UNANSWERED)
        self.started = 0.0
        self.closing = False
        self.tells_addresses = order.journal is not None

    @property
    def ramped(self) -> bool:
        """Whether every connection of the plan is established or has failed."""
        return self.begun == len(self.indices) and not self.connecting

    def next_instant(self) -> float:
        """The instant at which the next connection is begun.

        It is infinite when there is none, or when connecting gives way.
        """
        if self.begun == len(self.indices) or self.unanswered >= self.most_unanswered:
            return float("inf")
        return self.started + self.plan.connect_offset(self.indices[self.begun])

    def open_more(self, now: float, until: float) -> None:
        """Begin the connections that are due at *now*; none is begun after *until*."""
        while self.next_instant() <= now and monotonic() < until:
            index = self.indices[self.begun]
            self.begun += 1
            self.begin(Client(index, 0, self.plan.key(index), self.plan.behaviour(index)))

    def give_up(self) -> None:
        """Begin no further connection, and try none again."""
        self.begun = len(self.indices)
        self.closing = True

    def begin(self, client: Client) -> None:
        """Call connect(); an event says that it has succeeded, if it has not when it
        returns.
        """
        target = (self.target.host, self.target.port)
        self.connecting += 1
        client.began = monotonic()
        client.waiting = True
        self.unanswered += 1
        try:
            sock = client.sock = socket.socket(
                self.target.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            )
            client.fd = sock.fileno()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.sources:
                # The port is chosen by connect(), which knows the destination; one
                # source address has ports enough only as long as the kernel finds a
                # free one at once.
                sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((self.sources[client.index // self.processes % len(self.sources)], 0))
            code = sock.connect_ex(target)
            if code == errno.EINPROGRESS:
                code = sock.connect_ex(target)  # a handshake on the loopback is over by now
            if code not in (0, errno.EISCONN, errno.EINPROGRESS, errno.EALREADY):
                raise OSError(code, "")
        except OSError as error:
            self._failed(client, error)
            return
        connected = code in (0, errno.EISCONN)
        self.poller.register(client.fd, select.EPOLLIN if connected else select.EPOLLOUT)
        self.clients[client.fd] = client
        if connected:
            self._begin_protocol(client, sock)

    def on_event(self, client: Client, now: float) -> None:
        """Go on with a connection that the kernel has decided about, or whose opening
        can go on.
        """
        if client.opening is not None:
            self._go_on(client, client.opening)
        elif client.sock is None:
            return
        elif code := client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._failed(client, OSError(code, ""))
        else:
            self.poller.modify(client.fd, select.EPOLLIN)
            self._begin_protocol(client, client.sock)

    def _begin_protocol(self, client: Client, sock: socket.socket) -> None:
        """Begin TLS and the opening of the dialect, if there are any."""
        if client.behaviour.before_tls or (self.tls is None and not self.dialect.opening):
            self._established(client, sock, b"")
            return
        client.opening = prepare(sock, client.began, self.tls, self.dialect)
        self._go_on(client, client.opening)

    def _go_on(self, client: Client, opening: Opening) -> None:
        try:
            self.poller.modify(client.fd, next(opening))
        except StopIteration as done:
            client.opening = None
            sock, heard, client.began = done.value
            self.poller.modify(client.fd, select.EPOLLIN)
            self._established(client, sock, heard)
        except OSError as error:
            client.opening = None
            self._failed(client, error)

    def answered_first(self, client: Client) -> None:
        """Note that the connection no longer holds up the pace of connecting."""
        if client.waiting:
            client.waiting = False
            self.unanswered -= 1

    def retry(self, client: Client) -> None:
        """Begin a connection again that was refused."""
        self.connecting -= 1  # it was counted while it waited
        self.begin(client)

    def drop(self, client: Client) -> None:
        """Forget a connection that was begun and is not yet established."""
        self.connecting -= 1
        self.answered_first(client)
        if client.opening is not None:
            client.opening.close()
            client.opening = None
        if client.sock is not None:
            client.sock.close()
            client.sock = None
        self.clients.pop(client.fd, None)
        client.fd = -1

    def _established(self, client: Client, sock: socket.socket, heard: bytes) -> None:
        client.sock = None
        now = monotonic()
        address = sock.getsockname() if self.tells_addresses else ()
        if isinstance(sock, ssl.SSLSocket):
            client.tls = sock
        else:
            sock.detach()
        self.connecting -= 1
        self.established(client, address, now, heard)

    def _failed(self, client: Client, error: OSError) -> None:
        self.drop(client)
        client.tries += 1
        again = client.tries <= RETRIES and not self.closing
        self.connecting += again  # still on its way: the ramp is not over
        self.refused(
            client, why(error), monotonic() + RETRY_DELAY * client.tries if again else None
        )


def why(error: OSError) -> str:
    """The kernel's or TLS's name of *error*, or else its text."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS"
    return errno.errorcode.get(error.errno or 0) or str(error)
