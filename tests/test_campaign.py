"""Claims of the campaign itself: a loss is counted, a last answer is waited for, the page has the figures."""

from __future__ import annotations

import asyncio
import time

from loadgen.clients import HTTP, Account, keep_talking
from scripts.campaign import __main__ as campaign
from scripts.campaign import trials


def test_clients_that_the_server_ends_are_lost_and_fail_a_trial():
    async def closes(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def main() -> Account:
        account = Account()
        async with await asyncio.start_server(closes, "127.0.0.1", 0) as listening:
            await keep_talking(listening.sockets[0].getsockname(), lambda: False, account, 0.01)
            await asyncio.sleep(0.05)
        return account

    found = trials.outcome(asyncio.run(main()), rounds=1)
    assert (found.passed, found.figures["lost"], len(found.failures)) == (False, 1, 1)


def test_a_talker_waits_for_its_last_answer_and_is_not_lost():
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    async def main() -> Account:
        account = Account()
        until = time.monotonic() + 0.1
        async with await asyncio.start_server(slow, "127.0.0.1", 0) as listening:
            address = listening.sockets[0].getsockname()
            await keep_talking(address, lambda: time.monotonic() > until, account, 0.8, HTTP)
            await asyncio.sleep(0.05)
        return account

    account = asyncio.run(main())
    assert (account.asked, account.lost) == (1, [])


def test_the_page_has_the_figures_of_the_report(tmp_path, monkeypatch):
    page = tmp_path / "reliability.md"
    page.write_text(f"before\n{campaign.BEGIN}\nold\n{campaign.END}\nafter\n")
    monkeypatch.setattr(campaign, "PAGE", page)
    trial = {"name": "pause", "claim": "none is lost", "unseen": "the rest", "failures": ["3 x EOF"], "passed": False}
    campaign.document({"about": campaign.about(), "minutes": 3, "trials": [{**trial, "figures": {"asked": 1234}}]})
    said = page.read_text()
    assert "| pause | none is lost | **FAIL**: 3 x EOF | asked: 1,234 | the rest |" in said
    assert said.startswith("before\n")
    assert said.endswith("after\n")
    assert "old" not in said
