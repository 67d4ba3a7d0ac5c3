"""The campaign's own claims: a loss is counted, an attacker that is closed is noticed, a page has the figures."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from scripts.campaign import __main__ as campaign
from scripts.campaign.clients import ATTACKS, Account, Talker, ask, attack

pytestmark = pytest.mark.slow


async def closes_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@contextlib.asynccontextmanager
async def server(handler):
    listening = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()


def test_clients_that_the_server_ends_are_lost_with_a_reason():
    async def main() -> Account:
        account = Account()
        async with server(closes_at_once) as address:
            assert await ask(address) == "answer: closed before the first byte"
            talker = Talker(address, account, 0.0)
            await talker.talk(lambda: False)
            assert talker.lost
        assert (await ask(address)).startswith("connect: ")
        return account

    account = asyncio.run(main())
    assert (account.asked, len(account.lost)) == (1, 1)


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attacker_holds_its_connection_until_it_is_closed_and_comes_again(kind):
    came = 0

    async def holds(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        with contextlib.suppress(OSError):
            await asyncio.wait_for(reader.read(1), 0.2) if kind != "silent" else await asyncio.sleep(0.2)
        writer.transport.abort()

    async def main() -> None:
        async with server(holds) as address:
            until = time.monotonic() + 30
            await attack(address, kind, lambda: came > 1 or time.monotonic() > until)

    asyncio.run(main())
    assert came > 1


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
