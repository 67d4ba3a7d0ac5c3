"""What holds where the kernel is not Linux: tried on Linux with what other systems lack
taken away.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent.parent

# What CPython has on Linux and not on macOS, among what anything here might use.
MACOS = """
import errno, os, select, socket, sys
import asyncio, trio, urllib.request  # these know macOS by themselves
kept = dict(vars(select))
for module, names in (
    (select, [name for name in dir(select) if name.startswith(("EPOLL", "epoll"))]),
    (socket, "TCP_INFO TCP_USER_TIMEOUT TCP_QUICKACK TCP_LINGER2 TCP_DEFER_ACCEPT SOCK_CLOEXEC SOCK_NONBLOCK "
             "SO_PEEK_OFF SO_DOMAIN SO_PROTOCOL SO_MARK MSG_ERRQUEUE AF_NETLINK AF_VSOCK AF_PACKET".split()),
    (os, "sched_getaffinity memfd_create pidfd_open setns unshare splice eventfd EFD_CLOEXEC".split()),
    (errno, "ENONET ECOMM EBADFD ERESTART".split()),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
"""

SERVES = """
import functools, logging
import reaper.trio
vars(select).update(kept)  # trio's own loop is Linux's here
logging.getLogger("reaper").addFilter(lambda said: "stalled" not in said.msg)  # a busy machine

async def echo(stream):
    async for data in stream:
        await stream.send_all(data)

async def main():
    async with trio.open_nursery() as nursery:
        serve = functools.partial(reaper.trio.serve_tcp, host="127.0.0.1", idle=0.4, tick=0.1)
        (listener,) = await nursery.start(serve, echo, 0)
        client = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        began = trio.current_time()
        for _ in range(4):
            await client.send_all(b"x")
            assert await client.receive_some() == b"x"
            await trio.sleep(0.2)
        await client.send_all(b"y")
        assert await client.receive_some() == b"y"
        assert await client.receive_some() == b""
        assert trio.current_time() - began >= 1.2
        nursery.cancel_scope.cancel()

trio.run(main)
"""

GUARDS = """
import reaper.asyncio
from reaper.errors import NotInstalled
try:
    reaper.asyncio.guard(asyncio.Protocol, idle=1)
except NotInstalled as error:
    assert "needs Linux" in str(error)
else:
    raise AssertionError("a guard that cannot see activity would close those that talk")
"""

CHECKS = """
import contextlib, io
from reaper.__main__ import main
assert main(["check"]) == 0
with contextlib.redirect_stderr(io.StringIO()) as said:
    assert main(["attach", "--pid", "1", "--idle", "5m"]) == 2
assert "Linux" in said.getvalue() and said.getvalue().count("\\n") == 1, said.getvalue()
"""

WINDOWS = """
import asyncio, http.server, logging.handlers, sys, urllib.request  # these know Windows by themselves
for name in ("fcntl", "resource", "termios"):
    sys.modules[name] = None
sys.platform = "win32"
"""

WORKS = """
import reaper, reaper.config, reaper.metrics, reaper.testing, reaper.policy
from reaper.__main__ import main
reaper.IdleReaper()
assert main(["check"]) == 0
assert main(["attach", "--pid", "1"]) == 2
"""


def run(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "then",
    [SERVES, GUARDS, "import reaper.journal, reaper.policy", CHECKS],
    ids=["trio", "guard", "import", "commands"],
)
def test_on_macos_the_adapters_work_and_what_cannot_says_so(then: str) -> None:
    pytest.importorskip("trio")
    done = run(MACOS + then)
    assert (done.returncode, done.stderr) == (0, "")


def test_on_windows_the_core_and_the_check_work_and_what_cannot_says_what_it_needs() -> None:
    done = run(WINDOWS + WORKS)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    for door in ("reaper.trio", "reaper.asyncio"):
        line = run(f"{WINDOWS}import {door}").stderr.splitlines()[-1]
        assert line.startswith(
            f"reaper.errors.NotInstalled: {door} needs Linux or macOS: win32 has no fcntl; the core"
        )
