"""Clients whose machine vanishes: the link between two network namespaces is taken
down. A foreign server that attach guards, and one of `reaper.trio`, whose judge is
tested in virtual time in test_vanished.py.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from reaper.attach.judge import Limits
from reaper.attach.sockets import TCP_RTO_MAX_MS, asking, probes_capped
from tests.helpers import namespaces
from tests.helpers.attach_servers import Attach, tool, until

PORT = 7701
AFTER = 4.0  # seconds: keep-alives are counted in whole ones

SERVER = f"""
import sys, time, trio, reaper.trio
from contextlib import suppress
from functools import partial
from reaper.config import ReaperConfig

async def serve(stream):
    with suppress(trio.BrokenResourceError):
        mode = (await stream.receive_some(100)).strip()
        while mode == b"stream":
            await stream.send_all(b"%f\\n" % time.time())
            await trio.sleep(0.3)
        while mode == b"full":
            await stream.send_all(bytes(65536))
        if mode == b"echo":
            await stream.send_all(b"echo\\n")
        await stream.receive_some()

async def main():
    settings = {{"timeouts.vanished": float(sys.argv[1]), "timeouts.idle": 0.0}}
    settings["reaper.tick"] = 0.25
    guarding = partial(reaper.trio.serve_tcp, config=ReaperConfig.load(overrides=settings))
    async with trio.open_nursery() as nursery:
        server = guarding if "guarded" in sys.argv else trio.serve_tcp
        await nursery.start(partial(server, serve, {PORT}, host="0.0.0.0"))
        print("listens", flush=True)

trio.run(main)
"""
MODES = ("stream", "no answer yet", "echo", "full")
CLIENTS = f"""
import json, socket, sys, threading, time
socks = {{}}
for mode in {MODES}:
    sock = socks[mode] = socket.create_connection(("{namespaces.Link.address}", {PORT}))
    sock.sendall(mode.encode() + b"\\n")
ended, last = set(), {{}}

def take(mode):
    try:
        while data := socks[mode].recv(1 << 20 if mode != "full" else 4096):
            last[mode] = data[-40:].decode("latin-1")
            time.sleep(mode == "full")
    except OSError:
        pass
    ended.add(mode)

for mode in socks:
    threading.Thread(target=take, args=(mode,), daemon=True).start()
print(json.dumps({{mode: sock.getsockname()[1] for mode, sock in socks.items()}}), flush=True)
for line in sys.stdin:
    print(json.dumps([sorted(set(socks) - ended), last]), flush=True)
"""


class Trial:
    """The clients, in a process of their own behind the link, and attach beside the
    server; None: it guards itself.
    """

    def __init__(
        self, link: namespaces.Link, clients: subprocess.Popen[str], attach: Attach | None
    ) -> None:
        self.link, self.clients, self.attach = link, clients, attach
        assert clients.stdin is not None
        assert clients.stdout is not None
        self._ask, self._answers = clients.stdin, clients.stdout
        self.ports: dict[int, str] = {
            port: mode for mode, port in json.loads(self._answers.readline()).items()
        }
        until(lambda: attach is None or len(attach.of("found")) == len(MODES), "all are found")

    def closed(self) -> dict[str, dict[str, Any]]:
        """What attach closed, by its mode."""
        events = self.attach.of("closed") if self.attach is not None else []
        return {self.ports[int(event["client"].rpartition(":")[2])]: event for event in events}

    def alive(self) -> list[str]:
        """The modes of those that the clients see open."""
        alive: list[str] = self._asked()[0]
        return alive

    def last_event(self) -> float:
        """When the last event that came to the client of the stream was sent."""
        return float(self._asked()[1]["stream"].splitlines()[-1])

    def _asked(self) -> Any:
        self._ask.write("?\n")
        self._ask.flush()
        return json.loads(self._answers.readline())


@contextmanager
def trial(
    *prefix: str, how: str = "shutdown", guarded: bool = False, after: float = AFTER
) -> Iterator[Trial]:
    with ExitStack() as stack:
        link = stack.enter_context(namespaces.opened())
        command = [*link.server, sys.executable, "-c", SERVER, str(after), *["guarded"] * guarded]
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline()
        attach = None
        if not guarded:
            flags = (
                "--listen",
                f":{PORT}",
                "--vanished",
                f"{after}s",
                "--tick",
                "250ms",
                "--close",
                "--how",
                how,
            )
            attach = stack.enter_context(Attach(*flags, prefix=(*link.server, *prefix)))
        clients = stack.enter_context(
            subprocess.Popen(
                [*link.client, sys.executable, "-c", CLIENTS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(clients.kill)
        yield Trial(link, clients, attach)


@pytest.mark.parametrize("limit", [6.0, 11.9, 17.9, 20.0, 23.9, 29.9, 59.9, 60.0, 300.0, 600.0])
def test_the_kernel_gives_up_by_itself_only_after_attach_would_have_closed(limit: float) -> None:
    """Or it ended what is not due yet: 15 s before the limit of 17.9 s, by
    retransmissions 1 s apart.
    """
    if not probes_capped():
        pytest.skip("this kernel retransmits two minutes apart")
    options = asking(Limits(vanished=limit).asks)
    kept_alive = (
        options[socket.TCP_KEEPIDLE] + options[socket.TCP_KEEPCNT] * options[socket.TCP_KEEPINTVL]
    )
    pauses = [
        min(0.2 * 2**number, options[TCP_RTO_MAX_MS] / 1000) for number in range(16)
    ]  # tcp_retries2 is 15
    longest = limit * 1.25 if limit >= 12 else limit
    assert (
        kept_alive - options[socket.TCP_KEEPIDLE] >= longest
    )  # it may have vanished right before the first question
    assert sum(pauses) >= longest


@pytest.mark.slow
@pytest.mark.parametrize("may_take", [True, False])
def test_whoever_vanishes_is_closed_not_before_the_limit_whatever_it_waits_for(
    may_take: bool,
) -> None:
    """Where sockets may not be taken nothing asks a silent peer: only those are seen
    that something is queued for.
    """
    no_rights = (
        ()
        if may_take
        else (tool("setpriv"), "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    )
    with trial(*no_rights, how="shutdown" if may_take else "destroy") as it:
        time.sleep(AFTER)
        assert it.closed() == {}
        gone = time.time()
        it.link.down(unnoticed=True)  # as beside other tests, whose links change, too
        down = time.time()
        seen = set(MODES) if may_take else {"stream", "full"}
        with suppress(AssertionError):
            until(lambda: set(it.closed()) == seen)
        assert set(it.closed()) == seen, it.alive()
        for mode, event in it.closed().items():
            assert event["reason"] == "vanished"
            # The client of the stream was heard last when an event was sent.
            heard = it.last_event() if mode == "stream" else gone
            assert heard <= down
            assert event["time"] - heard >= AFTER, mode


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True], ids=["attach", "trio"])
def test_neither_half_a_limit_without_network_nor_a_stopped_client_is_closed(
    guarded: bool,
) -> None:
    """The kernel of a stopped client answers, even where its window is full. Of the
    other half of the limit three seconds may pass until a peer that was asked just
    before is asked again, for the kernel is slow to see a link.
    """
    after = 10.0
    with trial(guarded=guarded, after=after) as it:
        for _ in range(2):
            time.sleep(AFTER / 2)
            back = time.monotonic() + after / 2
            it.link.down()
            time.sleep(max(back - time.monotonic(), 0.0))
            it.link.up()
        it.clients.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * after)
        it.clients.send_signal(signal.SIGCONT)
        assert it.closed() == {}
        assert it.alive() == sorted(MODES)
