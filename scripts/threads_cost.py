"""What guarding costs a server of threads: a touch under a lock, a look of the guard, and requests answered.

One rule: *compared in one run, in turns*. What else the machine does hits the guarded server and the plain one alike.

python -m scripts.threads_cost
"""

from __future__ import annotations

import argparse
import socket
import socketserver
import sys
import threading
import time
from contextlib import ExitStack
from statistics import median

from reaper import IdleReaper
from reaper.attach import Guard

CLIENTS = 8
LOOKED_AT = 500
TOUCHES = 200_000


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(100):
            self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    guard: Guard | None = None

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if self.guard is not None and isinstance(request, socket.socket):
            self.guard.add(request)
        super().process_request(request, client_address)


def look() -> float:
    """Seconds of processor time per look at an open connection that is not due."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=LOOKED_AT))
        guard = Guard(idle=1000.0, tick=1.0)
        for _ in range(LOOKED_AT):
            stack.enter_context(socket.create_connection(listener.getsockname()))
            server = stack.enter_context(listener.accept()[0])
            guard.add(server)
        # Processor time: by the clock, what other programs did meanwhile doubled it.
        looked, start = 0, time.process_time()
        while found := guard.advance(time.monotonic() + 2000.0):  # the clock of the looks themselves is the real one
            looked += found
            if looked >= LOOKED_AT:
                break
        return (time.process_time() - start) / looked


def touch(lock: threading.Lock | None) -> float:
    """Seconds per touch of a lease."""
    lease = IdleReaper(tick=1.0).register("client", timeout=30.0, now=0.0)
    start = time.process_time()
    if lock is None:
        for _ in range(TOUCHES):
            lease.touch()
    else:
        for _ in range(TOUCHES):
            with lock:
                lease.touch()
    return (time.process_time() - start) / TOUCHES


def requests_per_second(guard: Guard | None, seconds: float) -> float:
    """Of CLIENTS clients that ask again as soon as they are answered."""
    count = [0] * CLIENTS
    with Server(("127.0.0.1", 0), Echo) as server:
        server.guard = guard
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        end = time.monotonic() + seconds

        def ask(index: int) -> None:
            with socket.create_connection(server.socket.getsockname()) as client:
                while time.monotonic() < end:
                    client.sendall(b"x")
                    client.recv(1)
                    count[index] += 1

        clients = [threading.Thread(target=ask, args=(index,)) for index in range(CLIENTS)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        server.shutdown()
    return sum(count) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="threads_cost", description="What guarding costs a server of threads.")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of one second each; default 7")
    rounds: int = parser.parse_args().rounds
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"CPython {sys.version.split()[0]}, {'with the GIL' if gil else 'free threading'}")
    looks = [look() * 1e6 for _ in range(9)]
    spread = f"{min(looks):.1f} to {max(looks):.1f} in {len(looks)} trials"
    print(f"a look: {median(looks):.1f} us of processor time ({spread})")
    plain, locked = (median(touch(lock) for _ in range(5)) for lock in (None, threading.Lock()))
    print(f"a touch: {plain * 1e6:.3f} us, with a lock that no other thread wants {locked * 1e6:.3f} us")
    ratios = []
    for number in range(rounds):
        with Guard(idle=1.0, tick=0.25) as guard:
            pair = {}
            for guarded in (number % 2 == 0, number % 2 == 1):
                pair[guarded] = requests_per_second(guard if guarded else None, 1.0)
        ratios.append(pair[True] / pair[False])
    if ratios:
        shown = " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
        print(f"requests answered, guarded / plain: median {median(ratios):.3f} ({shown})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
