"""Each trouble is found where it was planted, and none where all is well; by plain values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reaper.doctor.facts import Connection, Door, Examination, Look, Process
from reaper.doctor.findings import TROUBLES, findings

WELL = Connection(
    local="192.0.2.1:80",
    remote="198.51.100.7:5000",
    pid=7,
    incoming=True,
    loopback=False,
    half_closed=False,
    silent=1.0,
    quiet=1.0,
    received=100,
    acked=100,
    queued=0,
    unread=0,
    waits_for_us=False,
    keeps_alive=False,
)
SERVER = Process(7, "server", 20, 1024)
DOOR = Door("192.0.2.1:80", 0, 128)


def examined(connection: Connection = WELL, **last: Any) -> Examination:
    """Two looks, 30 s apart, at a server with one connection."""
    look = Look(1000.0, (SERVER,), {b"one": connection}, (DOOR,), 0, 5)
    return Examination("--pid 7", look, replace(look, at=1030.0, **last), 300.0)


def both(**changes: Any) -> Examination:
    """Two looks, 30 s apart, that show the same."""
    seen = examined()
    first = replace(seen.first, **changes)
    return replace(seen, first=first, last=replace(first, at=1030.0))


PLANTED = {
    "descriptors": examined(processes=(Process(7, "server", 900, 1024),)),
    "close-wait": examined(WELL._replace(half_closed=True, silent=90.0)),
    "silent": examined(WELL._replace(quiet=400.0, keeps_alive=True)),
    "half-open": both(half_open=100),
    "takes-nothing": examined(WELL._replace(queued=50_000, quiet=20.0)),
    "backlog": replace(both(doors=(Door("192.0.2.1:80", 129, 128),)), last=replace(
        both().last, overflows=9)),
    "proxy": replace(examined(), proxy_trouble="keep_alive 5s is below nginx's", config="a.toml"),
    "outgoing": examined(WELL._replace(incoming=False, quiet=400.0)),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "seen"), PLANTED.items(), ids=PLANTED)
def test_a_planted_trouble_is_found_and_no_other(kind: str, seen: Examination) -> None:
    (found,) = findings(seen)
    assert found.kind == kind
    assert "{" not in found.mend


def test_a_connection_without_keep_alives_is_named_besides_its_silence() -> None:
    found = findings(examined(WELL._replace(quiet=400.0)))
    assert [one.kind for one in found] == ["silent", "no-keep-alive"]


def test_each_row_of_the_table_is_planted_above() -> None:
    assert {trouble.kind for trouble in TROUBLES} == {*PLANTED, "no-keep-alive"}


WELL_ENOUGH = {
    "all is well": examined(),
    "its client waits for an answer": examined(
        WELL._replace(quiet=400.0, waits_for_us=True, keeps_alive=True)
    ),
    "it has just been half closed": examined(WELL._replace(half_closed=True, silent=1.0)),
    "its descriptors do for now": examined(processes=(Process(7, "server", 800, 1024),)),
    "a flood is over": examined(half_open=100),
    "a queue was full and nobody was dropped": both(doors=(Door("192.0.2.1:80", 129, 128),)),
    "others were dropped": examined(overflows=9),
    "an outgoing connection over the loopback": examined(
        WELL._replace(incoming=False, quiet=400.0, loopback=True)
    ),
    "a pool that sends keep-alives": examined(
        WELL._replace(incoming=False, quiet=400.0, keeps_alive=True)
    ),
}


@pytest.mark.parametrize("seen", WELL_ENOUGH.values(), ids=WELL_ENOUGH)
def test_nothing_is_found_where(seen: Examination) -> None:
    assert findings(seen) == []


def test_a_client_that_takes_something_between_two_looks_is_well() -> None:
    before = WELL._replace(queued=50_000, quiet=20.0)
    seen = examined(before, connections={b"one": before._replace(acked=5000)})
    assert findings(seen) == []


def test_the_evidence_counts_names_the_longest_and_who_holds_it() -> None:
    gone = WELL._replace(half_closed=True, silent=90.0)
    looks = {b"one": gone, b"two": gone._replace(silent=40.0, remote="198.51.100.8:1")}
    (found,) = findings(both(connections=looks))
    assert found.evidence == (
        "2 connections closed by the other side and not by the program, the longest for 90 s: "
        "198.51.100.7:5000 -> 192.0.2.1:80, held by process 7"
    )
