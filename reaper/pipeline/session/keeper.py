"""The process of a session that stays: it starts Spark, keeps it while it is used, and ends it.

One rule: *no session outlives its use, or its process*. Spark's Java is a child that ends when its standard input
does, so it goes with this process, however that ends. An idle session ends by itself, while it holds the lock that
every command takes first.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from .java import NoSpark
from .spark import serving
from .standing import PATIENCE_S, Standing, born, forget, locked, release, save

LOOK_S = 0.5
"""How often it looks whether it is idle, or has to end."""

LEISURE_S = 2.0
"""How long a session was not asked when it begins to warm itself."""

PULSE_S = 10.0
"""How often it makes sure that Spark still listens."""


def keep(where: Path, idle_s: float) -> None:
    """Keep a session in *where* until it has been idle for *idle_s* seconds, or SIGTERM.

    Raises:
        NoSpark: Spark does not start.
        BlockingIOError: another session is starting there, or is used.
    """
    over = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    port, token = _free_port(), secrets.token_urlsafe(32)
    os.environ |= {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token, "SPARK_LOCAL_IP": "127.0.0.1"}
    with locked(where, fcntl.LOCK_EX | fcntl.LOCK_NB) as starting, serving(port):
        refuse_strangers(port)
        mine = Standing(os.getpid(), born(os.getpid()) or 0, port, token, release(), time.time(), idle_s)
        save(where, mine)
        fcntl.flock(starting, fcntl.LOCK_UN)
        try:
            _stay(where, mine, over)
        finally:
            forget(where)


def refuse_strangers(port: int) -> None:
    """Make sure that Spark on *port* answers nothing to a caller without the token: any user of this machine may call.

    Raises:
        NoSpark: it does, as those before Spark 4.0 would.
    """
    import grpc
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    stub: Any = base_pb2_grpc.SparkConnectServiceStub
    version = base_pb2.AnalyzePlanRequest.SparkVersion()
    request = base_pb2.AnalyzePlanRequest(session_id=str(uuid4()), spark_version=version)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            stub(channel).AnalyzePlan(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return
            raise NoSpark(f"Spark Connect does not ask for its token: {error.code().name}") from error
    raise NoSpark("Spark Connect does not ask for its token: this Spark serves every user of this machine")


def _stay(where: Path, mine: Standing, over: threading.Event) -> None:
    """Return when it is time to end; no command finds the session any more then."""
    used = pulse = time.time()
    with tempfile.TemporaryDirectory(prefix="reaper-warm-", ignore_cleanup_errors=True) as scratch, ExitStack() as ends:
        warming: subprocess.Popen[bytes] | None = None
        while not over.wait(LOOK_S):
            now = time.time()
            try:
                with locked(where, fcntl.LOCK_EX | fcntl.LOCK_NB) as lock:
                    used = max(used, os.fstat(lock.fileno()).st_mtime)
                    if warming is None and now - used > LEISURE_S:
                        warming = ends.enter_context(_warm(where, mine, scratch))
                        ends.callback(warming.kill)
                    if not mine.warm and warming is not None and warming.poll() == 0:
                        mine = replace(mine, warm=True)
                        save(where, mine)
                    if now - used > mine.idle_s:
                        print(f"idle for {mine.idle_s:g} s: it ends", flush=True)
                        return forget(where)
            except BlockingIOError:
                used = now
            if now - pulse > PULSE_S:
                pulse = now
                if not mine.listens:
                    print("Spark has ended", flush=True)
                    return None
    return None


def _warm(where: Path, mine: Standing, scratch: str) -> subprocess.Popen[bytes]:
    """Have the session asked about journals of ours, so that no user waits for what it then has loaded and compiled.

    Gently, and it is no command's business whether that works. It ends when its standard input does, with this process.
    """
    environment = {**os.environ, "REAPER_SESSION": str(where), "SPARK_REMOTE": mine.url}
    command = ["nice", sys.executable, "-m", "reaper.pipeline.warm", scratch]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> int:
    """What `session start` starts; it says on stdout how it went. Exit status: 0 ended, 1 there already, 2 no Spark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("where", type=Path)
    parser.add_argument("idle_s", type=float)
    arguments = parser.parse_args()
    try:
        keep(arguments.where, arguments.idle_s)
    except BlockingIOError:
        print("another session is starting, or is used", flush=True)
        return 1
    except NoSpark as error:
        print(error, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
