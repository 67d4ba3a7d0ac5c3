"""The programs that others wrote, and the table of what was seen of them."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any

import pytest

from scripts import marked
from scripts.programs import table
from scripts.programs.__main__ import BEGIN, END, LIMITS, PAGE, main
from scripts.programs.asks import GRPC, HTTP, POSTGRES, REDIS, Ask
from scripts.programs.declared import PROGRAMS
from scripts.programs.trial import answer
from scripts.serving import ROOT
from tests.helpers.http2_frames import spoken

SHOWN = marked.read(PAGE, BEGIN, END)
CLOSED = {"is": "closed", "s": 2.1}
ANSWERED = {"is": "answered", "s": 5.1}
STOP = {"request": "answered", "s": 4.0, "status": 0}
RELOAD = {"request": "answered", "serves": True, "anew": True, "silent": CLOSED}
GOOD: dict[str, Any] = {
    "how": "inside",
    "said": ["reaper run: x on 127.0.0.1:PORT is guarded from inside: keep_alive 2s"],
    **dict.fromkeys(["silent", "dripping", "idle"], CLOSED),
    **dict.fromkeys(["slow", "pauses"], ANSWERED),
    **dict.fromkeys(["SIGTERM", "SIGINT"], STOP),
    "reload": RELOAD,
}
FAULTS: dict[str, dict[str, Any]] = {
    "5 s answer: answered, guarded cut": {"slow": {"is": "cut", "s": 2.0}},
    "an answer that pauses: answered, guarded no answer": {"pauses": {"is": "no answer"}},
    "SIGTERM: the request in flight was answered, guarded it was cut": {
        "SIGTERM": STOP | {"request": "cut"}
    },
    "SIGINT: ended after 4.0 s, guarded None": {"SIGINT": STOP | {"s": None, "status": None}},
    "SIGTERM: exit status 0, guarded 1": {"SIGTERM": STOP | {"status": 1}},
    "reload: it serves no more": {"reload": RELOAD | {"serves": False, "silent": None}},
    "silent: open, its limit is 2 s": {"silent": {"is": "open"}},
    "drips a head: open, its limit is 4 s": {"dripping": {"is": "open"}},
    "idle after an answer: 9.0 s, its limit is 2 s": {"idle": {"is": "closed", "s": 9.0}},
    "after the reload a silent client is open": {"reload": RELOAD | {"silent": {"is": "open"}}},
}


def test_every_program_was_tried_or_is_listed_with_the_reason() -> None:
    begins = [(f"| {program.name}", f"- {program.name}: ") for program in PROGRAMS]
    lines = SHOWN.splitlines()
    assert [each for each in begins if not any(line.startswith(each) for line in lines)] == []


def test_at_least_thirty_programs_were_tried() -> None:
    found = re.search(r"^(\d+) programs \(", SHOWN, re.MULTILINE)
    assert found is not None
    assert int(found[1]) >= 30


def test_some_programs_alone_are_not_tried_where_nothing_is_known_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.programs.__main__.RESULTS", ROOT / "out" / "nowhere.json")
    monkeypatch.setattr("sys.argv", ["programs", "--table"])
    with pytest.raises(SystemExit):
        main()
    assert "try all of them" in capsys.readouterr().err


def test_every_package_of_a_program_is_pinned() -> None:
    packages = [package for program in PROGRAMS for package in program.pip]
    assert [each for each in packages if not re.fullmatch(r"[\w\[\]-]+==[\d.]+", each)] == []


def test_what_is_as_it_was_and_in_time_is_not_worse() -> None:
    assert [*table.worse(GOOD, GOOD, LIMITS)] == []


@pytest.mark.parametrize("said", FAULTS)
def test_what_a_guard_makes_worse_is_said(said: str) -> None:
    assert [*table.worse(GOOD, copy.deepcopy(GOOD) | FAULTS[said], LIMITS)] == [said]


def test_from_outside_a_client_that_drips_may_stay() -> None:
    outside = GOOD | {"how": "outside", "dripping": {"is": "open"}}
    assert [*table.worse(GOOD, outside, LIMITS)] == []


def test_a_cell_says_both_where_they_differ_and_one_where_not() -> None:
    found = {"stock": GOOD | {"silent": {"is": "open"}}, "guarded": GOOD}
    assert table.cell("silent", found) == "open → 2.1 s"
    assert table.cell("idle", found) == "2.1 s"
    assert table.cell("pauses", {"stock": {}, "guarded": {}}) == "-"


def test_the_table_says_how_many_programs_were_tried_on_which_commit() -> None:
    found = {"date": "2026-11-25 21:00 UTC", "load": 1.0, "cpus": 2, "version": "1", "worse": []}
    found |= {"stock": GOOD, "guarded": GOOD}
    results = {"a": found | {"commit": "0123456789ab"}, "b": found | {"commit": "0123456789ab"}}
    said = table.markdown(results | {"c": found})
    assert "(2 of commit 0123456789ab, 1 of commit that was not noted)" in said


@pytest.mark.parametrize("asks", [REDIS, POSTGRES])
def test_a_slow_request_has_the_same_length_whatever_the_seconds(asks: Any) -> None:
    (one,), (other,) = asks.slow.acts_for(5.0), asks.slow.acts_for(1.25)
    assert one != other
    assert len(one.data) == len(other.data)


def test_a_call_of_grpc_begins_as_http2_does() -> None:
    assert GRPC.slow is not None
    assert not isinstance(GRPC.slow.sent, bytes)
    assert spoken(*GRPC.slow.sent)[0].startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


async def _asked(ask: Ask) -> Any:
    """What is seen of *ask* where every answer comes at once, and whole."""

    async def at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(at_once, "127.0.0.1", 0) as server:
        return await answer(server.sockets[0].getsockname()[1], ask, LIMITS, late=True)


@pytest.mark.parametrize("ask", [HTTP.slow, HTTP.pauses], ids=["late", "in halves"])
def test_an_answer_that_is_not_the_one_asked_for_was_not_tried(ask: Ask) -> None:
    assert asyncio.run(_asked(ask))["is"] == "another answer"


def test_an_unknown_program_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["programs", "--only", "nonsense"])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert "--only nonsense: must be one of: uvicorn;" in capsys.readouterr().err
