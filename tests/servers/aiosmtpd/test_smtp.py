"""aiosmtpd below `reaper run`: a session that waits for its client is closed in time,
one that works is answered, over STARTTLS as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import smtplib
import socket
import ssl
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP

from reaper.policy import Phase
from reaper.servers.aiosmtpd.changes import is_its
from reaper.servers.aiosmtpd.phases import Session
from tests.helpers.reaper_run import PATIENCE, guarded
from tests.helpers.served import bare
from tests.servers.test_renamed import renamed

LIMITS = ["--idle", "1s", "--tick", "100ms"]
TAKES = """
import asyncio, ssl, sys, threading
from aiosmtpd.controller import Controller
class Slow:
    async def handle_DATA(self, server, session, envelope):
        await asyncio.sleep(1.5)
        return "250 kept"
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(CERTIFICATE, KEY)
Controller(Slow(), hostname="127.0.0.1", port=int({port}), tls_context=context).start()
threading.Event().wait()
"""


def session_of(waits: bool) -> Any:
    return SimpleNamespace(_reader=SimpleNamespace(_waiter=object() if waits else None))


@pytest.mark.parametrize("waits", [True, False])
def test_a_session_that_waits_in_its_reader_waits_for_the_client(waits: bool) -> None:
    session = session_of(waits)
    tls = SimpleNamespace(_app_protocol=session)
    for protocol in (session, tls):
        transport = SimpleNamespace(get_protocol=lambda found=protocol: found)
        assert bare(Session, transport).phase() is (Phase.IDLE if waits else Phase.IN_FLIGHT)


def test_the_factories_of_aiosmtpd_are_known_and_no_others() -> None:
    class Own(SMTP):
        pass

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        controller = Controller(object(), port=1, loop=loop)
        for factory in (SMTP, Own, functools.partial(SMTP, 1), controller._factory_invoker):
            assert is_its(SMTP, factory)
    others: tuple[Any, ...] = (object, functools.partial(dict), len, lambda: None, [].append)
    for other in others:
        assert not is_its(SMTP, other)


def command(certificate: tuple[str, str]) -> list[str]:
    cert, key = map(repr, certificate)
    code = TAKES.replace("CERTIFICATE", cert).replace("KEY", key)
    return [sys.executable, "-c", code]


@pytest.mark.slow
def test_a_silent_client_is_closed_and_one_that_is_worked_for_is_answered(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    with (
        guarded(
            command(certificate),
            tmp_path,
            "--inside",
            said=["is guarded: idle 1s"],
            limits=LIMITS,
        ) as (server, _),
        socket.create_connection(server.address, PATIENCE) as silent,
    ):
        assert silent.recv(100).startswith(b"220 ")
        for starttls in (False, True):
            trust = ssl.create_default_context(cafile=certificate[0])
            with smtplib.SMTP(*server.address, timeout=PATIENCE) as client:
                if starttls:
                    client.starttls(context=trust)
                assert client.sendmail("a@localhost", ["b@localhost"], "x") == {}
                assert client.sock is not None
                assert client.sock.recv(100) == b"", "the session waits again"
                client.close()
        assert silent.recv(100) == b""


@pytest.mark.slow
def test_one_that_has_renamed_a_name_is_left_alone_and_serves(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    copy = renamed(tmp_path / "copy", "aiosmtpd", "_factory_invoker")
    said = ["is not guarded: it has no BaseController._factory_invoker"]
    with (
        guarded(
            command(certificate), tmp_path, "--inside", said=said, limits=LIMITS, before=[copy]
        ) as (server, _),
        smtplib.SMTP(*server.address, timeout=PATIENCE) as client,
    ):
        assert client.noop()[0] == 250
