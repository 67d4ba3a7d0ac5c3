"""Random valid conversations in HTTP/2: per stream the same bytes and the same end,
stock and guarded. What fails says its seed.
"""

from __future__ import annotations

import random
import socket
from contextlib import contextmanager

import pytest

from scripts.guests import conversations
from scripts.guests.conversations import H2, Died, conversation, tried
from scripts.guests.kinds import Ask, Begin
from scripts.serving import free_port

COUNT = 40


@pytest.mark.slow
@pytest.mark.parametrize("column", H2)
def test_a_conversation_by_chance_has_the_same_end_stock_and_guarded(column):
    first = random.SystemRandom().randrange(1 << 30)
    count, differ = tried(H2[column], range(first, first + COUNT))
    assert (count, differ) == (COUNT, [])


def test_a_server_that_has_ended_is_named(monkeypatch):
    """hypercorn on trio, stock, ends by a frame for a stream that it has forgotten."""

    class Server:
        address = "127.0.0.1", free_port()

    @contextmanager
    def one_has_ended(*_):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            lives = Server()
            lives.address = listening.getsockname()
            yield Server(), lives

    monkeypatch.setattr(conversations, "pair", one_has_ended)
    with pytest.raises(Died, match=r"^the stock server has ended$"):
        tried(next(iter(H2.values())), range(1))


def test_a_conversation_is_made_of_its_seed_alone():
    assert conversation(7) == conversation(7)
    assert conversation(7) != conversation(8)


def test_a_conversation_wants_an_answer_for_each_stream():
    for seed in range(50):
        made = conversation(seed)
        assert isinstance(made.acts[0], Begin)
        assert len(made.answers) == sum(isinstance(act, Ask) for act in made.acts) >= 1
