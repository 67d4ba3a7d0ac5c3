"""A peer that does nothing but read and write: the floor of this machine under many
connections.

    python -m benchmarks.peers.bare WORKERS

No timeout, no limit, no framework: each process has one epoll, and of a connection it
knows the descriptor. It has one timer besides, which is due twice a second and does
nothing: how late that comes is how late anything comes here. At SIGTERM each process
says so, in a line of JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from loadgen.plan.capacity import raise_descriptor_limit

EVENTS = 1024
"""The most that one epoll_wait returns."""
PERIOD = 0.5
"""Seconds from one instant at which the timer is due to the next."""
LATE = 1.0
"""Seconds: a timer that comes later is counted; one tick of the parked echo."""


def serve(listening: socket.socket) -> None:
    """Echo until SIGTERM, then say how late the timer came."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # see `main`
    epoll, first = select.epoll(), listening.fileno()
    epoll.register(first, select.EPOLLIN)
    due, timers, late, latest = time.monotonic() + PERIOD, 0, 0, 0.0
    while not told:
        ready = epoll.poll(max(due - time.monotonic(), 0.0), EVENTS)
        lateness = time.monotonic() - due
        while lateness >= 0.0:  # what was due meanwhile came now, too
            timers, late, latest = timers + 1, late + (lateness > LATE), max(latest, lateness)
            due, lateness = due + PERIOD, lateness - PERIOD
        for descriptor, _ in ready:
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
    said = json.dumps({"timers": timers, "late": late, "latest_s": latest})
    os.write(sys.stdout.fileno(), f"{said}\n".encode())  # in one piece: others write there, too


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
    # It waits until each process has its handler: a client may be answered, and stop
    # us, before.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    listening = [listen(0)]
    port = listening[0].getsockname()[1]
    listening += [listen(port) for _ in range(workers - 1)]
    children = []
    for one in listening:
        child = os.fork()
        if not child:
            for other in listening:
                if other is not one:
                    other.close()
            serve(one)
            os._exit(0)
        children.append(child)
    for one in listening:
        one.close()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    signal.sigwait([signal.SIGTERM])
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
