"""Random valid conversations in HTTP/2: per stream the same bytes and the same end,
stock and guarded. What fails says its seed.
"""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import contextmanager

import pytest

from loadgen.plan.acts import Ask, Begin
from scripts.guests import conversations
from scripts.guests.conversations import H2, Died, conversation, tried
from scripts.serving import free_port

COUNT = 40
NOWHERE = "127.0.0.1", 0


@pytest.mark.slow
@pytest.mark.parametrize("column", H2)
def test_a_conversation_by_chance_has_the_same_end_stock_and_guarded(column):
    first = random.SystemRandom().randrange(1 << 30)
    found = tried(H2[column], range(first, first + COUNT))
    assert (found.count, found.wrong) == (COUNT, [])


class Server:
    """One that has ended, unless it gets an address."""

    def __init__(self, address=None):
        self.address = address or ("127.0.0.1", free_port())


@contextmanager
def one_has_ended(*_):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Server(), Server(listening.getsockname())


async def listens(address):
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError:
        return False
    return True


def test_a_server_that_ends_each_time_is_named(monkeypatch):
    """hypercorn on trio, stock, ends by a frame for a stream that it has forgotten."""
    monkeypatch.setattr(conversations, "pair", one_has_ended)
    monkeypatch.setattr(conversations, "answers", listens)
    monkeypatch.setattr(conversations, "MOST_ENDS", 3)
    with pytest.raises(Died, match=r"^the stock server has ended$"):
        tried(next(iter(H2.values())), range(10))


def test_a_server_that_has_ended_is_started_anew_and_all_are_compared(monkeypatch):
    held = []

    async def two_end_it(seed, stock, guarded):
        held.append(seed)
        if seed == 30 or (seed == 50 and held.count(50) == 1):
            raise ConnectionRefusedError
        return "", False

    monkeypatch.setattr(conversations, "pair", one_has_ended)
    monkeypatch.setattr(conversations, "answers", listens)
    monkeypatch.setattr(conversations, "held", two_end_it)
    found = tried(next(iter(H2.values())), range(70))
    assert set(held) == set(range(70))
    assert (found.count, found.wrong, found.ended) == (70, [], {"stock": 4})
    assert found.stock == ["seed 30: ends the stock server"]


def test_what_is_lost_with_a_server_that_ends_is_held_again(monkeypatch):
    pairs = []

    @contextmanager
    def next_pair(*arguments):
        pairs.append(arguments)
        with one_has_ended() as servers:
            yield servers

    async def lost_from_15_on(seed, stock, guarded):
        return ("no end" if len(pairs) == 1 and seed >= 15 else ""), False

    async def well(address):
        return len(pairs) > 1

    monkeypatch.setattr(conversations, "pair", next_pair)
    monkeypatch.setattr(conversations, "held", lost_from_15_on)
    monkeypatch.setattr(conversations, "answers", well)
    found = tried(next(iter(H2.values())), range(40))
    assert (found.count, found.differ, found.stock) == (40, [], [])


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [({"guarded": 2}, 0), ({"guarded": 3}, 1), ({"stock": 6, "guarded": 3}, 0)],
)
def test_a_guarded_server_may_end_by_chance_and_no_more_often_than_stock(ended, wrong):
    found = conversations.Compared()
    found.ended.update(ended)
    assert len(found.wrong) == wrong


@pytest.mark.parametrize(
    ("says", "differ", "stock"),
    [
        ([("no end", False)] * 20, 1, 0),
        ([("no end", False), ("", False)], 0, 0),
        ([("no end", True)], 0, 1),
        ([("no end", False), ("no end", False), ("", True)], 0, 1),
    ],
)
def test_what_the_stock_server_loses_too_is_not_the_guards_doing(monkeypatch, says, differ, stock):
    said = iter(says)

    async def next_of_them(*_):
        return next(said)

    async def well(address):
        return True

    found = conversations.Compared()
    monkeypatch.setattr(conversations, "held", next_of_them)
    monkeypatch.setattr(conversations, "answers", well)
    asyncio.run(conversations.compare(range(1), NOWHERE, NOWHERE, found))
    assert (len(found.differ), len(found.stock), found.count) == (differ, stock, 1)


def test_a_conversation_is_made_of_its_seed_alone():
    assert conversation(7) == conversation(7)
    assert conversation(7) != conversation(8)


def test_a_conversation_wants_an_answer_for_each_stream():
    for seed in range(50):
        made = conversation(seed)
        assert isinstance(made.acts[0], Begin)
        assert len(made.answers) == sum(isinstance(act, Ask) for act in made.acts) >= 1
