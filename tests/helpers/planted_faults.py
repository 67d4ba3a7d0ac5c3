"""Servers with a fault each, and what the doctor says of them.

    python -m tests.helpers.planted_faults FAULT HOST PORT [UPSTREAM_HOST UPSTREAM_PORT]
    python -m tests.helpers.planted_faults handshakes HOST PORT NETWORK

The last begins 40 handshakes from addresses such as NETWORK.7, and completes none; it
needs root.
"""

from __future__ import annotations

import asyncio
import io
import json
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

from reaper.__main__ import main
from tests.helpers.attach_servers import ROOT, until

FAULTS = ("echo", "crowded", "accepts-slowly", "streams", "floods", "answers-late", "pools")
HANDSHAKES = 40


def examine(*flags: str, seconds: str = "1s") -> dict[str, Any]:
    """What `reaper doctor` says of a server; its exit status says whether it found
    something.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["doctor", "--for", seconds, "--json", *flags])
    assert err.getvalue() == ""
    said: dict[str, Any] = json.loads(out.getvalue())
    assert status == (1 if said["findings"] else 0)
    return said


def kinds(said: dict[str, Any]) -> list[str]:
    return [one["kind"] for one in said["findings"]]


def mend(finding: dict[str, Any], mended: Callable[[], bool]) -> None:
    """Run the one command of *finding*, until *mended*."""
    words = shlex.split(finding["mend"])
    if words[0] == "reaper":
        words = [sys.executable, "-m", *words]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as command:
        try:
            until(lambda: mended() or command.poll() not in (None, 0), shlex.join(words))
            assert not command.poll(), shlex.join(words)
        finally:
            with suppress(ProcessLookupError):
                command.send_signal(signal.SIGINT)


def begin_handshakes(host: str, port: int, network: str) -> None:
    """Send the first packet of each handshake, as if it came from others."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    for number in range(HANDSHAKES):
        source = socket.inet_aton(f"{network}.{1 + number}")
        target = socket.inet_aton(host)
        segment = struct.pack("!HHIIBBHHH", 40000 + number, port, 7, 0, 5 << 4, 2, 65535, 0, 0)
        pseudo = source + target + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(segment))
        check = struct.pack("!H", _checksum(pseudo + segment))
        segment = segment[:16] + check + segment[18:]
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), number, 0, 64, 6, 0)
        raw.sendto(header + source + target + segment, (host, 0))


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


async def _answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4096):
        writer.write(data)
    writer.close()


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, 1000, 0.05)


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, 1_000_000, 0.0)


async def _send(writer: asyncio.StreamWriter, size: int, pause: float) -> None:
    with suppress(OSError):
        while True:
            writer.write(bytes(size))
            await writer.drain()
            await asyncio.sleep(pause)


async def _answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(4096)
    writer.write(b"begins")
    await reader.read(4096)
    await asyncio.sleep(3600)


async def _serve(fault: str, host: str, port: int, *upstream: str) -> None:
    if fault == "crowded":
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    handlers = {"streams": _stream, "floods": _flood, "answers-late": _answer_late}
    pool = [await asyncio.open_connection(*upstream) for _ in range(3 if upstream else 0)]
    server = await asyncio.start_server(handlers.get(fault, _answer_once), host, port)
    async with server:
        await server.serve_forever()
    assert pool is not None  # it is kept, as pools are


def _accept_slowly(host: str, port: int) -> None:
    kept = []
    with socket.create_server((host, port), backlog=4) as listener:
        while True:
            kept.append(listener.accept())
            time.sleep(2.0)


if __name__ == "__main__":
    kind, at, number, *more = sys.argv[1:]
    if kind == "handshakes":
        begin_handshakes(at, int(number), *more)
    elif kind == "accepts-slowly":
        _accept_slowly(at, int(number))
    else:
        asyncio.run(_serve(kind, at, int(number), *more))
