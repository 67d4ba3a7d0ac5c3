"""`loadgen conform` against servers that are right, and against such with one fault
each.
"""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from unittest.mock import patch
from xml.etree import ElementTree

import pytest

from loadgen.cli import main
from loadgen.conform.command import APPS, divided, may_speak
from loadgen.conform.control import Lag
from loadgen.conform.grounds import GROUPS, ROWS, ground
from loadgen.conform.kinds import HIDDEN, LEFT, LEFT_OTHERS
from loadgen.conform.kinds_http2 import LEFT_HTTP2
from loadgen.conform.look import learnt, limit_of, looked
from loadgen.conform.page import page
from loadgen.conform.report import as_json, as_text, compared, junit, worse
from loadgen.conform.run import KINDS, RELOADS, conform, stopped
from loadgen.conform.subject import Limit, NotJudged, Subject, fitted
from loadgen.conform.verdicts import NOT_JUDGED, RIGHT, WRONG, Verdict, judge, too_late
from loadgen.drive.wire import Tls
from loadgen.plan.acts import Busy, Rest, Send
from loadgen.playing.client import Seen
from loadgen.playing.play import played
from loadgen.probe import Finding
from loadgen.units import Target
from tests.helpers import broken, broken_http2
from tests.helpers.broken import LIMIT, Broken
from tests.helpers.broken_http2 import BrokenHttp2
from tests.helpers.loops import VirtualLoop
from tests.helpers.server_process import PATIENCE

NAMES = ("first_byte", "headers", "body", "keep_alive", "write", "tunnel")
LIMITS = {name: Limit(LIMIT) for name in NAMES}
AT_ONCE = 30
"""Servers that are tried at the same time: more would make clients late."""
GRACE = 0.002
"""Real seconds in which what was sent to a socket of the same process arrives."""
FAULTS = broken.FAULTS | broken_http2.FAULTS
OF_HTTP2 = tuple(broken_http2.FAULTS)
AT_A_STOP = tuple(fault for fault in FAULTS if "at a stop" in FAULTS[fault])
BEFORE = tuple(fault for fault in FAULTS if fault not in (*AT_A_STOP, *OF_HTTP2))
STREAMS = tuple(fault for fault in OF_HTTP2 if fault not in AT_A_STOP)
SPOKEN = {Broken: ("http", "websocket", "server"), BrokenHttp2: ("http2",)}


def server_with(
    fault: str, context: ssl.SSLContext | None = None, made: type[Broken] | None = None
) -> Broken:
    """A server with that *fault*, of the class *made* or of that which has it."""
    return (made or (BrokenHttp2 if fault in OF_HTTP2 else Broken))(fault, context)


async def tried(server: Broken) -> list[Verdict]:
    """The verdicts on *server*."""
    address = await server.start()
    try:
        return await verdicts(server, address)
    finally:
        await server.end()


async def verdicts(server: Broken, address: tuple[str, int]) -> list[Verdict]:
    """The same, of a server that listens at *address*."""
    tls = None if server.context is None else Tls("localhost", insecure=True)
    limits = LIMITS if tls is None else LIMITS | {"handshake": Limit(LIMIT)}
    subject = await looked(Subject(address, limits=limits, tick=0.3, drain=1.5, tls=tls))
    spoken = (*SPOKEN[type(server)], *(("tls",) if tls else ()))
    kinds = [kind for kind in KINDS if kind.speaks in spoken and may_speak(kind, subject)]
    mine = re.compile(FAULTS.get(server.fault, ""))
    kinds = [kind for kind in kinds if mine.search(kind.name) or kind.quick or not server.fault]
    if server.fault in AT_A_STOP:
        return await stopped(subject, server, kinds)
    return await conform(subject, [kind for kind in kinds if kind.world == "limits"], tries=1)


def together(
    faults: Sequence[str],
    context: ssl.SSLContext | None = None,
    made: type[Broken] | None = None,
) -> dict[str, list[Verdict]]:
    """The verdicts on servers with *faults*, some at a time, all in this process."""

    async def every() -> dict[str, list[Verdict]]:
        found: dict[str, list[Verdict]] = {}
        for place in range(0, len(faults), AT_ONCE):
            some = faults[place : place + AT_ONCE]
            servers = [server_with(fault, context, made) for fault in some]
            said = await asyncio.gather(*map(tried, servers))
            found |= dict(zip(some, said, strict=True))
        return found

    with (
        patch("loadgen.conform.run.control", punctual),
        asyncio.Runner(loop_factory=lambda: VirtualLoop(GRACE)) as runner,
    ):
        return runner.run(every())


@asynccontextmanager
async def punctual(after: float = 1.0) -> AsyncIterator[Lag]:
    """The control of a machine that is never late: time here is the loop's own."""
    yield Lag()


def named(found: list[Verdict], word: str) -> set[str]:
    return {each.kind.name for each in found if each.word == word}


def missed(fault: str, found: list[Verdict]) -> list[str]:
    """What is not as it should be of the verdicts on a server with *fault*."""
    wrong = named(found, WRONG)
    others = sorted(name for name in wrong if not re.search(FAULTS[fault], name))
    return [f"{fault}: also {name}" for name in others] + ([] if wrong else [f"{fault}: not found"])


@pytest.mark.parametrize(
    ("made", "tls", "most_right"),
    [(Broken, False, 75), (BrokenHttp2, False, 38), (Broken, True, 75), (BrokenHttp2, True, 38)],
)
def test_an_honest_server_is_right_with_every_kind_of_client(made, tls, most_right, request):
    context = speaks_tls(request.getfixturevalue("certificate")) if tls else None
    ((_, found),) = together([""], context, made).items()
    wrong = named(found, WRONG)
    if tls:  # asyncio's TLS knows no half-closed connection
        wrong = {name for name in wrong if "half-closes" not in name}
    assert not wrong
    assert len(named(found, RIGHT)) > most_right


@pytest.mark.slow
@pytest.mark.parametrize("faults", [BEFORE, STREAMS, AT_A_STOP], ids=["limits", "http2", "stops"])
def test_each_fault_is_found_by_its_kinds_of_clients_and_by_no_other(faults):
    found = together(faults)
    assert [each for fault in faults for each in missed(fault, found[fault])] == []


@pytest.mark.slow
def test_a_fault_behind_tls_is_found_by_the_same_kinds(certificate):
    faults = ("closes 100 ms before its keep-alive", "holds a WebSocket", "never acks a PING")
    found = together(faults, speaks_tls(certificate))
    for fault in faults:
        lines = missed(fault, found[fault])
        assert [line for line in lines if "half-closes" not in line] == []


def speaks_tls(certificate: tuple[str, str]) -> ssl.SSLContext:
    """The context of a server that agrees on HTTP/2 by ALPN, or on HTTP/1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def test_no_two_faults_have_one_name() -> None:
    assert not set(broken.FAULTS) & set(broken_http2.FAULTS)


def test_a_client_from_afar_that_leaves_early_forgets_what_was_not_sent_yet() -> None:
    kind = replace(KIND["asks five times at once"], lag=5.0)

    async def leave() -> None:
        gone = asyncio.Event()

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            gone.set()

        async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
            await played(kind, server.sockets[0].getsockname(), 0.01)
            async with asyncio.timeout(PATIENCE):  # the server has not heard of that yet
                await gone.wait()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(leave())
        gc.collect()
    assert [str(each.message) for each in found if "awaited" in str(each.message)] == []


# ---- what a kind is, and what is said of it
def test_each_kind_has_a_ground_and_each_row_is_that_of_a_kind() -> None:
    rows = [row for _, _, row in ROWS]
    used = set()
    for kind in (*KINDS, *RELOADS, *HIDDEN, *LEFT, *LEFT_OTHERS, *LEFT_HTTP2):
        assert ground(kind).group in GROUPS
        name = kind.name.replace("at a reload: ", "at a stop: ")
        used.add(
            next(
                place
                for place, (speaks, words, _) in enumerate(ROWS)
                if speaks in ("", kind.speaks) and words in name
            )
        )
    assert [ROWS[place][1] for place in range(len(rows)) if place not in used] == []


KIND = {kind.name: kind for kind in KINDS}


def subject(**limits: float) -> Subject:
    known = {name: Limit(seconds) for name, seconds in limits.items()}
    return Subject(("127.0.0.1", 1), limits=known)


def test_the_last_150_ms_of_a_limit_stay_so_many() -> None:
    kind = KIND["asks again in the last 150 ms of `keep_alive`"]
    cut = fitted(kind, subject(keep_alive=5.0, headers=20.0))
    assert [act.seconds for act in cut.acts if isinstance(act, Rest)] == pytest.approx([4.85] * 2)


@pytest.mark.parametrize(
    ("name", "limits", "rested"),
    [
        # stock gunicorn with threads waits longer for a first byte than for a next
        ("waits for a route of 1.6 s", {"first_byte": 7.0, "keep_alive": 2.0}, [1.0]),
        ("waits for an answer that pauses for 1.6 s", {"headers": 7.0, "keep_alive": 2.0}, [1.0]),
        ("pipelines three requests", {"first_byte": 7.0, "keep_alive": 2.0}, [1.0]),
        ("TLS: pipelines three requests", {"first_byte": 7.0, "keep_alive": 2.0}, [1.0]),
        ("says nothing after a second answer", {"keep_alive": 2.0}, [1.2]),
        ("sends half of its second head after 0.6 s", {"headers": 9.0, "keep_alive": 2.0}, [1.2]),
        (
            "sends half a head in the last 150 ms of `first_byte`",
            {"headers": 9.0, "first_byte": 2.0},
            [1.85],
        ),
        (
            "sends its body 0.5 s after a late route began, which reads after 1.6 s",
            {"first_byte": 7.0, "body": 2.0},
            [1.0],
        ),
        ("pipelines two requests and half of a third", {"headers": 9.0, "keep_alive": 2.0}, [5.4]),
        ("HTTP/2: cancels an upload, and asks again", {"body": 9.0, "keep_alive": 2.0}, [2.7, 0.6]),
        (
            "HTTP/2: begins a block of headers after an answer",
            {"headers": 9.0, "keep_alive": 2.0},
            [1.0],
        ),
        (
            "HTTP/2: waits for slow routes and asks others meanwhile",
            {"first_byte": 7.0, "keep_alive": 2.0},
            [3.5, 3.5],  # a stream is open all the time
        ),
    ],
)
def test_no_client_rests_for_longer_than_the_limit_that_holds_meanwhile(name, limits, rested):
    kind = KIND[name]
    where = replace(subject(**limits), speaks=frozenset({kind.speaks}))
    cut = fitted(kind, where)
    assert [act.seconds for act in cut.acts if isinstance(act, Rest)] == pytest.approx(rested)


def test_a_capped_rest_bears_no_more_lateness_than_its_own_limit() -> None:
    where = subject(first_byte=20.0, keep_alive=2.0)
    cut = fitted(KIND["pipelines three requests"], where)
    assert too_late(cut, where, 0.6)
    assert not too_late(cut, where, 0.4)


def test_a_connection_that_its_keep_alive_ends_first_is_not_judged_by_its_age() -> None:
    where = subject(max_age=20.0, keep_alive=5.0)
    for name in (
        "says nothing after an answer",
        "has a request on its way at a distance of 160 ms",
    ):
        with pytest.raises(NotJudged, match="keep_alive"):
            fitted(KIND[f"at `max_age`: {name}"], where)
    busy = fitted(KIND["at `max_age`: asks all the time at a distance of 40 ms"], where).acts[0]
    assert isinstance(busy, Busy)
    assert (busy.seconds, busy.every) == (44.0, 0.5)


@pytest.mark.parametrize(
    ("begins", "word"),
    [
        (b"HTTP/1.0 200 OK", RIGHT),
        (b"HTTP/1.1 200 OK\r\nConnection: close", RIGHT),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", WRONG),
        (b"HTTP/1.1 200 OK", WRONG),
    ],
)
def test_who_says_in_an_answer_that_it_is_the_last_may_close_behind_it(begins, word):
    for name in ("asks five times at once", "pipelines three requests"):
        kind = KIND[name]
        seen = Seen([(0.0, 0.0)] * 3, ended=0.1, how="closed", answers=[(200, b"hello")])
        seen.data = begins + b"\r\nContent-Length: 5\r\n\r\nhello"
        assert judge(kind, seen, subject(keep_alive=1.0), 0.0).word == word, name


@pytest.mark.parametrize(("seconds", "known"), [(0.004, False), (0.4, True)])
def test_a_close_at_once_is_no_limit(seconds, known):
    finding = Finding("keep_alive", "", 4, 4, shortest=seconds, longest=seconds)
    assert (limit_of(finding) is not None) is known


def test_a_limit_is_learnt_by_clients_that_wait_for_no_thread_beside_them(monkeypatch):
    asked = []

    def queued(target, speech, wait, *, trials, only, one_by_one=False):
        asked.append((tuple(only), one_by_one))
        waits = {"keep_alive": 2.0, "first_byte": 7.0}
        return [
            Finding(name, "", 4, 4, shortest=waits[name], longest=waits[name] + 0.001)
            if one_by_one
            else Finding(name, "", 4, 4, shortest=waits[name] + 0.41, longest=waits[name] + 0.6)
            if name in waits
            else Finding(name, "", 4, 0)
            for name in only
        ]

    monkeypatch.setattr("loadgen.conform.look.probe", queued)
    target = Target("127.0.0.1", 1, socket.AF_INET)
    known = {"handshake": Limit(0.0)}
    found = learnt(target, subject(), 30.0, None, known)
    assert {name: limit.seconds for name, limit in found.items()} == {
        "first_byte": 7.0,
        "keep_alive": 2.0,
    }
    assert asked == [
        (("first_byte", "headers", "body", "keep_alive"), False),
        (("first_byte", "keep_alive"), True),
    ]
    known |= dict.fromkeys(("first_byte", "headers", "body"), Limit(0.0))
    assert list(learnt(target, subject(), 30.0, None, known)) == ["keep_alive"]
    assert asked[2:] == [(("keep_alive",), False)]  # nobody was beside it


def test_what_a_kind_asks_for_is_as_long_as_the_longest_limit_wants_it() -> None:
    kind = KIND["waits for a route of 1.6 s"]
    cut = fitted(kind, subject(keep_alive=5.0, headers=10.0))
    assert isinstance(cut.acts[0], Send)
    assert cut.acts[0].data.startswith(b"GET /slow?16.00 HTTP/1.1\r\n")


def test_a_route_is_asked_for_where_the_server_has_it() -> None:
    where = replace(subject(), routes={"/": "/home", "/slow?": "/sleep?s="})
    (first, *_) = fitted(KIND["waits for a route of 1.6 s"], where).acts
    assert isinstance(first, Send)
    assert first.data.startswith(b"GET /sleep?s=1.60 ")
    with pytest.raises(NotJudged, match="/echo"):
        fitted(KIND["half-closes after its POST"], where)


def test_a_dead_client_without_a_known_limit_is_not_judged() -> None:
    with pytest.raises(NotJudged, match="--headers"):
        fitted(KIND["sends half a head"], subject(keep_alive=1.0))


@pytest.mark.parametrize(
    ("line", "ours", "command", "other"),
    [
        ("conform 127.0.0.1:1 --json", "conform 127.0.0.1:1 --json", "", ""),
        ("conform --json -- a -b", "conform --json", "a -b", ""),
        ("conform -- a -- b", "conform", "a -- b", ""),
        ("conform -- a -b --compare -- c d", "conform --compare", "a -b", "c d"),
        ("conform x:1 --compare -- c d", "conform x:1 --compare", "", "c d"),
    ],
)
def test_what_stands_behind_two_dashes_is_a_command(line, ours, command, other):
    assert divided(line.split()) == (ours.split(), command.split(), other.split())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("conform", "give one target"),
        ("conform 127.0.0.1:1 --only nothing-like-it", "--list shows them"),
        ("conform 127.0.0.1:1 --route /nowhere=/", "is no route"),
        ("conform 127.0.0.1:1 --limits /nowhere.toml", "give a TOML file"),
        ("conform 127.0.0.1:1 --compare", "--compare -- COMMAND"),
        ("conform 127.0.0.1:1 --reload NEVER", "is no signal"),
        ("conform --no-learn -- /no/such/program", "give a command"),
    ],
)
def test_a_bad_argument_costs_one_line_and_exit_status_2(line, why, capsys):
    with suppress(SystemExit):
        assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_every_kind_and_each_application_can_be_shown(capsys):
    assert main(["conform", "--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("\n  ") == len(KINDS) + len(RELOADS)
    for name in APPS:
        assert main(["conform", "--app", name]) == 0
        compile(capsys.readouterr().out, name, "exec")


VERDICTS = [
    Verdict(KIND["sends half a head"], RIGHT, after_s=1.0),
    Verdict(KIND["pipelines three requests"], WRONG, "lost <it>", "saw \x00 it"),
    Verdict(KIND["asks by HEAD, then by GET"], NOT_JUDGED, "no route"),
]


def test_what_was_found_is_a_report_a_page_and_a_case_of_junit_each() -> None:
    where = subject(headers=1.0)
    report = as_json(VERDICTS, where, "here")
    assert [report[word] for word in ("right", "wrong", "not_judged", "verdict")] == [
        1,
        1,
        1,
        "fail",
    ]
    tree = ElementTree.fromstring(junit(VERDICTS, "here").partition("\n")[2])
    assert (tree.get("failures"), tree.get("skipped"), len(tree)) == ("1", "1", 3)
    assert "lost &lt;it&gt;" in page(VERDICTS, where, "here")
    text = as_text(VERDICTS, where)
    assert text[-1].startswith("WRONG: 1 right, 1 wrong, 1 not judged")
    assert any("MUST, RFC 9112 9.3.2" in line for line in text)


def test_two_servers_differ_where_their_verdicts_do() -> None:
    other = [replace(each, word=RIGHT) for each in VERDICTS]
    assert len([line for line in compared(VERDICTS, other) if "pipelines" in line]) == 1
    assert worse(other, VERDICTS)
    assert not worse(VERDICTS, other)
