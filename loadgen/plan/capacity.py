"""Reckons before the start which ports, descriptors, processes and memory a run needs.

One rule: what cannot fit is refused before the first packet, with words that say what
is needed. A run that hits a limit half way would measure that limit.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
from dataclasses import dataclass
from pathlib import Path

from ..units import BadArgument, Target, size

SPARE_DESCRIPTORS = 200
"""Descriptors that a process needs besides those of its connections.

They are for the interpreter, epoll, a pipe, a log, and connections that are just being
closed.
"""
COMFORTABLE = 8_000
"""Connections per process above which another one is started.

Below it, starting one costs more than it gains.
"""
SPARE_PORTS = 500
"""Ephemeral ports left to others on the same address (and to connections in
TIME_WAIT).
"""
PER_SOURCE = 12_000
"""Connections from one source address to one destination.

The kernel gives connect(2) ports of one parity first. When that half of the range is
used up, each further connect searches thousands of ports. With the usual range of
28,232 this was seen from 14,115 on: 150 connects per second instead of 4,000.
"""
KERNEL_BYTES = 12_000
"""Bytes of kernel memory for a connected pair on the loopback; 8 to 10 KB were
measured.
"""
PROCESS_BYTES = 2_048
"""Bytes that a connection may cost this program."""


@dataclass(frozen=True)
class Share:
    """What one process takes on: connections `number`, `number + processes`, ...

    They come from the addresses of *sources* in turn; where there are none, the kernel
    chooses.
    """

    number: int
    connections: int
    sources: tuple[str, ...] = ()


def raise_descriptor_limit() -> int:
    """Lift the soft limit to the hard one and return it. Child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def port_range() -> int:
    """How many ephemeral ports one (source address, destination) pair has."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 16_384  # the range IANA recommends, where the kernel does not say
    return int(high) - int(low) + 1


def plan_shares(target: Target, connections: int, processes: int | None = None) -> list[Share]:
    """Divide *connections* among processes, within their descriptors and their
    addresses' ports.

    Args:
        processes: how many to use; None for as few as do.

    Raises:
        BadArgument: it cannot fit; the message says what would be needed.
    """
    hard = raise_descriptor_limit()
    descriptors = hard - SPARE_DESCRIPTORS
    ports = port_range() - SPARE_PORTS
    own_sources = target.family == socket.AF_INET and target.loopback
    if not own_sources and connections > ports:
        why = "all leave from one address of this machine"
        why = "::1 is the only IPv6 loopback address" if target.loopback else why
        raise BadArgument(
            f"--connections {connections}: {target} can be reached over {ports} ports ({why}): "
            f"use at most {ports}, or a target in 127.0.0.0/8, where the connections are spread "
            "over source addresses"
        )
    if descriptors < 1:
        raise BadArgument(f"--connections {connections}: no descriptors free (hard limit {hard})")
    needed = -(-connections // descriptors)
    wanted = processes or max(
        needed, -(-connections // COMFORTABLE) if connections <= 2 * COMFORTABLE else needed
    )
    if wanted < needed:
        what = f"{connections} connections need {needed} processes ({descriptors} descriptors each)"
        raise BadArgument(f"--processes {wanted}: {what}")
    _check_memory(connections)
    wanted = min(wanted, connections)
    base, extra = divmod(connections, wanted)
    most = -(-connections // wanted)
    # As long as half of the ports of 127.0.0.1 do, clients come from there, as
    # anybody's do: a server may trust no other address (Redis in its protected mode).
    own_sources = own_sources and connections > per_source() // 2
    each = -(-most // per_source()) if own_sources else 0
    return [
        Share(
            number,
            base + (number < extra),
            tuple(source_address(number * each + source) for source in range(each)),
        )
        for number in range(wanted)
    ]


def per_source() -> int:
    """How many connections one source address takes on to one destination."""
    return max(min(PER_SOURCE, (port_range() - SPARE_PORTS) * PER_SOURCE // 28_232), 1)


def source_address(number: int) -> str:
    """Source address *number*: 127.0.1.1, 127.0.1.2, ... (127.0.0.x is left to
    servers).
    """
    return str(ipaddress.IPv4Address("127.0.1.0") + number + 1)


def meminfo() -> dict[str, int]:
    """Read what the kernel says of this machine's memory, in bytes by name."""
    lines = (line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in lines}


def _check_memory(connections: int) -> None:
    needed = connections * (KERNEL_BYTES + PROCESS_BYTES)
    available = meminfo()["MemAvailable"]
    if needed > available:
        fits = available // (KERNEL_BYTES + PROCESS_BYTES)
        raise BadArgument(
            f"--connections {connections}: about {size(needed)} of memory needed "
            f"(kernel and generator, without the server), {size(available)} available: "
            f"use at most {fits}"
        )
