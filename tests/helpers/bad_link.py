"""A link between two network namespaces that is slow and loses packets: two TUN
devices, and this program, which carries packets from one to the other.

    python -m tests.helpers.bad_link SERVER_PID CLIENT_PID DELAY LOSS

The kernel's own netem is not everywhere. Needs root. DELAY is in seconds, for each
direction; LOSS a share, of each direction. A line on standard input, `DELAY LOSS`,
changes both from then on.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from subprocess import PIPE, Popen

import pytest

from .namespaces import Link, run

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
ADDRESS, PEER = "10.78.0.1", "10.78.0.2"
"""Of the server's end of the link, and of the client's."""

CLONE_NEWNET = 0x40000000


def tun_of(pid: int) -> int:
    """A descriptor of a new TUN device named `bad` in the network namespace of process
    *pid*.
    """
    with open(f"/proc/{pid}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"bad", IFF_TUN | IFF_NO_PI))
    return device


def carry(devices: tuple[int, int], delay: float, loss: float) -> None:
    """Carry packets until standard input ends."""
    other = {devices[0]: devices[1], devices[1]: devices[0]}
    on_their_way: list[tuple[float, int, int, bytes]] = []
    order, chance = count(), random.Random(7)
    while True:
        wait = max(on_their_way[0][0] - time.monotonic(), 0.0) if on_their_way else None
        readable, _, _ = select.select([*devices, sys.stdin.fileno()], [], [], wait)
        for ready in readable:
            if ready not in other:
                line = sys.stdin.readline()
                if not line:
                    return
                delay, loss = map(float, line.split())
                continue
            packet = os.read(ready, 65536)
            if chance.random() >= loss:
                entry = time.monotonic() + delay, next(order), other[ready], packet
                heapq.heappush(on_their_way, entry)
        while on_their_way and on_their_way[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(on_their_way)
            with suppress(OSError):  # the other end is not up yet
                os.write(device, packet)


@contextmanager
def between(link: Link, delay: float, loss: float = 0.0) -> Iterator[Popen[str]]:
    """A bad link between the namespaces of *link* for the length of the block."""
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        pytest.skip("a bad link needs root, and /dev/net/tun")
    words = [sys.executable, "-m", "tests.helpers.bad_link"]
    words += [link.server[-1], link.client[-1], str(delay), str(loss)]
    with Popen(words, stdin=PIPE, stdout=PIPE, text=True) as carrier:
        try:
            assert carrier.stdout is not None
            if carrier.stdout.readline() != "ready\n":
                pytest.skip("a bad link needs root, and TUN devices")
            for prefix, address in ((link.server, ADDRESS), (link.client, PEER)):
                run(*prefix, *f"ip address add {address}/24 dev bad".split())
                run(*prefix, *["ip", "link", "set", "bad", "up"])
            yield carrier
        finally:
            carrier.kill()


if __name__ == "__main__":
    server, client = (tun_of(int(pid)) for pid in sys.argv[1:3])
    print("ready", flush=True)
    carry((server, client), *map(float, sys.argv[3:5]))
