"""A peer that does nothing but read and write: the floor of this machine under many connections.

    python -m benchmarks.peers.bare WORKERS

No timeout, no limit, no framework: each process has one epoll, and of a connection it knows the
descriptor.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from contextlib import suppress

from loadgen.plan.capacity import raise_descriptor_limit

EVENTS = 1024
"""The most that one epoll_wait returns."""


def serve(listening: socket.socket) -> None:
    """Echo until SIGTERM."""
    epoll, first = select.epoll(), listening.fileno()
    epoll.register(first, select.EPOLLIN)
    while True:
        for descriptor, _ in epoll.poll(-1, EVENTS):
            if descriptor == first:
                with suppress(BlockingIOError):
                    client = listening.accept()[0].detach()
                    os.set_blocking(client, False)
                    epoll.register(client, select.EPOLLIN)
                continue
            try:
                data = os.read(descriptor, 65536)
                if data:
                    os.write(descriptor, data)
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass  # a reset
            os.close(descriptor)


def listen(port: int) -> socket.socket:
    """A socket of its own for each process; the kernel spreads the clients."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    made.listen(4096)
    made.setblocking(False)
    return made


def main(workers: int) -> None:
    """Serve in so many processes; the first is this one's child as the others are."""
    raise_descriptor_limit()
    listening = [listen(0)]
    port = listening[0].getsockname()[1]
    listening += [listen(port) for _ in range(workers - 1)]
    children = []
    for one in listening:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for other in listening:
                if other is not one:
                    other.close()
            serve(one)
        children.append(child)
    for one in listening:
        one.close()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.sigwait([signal.SIGTERM])
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
