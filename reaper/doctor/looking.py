"""Makes the looks: what the kernel says of the server's connections, and /proc of its processes.

The rule of this module: *looking touches nothing*. To see an option of a socket, its descriptor is
duplicated, read and let go. Whatever may not be seen is None or left out.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil

from ..attach.closing import take
from ..attach.kernel import Found, Linux, Listener
from ..attach.netlink import Address, addresses_of
from ..attach.targets import Target
from ..attach.tcpinfo import CLOSE_WAIT
from .facts import Connection, Door, Look, Process

ANY_PORT = -1
EVERYTHING = (
    Listener(Address("0.0.0.0", ANY_PORT), socket.AF_INET),
    Listener(Address("::", ANY_PORT), socket.AF_INET6),
)
"""Stands for all connections of the network namespace in a dump."""
ASKED = 200
"""The most connections whose options are read in one look, the quietest first."""


def look(target: Target, kernel: Linux, clock: Callable[[], float] = time.monotonic) -> Look:
    """One look at *target*.

    Raises:
        Refusal: the target is gone for good.
    Cost: about 10 us per connection of the network namespace, 3 us per descriptor of the server.
    """
    listeners = target.listeners()
    target.scan()
    doors = tuple(Door(str(one.address), one.waiting, one.room) for one in listeners)
    ports = {one.address.port for one in listeners}
    found: dict[bytes, tuple[Found, Connection]] = {}
    for one in kernel.dump(EVERYTHING, True):
        held = target.find(one.inode) if one.inode else None
        if held is None:
            port = int.from_bytes(one.ident[:2], "big")  # cheaper than `addresses_of`
            if target.restricted or port not in ports:
                continue
        if (connection := _connection(one, held[0] if held else 0, ports)) is not None:
            found[one.ident] = one, connection
    quietest = sorted(found.values(), key=lambda one: -one[1].quiet)[:ASKED]
    for one, connection in quietest:
        kept = connection._replace(keeps_alive=_keeps_alive(target.find(one.inode)))
        found[one.ident] = one, kept
    return Look(
        clock(),
        tuple(_process(pid) for pid in target.pids() if psutil.pid_exists(pid)),
        {ident: connection for ident, (_, connection) in found.items()},
        doors,
        kernel.half_open(listeners),
        _overflows(target.pids()),
    )


def _connection(found: Found, pid: int, ports: set[int]) -> Connection | None:
    seen = found.snapshot
    if seen is None:
        return None
    local, remote = addresses_of(found.ident)
    incoming = None if seen.outgoing is None else not seen.outgoing
    if local.port not in ports:
        incoming = False
    # A question that came within one jiffy of the answer before looks answered.
    asked_last = bool(seen.received) and (seen.received_ago < seen.sent_ago or not seen.acked)
    return Connection(
        str(local),
        str(remote),
        pid,
        incoming,
        ipaddress.ip_address(remote.host.partition("%")[0]).is_loopback,
        seen.state == CLOSE_WAIT,
        seen.received_ago,
        min(seen.received_ago, seen.sent_ago),
        seen.received,
        seen.acked,
        seen.queued,
        seen.unread,
        bool(seen.unread) or asked_last,
        None,
    )


def _keeps_alive(place: tuple[int, int] | None) -> bool | None:
    if place is None:
        return None
    try:
        with socket.socket(fileno=take(*place)) as sock:
            return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    except OSError:  # it may not be taken, or has been closed since
        return None


def _process(pid: int) -> Process:
    name, used, most = "?", 0, 0
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        name = process.name()
        used = len(os.listdir(f"/proc/{pid}/fd"))
        most = process.rlimit(psutil.RLIMIT_NOFILE)[0]
    return Process(pid, name, used, most)


def _overflows(pids: list[int]) -> int:
    """Connections dropped at a full queue so far, in the network namespace of the first of *pids*."""
    place = f"/proc/{pids[0] if pids else 'self'}/net/netstat"
    with suppress(OSError, ValueError, IndexError):
        lines = [line.split() for line in Path(place).read_text().splitlines()]
        for names, values in pairwise(lines):
            if names[0] == values[0] == "TcpExt:" and "ListenOverflows" in names:
                return int(values[names.index("ListenOverflows")])
    return 0
