"""Makes the looks: what the kernel says of the server's connections, and /proc of its
processes.

The rule of this module: *looking touches nothing*. To see an option of a socket, its
descriptor is duplicated, read and let go. Whatever may not be seen is None or left out.
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
from .facts import Connection, Door, Glances, Look, Process

ANY_PORT = -1
EVERYTHING = (
    Listener(Address("0.0.0.0", ANY_PORT), socket.AF_INET),
    Listener(Address("::", ANY_PORT), socket.AF_INET6),
)
"""Stands for all connections of the network namespace in a dump."""
ASKED = 2000
"""The most connections whose options are read in one look, the quietest first."""


def look(
    target: Target, kernel: Linux, quiet: float, clock: Callable[[], float] = time.monotonic
) -> Look:
    """One look at *target*; options are read of connections that have been quiet for
    *quiet* seconds.

    Raises:
        Refusal: the target is gone for good.
    Cost: about 10 us per connection of the network namespace, 3 us per descriptor of
        the server, and 20 us per quiet connection that is not of this machine.
    """
    listeners = target.listeners()
    target.scan()
    ports = {one.address.port for one in listeners}
    found: dict[bytes, Connection] = {}
    for one in kernel.dump(EVERYTHING, True):
        if not one.inode:  # it waits to be accepted
            continue
        held = target.find(one.inode)
        if held is None:
            port = int.from_bytes(one.ident[:2], "big")  # cheaper than `addresses_of`
            if target.restricted or port not in ports:
                continue
        if (connection := _connection(one, held[0] if held else 0, ports)) is not None:
            found[one.ident] = connection
    asked = [one for one in found.items() if one[1].quiet >= quiet and not one[1].loopback]
    for ident, connection in sorted(asked, key=lambda one: -one[1].quiet)[:ASKED]:
        kept = _keeps_alive(target.find(connection.inode))
        found[ident] = connection._replace(keeps_alive=kept)
    return Look(
        clock(),
        tuple(_process(pid) for pid in target.pids() if psutil.pid_exists(pid)),
        found,
        _overflows(target.pids()),
    )


class Watch:
    """Glances at what comes and goes: queues of new connections, and handshakes."""

    def __init__(
        self, target: Target, kernel: Linux, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target, self._kernel, self._clock = target, kernel, clock
        self._doors: dict[str, Door] = {}
        self._begun: dict[bytes, tuple[float, float]] = {}
        self._somebody: float | None = None

    def glance(self) -> None:
        """Look at the queues and the handshakes once, and whether anybody is there.

        Raises:
            Refusal: the target is gone for good.
        Cost: 0.2 us per connection of the network namespace, and 3 us per handshake and
            per connection of the server.
        """
        listeners, now = self._target.listeners(), self._clock()
        for one in listeners:
            door = Door(str(one.address), one.waiting, one.room)
            fullest = self._doors.setdefault(door.address, door)
            if door.waiting - door.room > fullest.waiting - fullest.room:
                self._doors[door.address] = door
        for ident in self._kernel.half_open(listeners):
            self._begun[ident] = self._begun.get(ident, (now, now))[0], now
        if self._target.anybody():
            self._somebody = now

    def seen(self) -> Glances:
        """What all glances so far have shown."""
        held = {
            str(addresses_of(ident)[1]): last - first
            for ident, (first, last) in self._begun.items()
        }
        return Glances(tuple(self._doors.values()), held, self._somebody)


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
        found.inode,
        incoming,
        local.host == remote.host
        or ipaddress.ip_address(remote.host.partition("%")[0]).is_loopback,
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
    name, command = "?", ()
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        name, command = process.name(), tuple(process.cmdline())
        most, hard = process.rlimit(psutil.RLIMIT_NOFILE)
        used = os.listdir(f"/proc/{pid}/fd")
        kinds = [_kind(f"/proc/{pid}/fd/{fd}") for fd in used]
        sockets, files = kinds.count("socket"), kinds.count("file")
        return Process(pid, name, len(used), most, hard, sockets, files, command)
    return Process(pid, name, None, 0, command=command)


def _kind(place: str) -> str:
    with suppress(OSError):
        name = os.readlink(place)
        return "file" if name.startswith("/") else name.partition(":")[0]
    return "gone"


def _overflows(pids: list[int]) -> int:
    """Connections dropped at a full queue so far, in the network namespace of the first
    of *pids*.
    """
    place = f"/proc/{pids[0] if pids else 'self'}/net/netstat"
    with suppress(OSError, ValueError, IndexError):
        lines = [line.split() for line in Path(place).read_text().splitlines()]
        for names, values in pairwise(lines):
            if names[0] == values[0] == "TcpExt:" and "ListenOverflows" in names:
                return int(values[names.index("ListenOverflows")])
    return 0
