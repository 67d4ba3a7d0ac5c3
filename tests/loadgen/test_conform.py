"""`loadgen conform` against servers that are right, and against such with one fault
each.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from loadgen.cli import main
from loadgen.conform.command import APPS, divided
from loadgen.conform.grounds import GROUPS, ROWS, ground
from loadgen.conform.look import looked
from loadgen.conform.page import page
from loadgen.conform.report import as_json, as_text, compared, junit, worse
from loadgen.conform.run import KINDS, RELOADS, conform, stopped
from loadgen.conform.subject import Limit, NotJudged, Subject, fitted
from loadgen.conform.verdicts import NOT_JUDGED, RIGHT, WRONG, Verdict
from loadgen.plan.acts import Rest, Send
from tests.helpers.broken import FAULTS, LIMIT, Broken

NAMES = ("first_byte", "headers", "body", "keep_alive", "write", "tunnel")
LIMITS = {name: Limit(LIMIT) for name in NAMES}
AT_ONCE = 6
"""Servers that are tried at the same time: more would make clients late."""
TRIES = 5
AT_A_STOP = tuple(fault for fault in FAULTS if "at a stop" in FAULTS[fault])
BEFORE = tuple(fault for fault in FAULTS if "at a stop" not in FAULTS[fault])


async def tried(server: Broken, *, alone: bool = False) -> list[Verdict]:
    """The verdicts on *server*. *alone*: of the kinds that may find its fault, only."""
    address = await server.start()
    try:
        return await verdicts(server, address, alone)
    finally:
        await server.end()


async def verdicts(server: Broken, address: tuple[str, int], alone: bool) -> list[Verdict]:
    """The same, of a server that listens at *address*."""
    subject = await looked(Subject(address, limits=LIMITS, tick=0.3, drain=1.5))
    kinds = [kind for kind in KINDS if kind.speaks in ("http", "websocket", "server")]
    mine = re.compile(FAULTS.get(server.fault, ""))
    kinds = [
        kind
        for kind in kinds
        if mine.search(kind.name) or ((kind.quick or not server.fault) and not alone)
    ]
    if server.fault in AT_A_STOP:
        return await stopped(subject, server, kinds)
    return await conform(
        subject, [kind for kind in kinds if kind.world == "limits"], tries=2 if alone else 1
    )


def together(faults: Sequence[str]) -> dict[str, list[Verdict]]:
    """The verdicts on servers with *faults*, some at a time."""

    async def every() -> dict[str, list[Verdict]]:
        found: dict[str, list[Verdict]] = {}
        for place in range(0, len(faults), AT_ONCE):
            some = faults[place : place + AT_ONCE]
            said = await asyncio.gather(*(tried(Broken(fault)) for fault in some))
            found |= dict(zip(some, said, strict=True))
        return found

    return asyncio.run(every())


def named(found: list[Verdict], word: str) -> set[str]:
    return {each.kind.name for each in found if each.word == word}


def missed(fault: str, found: list[Verdict]) -> list[str]:
    """What is not as it should be of the verdicts on a server with *fault*."""
    wrong = named(found, WRONG)
    others = sorted(name for name in wrong if not re.search(FAULTS[fault], name))
    return [f"{fault}: also {name}" for name in others] + ([] if wrong else [f"{fault}: not found"])


@pytest.mark.slow
def test_an_honest_server_is_right_with_every_kind_of_client():
    for _ in range(TRIES):
        found = together([""])[""]
        wrong = named(found, WRONG)
        if not wrong and len(named(found, RIGHT)) > 70:
            break
    assert not wrong
    assert len(named(found, RIGHT)) > 70


@pytest.mark.slow
@pytest.mark.parametrize("faults", [BEFORE, AT_A_STOP], ids=["limits", "stops"])
def test_each_fault_is_found_by_its_kinds_of_clients_and_by_no_other(faults):
    found = together(faults)
    for fault in faults:
        for _ in range(TRIES):  # alone, if the machine was late for it
            if not missed(fault, found[fault]):
                break
            found[fault] = asyncio.run(tried(Broken(fault), alone=not named(found[fault], WRONG)))
    assert [each for fault in faults for each in missed(fault, found[fault])] == []


# ---- what a kind is, and what is said of it
def test_each_kind_has_a_ground_and_each_row_is_that_of_a_kind() -> None:
    rows = [row for _, _, row in ROWS]
    used = set()
    for kind in (*KINDS, *RELOADS):
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
