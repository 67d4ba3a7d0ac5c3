"""Each trouble is found where it was planted, and none where all is well; by plain
values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reaper.doctor.facts import Connection, Door, Examination, Glances, Look, Process
from reaper.doctor.findings import TROUBLES, findings, spelled, unjudged
from reaper.doctor.streams import Streams, streams

WELL = Connection(
    local="192.0.2.1:80",
    remote="198.51.100.7:5000",
    pid=7,
    inode=70,
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
FULL = Glances((Door("192.0.2.1:80", 129, 128),))


def examined(connection: Connection = WELL, **last: Any) -> Examination:
    """Two looks, 30 s apart, at a server with one connection."""
    look = Look(1000.0, (SERVER,), {b"one": connection}, 5)
    return Examination("--pid 7", look, replace(look, at=1030.0, **last), 300.0)


def both(**changes: Any) -> Examination:
    """Two looks, 30 s apart, that show the same."""
    seen = examined()
    first = replace(seen.first, **changes)
    return replace(seen, first=first, last=replace(first, at=1030.0))


def glanced(glances: Glances, **last: Any) -> Examination:
    """Two looks at the same server, and what was seen between them."""
    return replace(examined(**last), glances=glances)


def handshakes(count: int, seconds: float) -> Glances:
    return Glances(handshakes={f"198.51.100.7:{n}": seconds for n in range(count)})


PLANTED = {
    "descriptors": examined(processes=(Process(7, "server", 900, 1024),)),
    "close-wait": examined(WELL._replace(half_closed=True, silent=90.0)),
    "silent": examined(WELL._replace(quiet=400.0, keeps_alive=True)),
    "half-open": glanced(handshakes(16, 9.0)),
    "takes-nothing": examined(WELL._replace(queued=50_000, quiet=20.0)),
    "no-keep-alive": examined(WELL._replace(quiet=400.0, waits_for_us=True)),
    "backlog": glanced(FULL, overflows=9),
    "proxy": replace(examined(), proxy=("keep_alive 5s is below nginx's", "sed a.toml")),
    "outgoing": examined(WELL._replace(incoming=False, quiet=400.0)),
}


@pytest.mark.parametrize(("kind", "seen"), PLANTED.items(), ids=PLANTED)
def test_a_planted_trouble_is_found_and_no_other(kind: str, seen: Examination) -> None:
    (found,) = findings(seen)
    assert found.kind == kind
    assert found.seen.mend


def test_a_connection_without_keep_alives_is_named_besides_its_silence() -> None:
    found = findings(examined(WELL._replace(quiet=400.0)))
    assert [one.kind for one in found] == ["silent", "no-keep-alive"]


def test_each_row_of_the_table_is_planted_above() -> None:
    assert {trouble.kind for trouble in TROUBLES} == set(PLANTED)


WELL_ENOUGH = {
    "all is well": examined(),
    "its client waits for an answer": examined(
        WELL._replace(quiet=400.0, waits_for_us=True, keeps_alive=True)
    ),
    "it has just been half closed": examined(WELL._replace(half_closed=True, silent=1.0)),
    "its descriptors do for now": examined(processes=(Process(7, "server", 800, 1024),)),
    "its process has no limit": examined(processes=(Process(7, "server", 900, -1),)),
    "its descriptors may not be seen": examined(processes=(Process(7, "server", None, 0),)),
    "many connect over a slow link": glanced(handshakes(400, 1.0)),
    "a few do not go on": glanced(handshakes(15, 60.0)),
    "a client has closed its half, and may wait for the answer": examined(
        WELL._replace(half_closed=True, silent=30.0, waits_for_us=True)
    ),
    "a queue was full and nobody was dropped": glanced(FULL),
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


def test_a_finding_counts_and_names_the_longest_and_who_holds_it() -> None:
    gone = WELL._replace(half_closed=True, silent=90.0)
    looks = {b"one": gone._replace(silent=40.0), b"two": gone._replace(remote="198.51.100.8:1")}
    (found,) = findings(both(connections=looks))
    assert found.record() == {
        "kind": "close-wait",
        "words": found.words,
        "evidence": "2 connections closed by the other side and not by the program",
        "count": 2,
        "seconds": 90.0,
        "example": "198.51.100.8:1 -> 192.0.2.1:80, held by process 7 (server)",
        "mend": "reaper doctor --pid 7 --for 5s --mend close-wait",
    }


def test_more_descriptors_than_the_hard_limit_are_asked_for_only_at_that_limit() -> None:
    for hard, flag in ((20_000, "--nofile=20000:"), (1024, "--nofile=65536:65536")):
        (found,) = findings(examined(processes=(Process(7, "server", 900, 1024, hard),)))
        assert found.seen.mend == f"prlimit {flag} --pid 7"


def test_a_server_that_is_about_to_end_is_not_mended_by_its_process_id() -> None:
    crowded = Process(7, "server", 900, 1024, 1024, command=("serve", "a b"))
    (found,) = findings(replace(examined(processes=(crowded,)), ends=True))
    assert found.seen.mend == "prlimit --nofile=65536:65536 serve 'a b'"


def test_a_server_in_another_network_namespace_is_mended_in_that() -> None:
    (found,) = findings(replace(glanced(handshakes(40, 9.0)), within=7))
    assert found.seen.mend.startswith("nsenter --net --target 7 sysctl -w ")


def test_what_was_not_judged_is_counted_and_said() -> None:
    assert unjudged(examined()) == []
    hidden = examined(
        WELL._replace(quiet=400.0, keeps_alive=None, incoming=None),
        processes=(Process(7, "server", None, 0),),
    )
    short = replace(hidden, last=replace(hidden.last, at=hidden.first.at + 1.0))
    assert [one.partition(":")[0] for one in unjudged(short)] == [
        "descriptors",
        "no-keep-alive, outgoing",
        "silent",
        "takes-nothing",
        "half-open",
    ]


def test_a_half_closed_connection_that_is_too_young_to_be_judged_is_counted() -> None:
    young = WELL._replace(half_closed=True, silent=30.0, waits_for_us=True)
    assert [one.split(" may")[0] for one in unjudged(both(connections={b"one": young}))] == [
        "close-wait: 1 half-closed connection"
    ]
    old = young._replace(silent=90.0)
    assert unjudged(both(connections={b"one": old})) == []


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(45.2, "45 s"), (119.0, "119 s"), (240.0, "4 min"), (7200.0, "2 h"), (2e5, "2 days")],
)
def test_a_length_of_time_is_spelled_for_people(seconds: float, said: str) -> None:
    assert spelled(seconds) == said


# ---- streams


def test_a_stream_is_what_is_written_into_while_its_client_says_nothing() -> None:
    stuck = WELL._replace(queued=50, silent=30.0)
    first = {
        b"stream": WELL,
        b"younger": WELL,
        b"takes nothing": stuck,
        b"takes nothing of more and more": stuck,
        b"has said something": WELL,
        b"idle": WELL,
        b"has asked nothing": WELL._replace(received=0),
        b"a pool": WELL._replace(incoming=False),
    }
    last = {
        b"stream": WELL._replace(acked=110, silent=7200.0),
        b"younger": WELL._replace(acked=110, silent=600.0),
        b"takes nothing": stuck._replace(silent=60.0),
        b"takes nothing of more and more": stuck._replace(queued=90, silent=60.0),
        b"has said something": WELL._replace(acked=110, received=110),
        b"idle": WELL,
        b"has asked nothing": WELL._replace(acked=110, received=0),
        b"a pool": WELL._replace(acked=110, incoming=False),
        b"new": WELL._replace(acked=110),
    }
    found = streams(replace(examined(connections=last), first=Look(1000.0, (), first)))
    assert found == Streams(4, 7200.0, 330.0, 2)
    assert found.record() == {"count": 4, "oldest": 7200.0, "median": 330.0, "unacknowledged": 2}
    assert str(found) == (
        "4 that wrote while their clients said nothing; the oldest for 2 h, half of them for 6 min "
        "or longer; 2 with a client that acknowledges nothing"
    )


def test_two_looks_that_are_close_do_not_say_who_acknowledges_nothing() -> None:
    seen = examined(WELL, connections={b"one": WELL._replace(acked=110, silent=9.0)})
    found = streams(replace(seen, last=replace(seen.last, at=1004.0)))
    assert found == Streams(1, 9.0, 9.0, None)
    assert "acknowledges" not in str(found)


def test_a_server_without_streams_says_nothing_of_them() -> None:
    assert streams(examined()).record() == {
        "count": 0,
        "oldest": None,
        "median": None,
        "unacknowledged": 0,
    }


DESERTED = {
    "somebody is there": (examined(), None, True),
    "who is too busy to tell is somebody": (examined(WELL._replace(incoming=None)), None, True),
    "nobody ever was": (both(connections={}), 30.0, False),
    "the server's own connections are nobody": (
        both(connections={b"one": WELL._replace(incoming=False)}),
        30.0,
        False,
    ),
    "somebody was there at first": (examined(connections={}), 30.0, True),
    "somebody was there at a glance": (
        glanced(Glances(somebody=1018.0), connections={}),
        12.0,
        True,
    ),
    "somebody came between": (
        replace(both(connections={}), glances=Glances(somebody=1029.0)),
        1.0,
        True,
    ),
}


@pytest.mark.parametrize("name", DESERTED)
def test_it_says_for_how_long_nobody_has_been_connected(name: str) -> None:
    seen, seconds, visited = DESERTED[name]
    assert (seen.deserted, seen.ever_visited) == (seconds, visited)
