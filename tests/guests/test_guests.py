"""Every guest with the quick half of all kinds of clients, stock and guarded side by
side.

No cell is worse than the stock server's but those that `scripts.guests.named` names,
and each row there is true.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import cast

import pytest

from loadgen.conform.judge import End, judged
from loadgen.conform.kinds import LEFT, LEFT_OTHERS
from loadgen.plan.acts import Kind
from loadgen.playing.play import played
from scripts import marked
from scripts.guests.__main__ import (
    BEGIN,
    BEGIN_STREAMS,
    END,
    END_STREAMS,
    HOLD_STREAMS,
    OF_STREAMS,
    PAGE,
    STREAMS,
    measured,
    paragraphs,
    said,
    streams,
)
from scripts.guests.apps.programs import answer_to, line_answer
from scripts.guests.columns import COLUMNS
from scripts.guests.lengths import LENGTHS
from scripts.guests.named import HOLDS, NAMED, faults
from scripts.guests.trial import COARSE, KINDS, Cell

LIVES = next(kind for kind in KINDS.values() if kind.lives)
DIES = next(kind for kind in KINDS.values() if kind.says)


@pytest.mark.slow
@pytest.mark.parametrize("column", [each.name for each in COLUMNS.values() if each.quick])
def test_no_client_is_worse_off_than_with_the_stock_server(column):
    cells, holds = measured(COLUMNS[column], quick=True)
    assert faults(column, cells, holds, coarse=True) == []


def test_there_are_sixty_kinds_of_clients_and_no_two_have_one_name():
    assert len(KINDS) >= 60
    assert all(name == kind.name for name, kind in KINDS.items())


def test_every_guest_is_asked_by_clients_that_live_and_by_dead_ones():
    for column in COLUMNS.values():
        mine = [kind for kind in KINDS.values() if kind.speaks in column.speaks and kind.quick]
        assert {kind.lives for kind in mine} == {True, False}, column.name


def cell(kind: Kind, stock: End, guarded: End) -> Cell:
    return Cell(kind, stock, guarded, lag=0.0)


@pytest.mark.parametrize(
    ("stock", "guarded", "worse"),
    [(True, True, False), (True, False, True), (False, False, False), (False, True, False)],
)
def test_a_live_client_may_lose_what_stock_loses_and_nothing_more(stock, guarded, worse):
    assert bool(cell(LIVES, End(kept=stock), End(kept=guarded)).wrong) is worse


@pytest.mark.parametrize(("after", "worse"), [(1.2, False), (None, True), (2.2, True), (0.5, True)])
def test_a_dead_client_is_ended_in_its_time(after, worse):
    ended = End(kept=None, after=after, early=after, says=408)
    assert bool(cell(DIES, End(kept=None), ended).wrong) is worse


def test_a_client_whose_own_window_hides_its_end_is_not_held():
    hidden = End(kept=None, behind=True)
    assert hidden.words == "ended unseen"
    assert not cell(DIES, End(kept=None), hidden).wrong
    assert cell(DIES, End(kept=None), End(kept=None)).wrong


def test_a_cell_says_which_longer_limit_has_ended_a_client():
    ended = End(kept=None, after=LENGTHS["keep_alive"] + 0.1, early=LENGTHS["keep_alive"] + 0.1)
    red = Cell(DIES, End(kept=None), ended, lag=0.0, late=COARSE)
    assert DIES.limit == "headers"
    assert red.wrong == "ended after 2.00 s, as `keep_alive` does, and not `headers`"
    assert not Cell(DIES, End(kept=None), ended, lag=1.0, late=COARSE).wrong


def test_no_two_limits_are_as_long_and_each_has_one():
    assert len(set(LENGTHS.values())) == len(LENGTHS)
    assert {kind.limit for kind in KINDS.values() if kind.world == "limits"} <= {
        "",
        "flood",
        *LENGTHS,
    }


def _answer(asked: bytes) -> bytes:
    path, _, number = asked.split()[1].decode().partition("?")
    body = answer_to(path, float(number or 0), b"")
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("kind", [*LEFT, LEFT_OTHERS[-1]], ids=lambda kind: kind.name)
@pytest.mark.parametrize("hears", [True, False], ids=["heard", "not heard"])
def test_who_has_left_is_counted_by_the_server(kind, hears, certificate, monkeypatch):
    """A server that looks whether its client is still there, and one that does not.
    Clients that took too long to leave may have met a limit instead.
    """
    context = None
    if kind.speaks == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    ends = b"\n" if kind.speaks == "lines" else b"\r\n\r\n"
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader, writer):
        talks.add(cast("asyncio.Task[None]", asyncio.current_task()))
        with suppress(OSError, asyncio.IncompleteReadError):
            while asked := await reader.readuntil(ends):
                while not hears and b"tell" in asked:  # it leaves at once
                    if reader.at_eof() or writer.is_closing():
                        writer.close()
                        return
                    await asyncio.sleep(0.01)
                writer.write(line_answer(asked) if kind.speaks == "lines" else _answer(asked))
        writer.close()

    async def main():
        async with await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context) as server:
            seen = await played(kind, server.sockets[0].getsockname(), 2.0)
            await asyncio.wait(talks)
        return seen

    monkeypatch.setattr("loadgen.playing.client.PROMPT", -1.0)  # nobody is as prompt
    found = judged(kind, asyncio.run(main()))
    assert found.kept is hears
    assert bool(found.doubt) is not hears


def test_what_a_stock_server_ends_early_itself_is_not_the_guards_doing():
    ended = End(kept=None, after=0.2, early=0.2)
    assert not cell(DIES, ended, ended).wrong


def test_a_close_without_the_status_that_http_has_for_it_is_red():
    ended = End(kept=None, after=1.1, early=1.1)
    assert cell(DIES, End(kept=None), ended).lacks == "does not say 408"


def test_a_red_cell_that_no_row_names_is_a_fault():
    red = cell(LIVES, End(kept=True), End(kept=False))
    assert len(faults("nobody's", {LIVES.name: red})) == 1


def test_objects_that_are_held_are_a_fault():
    assert len(faults("nobody's", {}, ["reaper.Lease +1,000"])) == 1


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.why[:40])
def test_a_row_whose_cells_are_all_green_is_a_fault(row):
    green = {
        name: cell(KINDS[name], End(kept=True), End(kept=True))
        for name in row.kinds
        if name != HOLDS and KINDS[name].lives
    }
    for name in row.kinds:
        if name != HOLDS and not KINDS[name].lives:
            after = LENGTHS.get(KINDS[name].limit, 1.0) + 0.1
            dead = End(kept=None, after=after, early=after, says=408)
            green[name] = cell(KINDS[name], dead, dead)
    mended = [each for each in faults(row.columns[0], green, []) if row.why in each]
    assert len(mended) == (0 if row.sometimes else 1)


def test_rows_name_guests_and_kinds_that_there_are():
    for row in NAMED:
        assert set(row.columns) <= set(COLUMNS)
        assert set(row.kinds) <= {*KINDS, HOLDS}


def test_the_page_has_a_paragraph_for_each_guest_and_keeps_those_of_the_others():
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert all(f"- **{column}**: " in written for column in COLUMNS)
    assert paragraphs({"cells": {}, "about": {}}) == written
    name, *_ = COLUMNS
    cells = {"asks": "kept", "goes": "**lost**", "sends": "1.1 s, 408"}
    report = {"cells": {name: cells}, "about": {name: {"commit": "c" * 40}}}
    changed = paragraphs(report)
    assert changed.count("\n- **") == written.count("\n- **")
    assert "red is *goes*" in " ".join(changed.split())


def test_the_page_has_a_row_for_each_client_that_holds_a_stream():
    told = cell(HOLD_STREAMS[0], End(None), End(None, 1.4, 1.4, how="RST_STREAM"))
    cells = {kind.name: said(told) for kind in HOLD_STREAMS}
    report = {
        "cells": dict.fromkeys(OF_STREAMS, cells),
        "about": {column: {"commit": "c" * 40} for column in OF_STREAMS},
    }
    made, shown = streams(report), marked.read(STREAMS, BEGIN_STREAMS, END_STREAMS)
    assert made.count("| 1.4 s, RST_STREAM") == len(HOLD_STREAMS) * len(OF_STREAMS)
    rows = [
        [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| ")]
        for text in (made, shown)
    ]
    assert rows[0] == rows[1]
