"""The least server there can be: processes on one port that send back what they read, with no timeouts.

    python -m benchmarks.servers.bare PROCESSES

One rule: it costs as little as a server can, so that what is measured is the load generator.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress

ACCEPTS = 64
"""Connections accepted in a row."""


def echo_for_ever(listener: socket.socket) -> None:
    """One process: epoll, read, write."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    poller = select.epoll()
    poller.register(listener.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poller.poll(-1, 4096):
            if fd == listener.fileno():
                _accept(listener, poller)
                continue
            with suppress(OSError):
                if data := os.read(fd, 65536):
                    os.write(fd, data)
                    continue
            os.close(fd)


def _accept(listener: socket.socket, poller: select.epoll) -> None:
    for _ in range(ACCEPTS):
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        poller.register(sock.detach(), select.EPOLLIN)


def listen(port: int) -> socket.socket:
    """A listener that shares its port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    listener.setblocking(False)
    return listener


def main(processes: int) -> None:
    """Listen in all processes, say where, and serve until SIGTERM, which ends all of them."""
    listeners = [listen(0)]
    port = listeners[0].getsockname()[1]
    listeners += [listen(port) for _ in range(processes - 1)]
    children = []
    for listener in listeners:
        pid = os.fork()
        if pid == 0:
            for other in listeners:
                if other is not listener:
                    other.close()
            echo_for_ever(listener)
        children.append(pid)
    for listener in listeners:
        listener.close()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(int(sys.argv[1]))
