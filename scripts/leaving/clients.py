"""Clients of which most leave before their answer, at random instants and in all
manners: the load generator's, so that nothing of what is judged judges.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

from loadgen.conform.judge import judged
from loadgen.plan.acts import Kind, Reset, Rest, Send, Shut, Want
from loadgen.plan.requests import get
from loadgen.playing.client import Address
from loadgen.playing.play import played

PATIENCE = 90.0
"""Seconds that a client that stays waits for its answer."""


@dataclass
class Outcome:
    """What the clients saw.

    Attributes:
        left: How many left before their answer came.
        early: How many were answered before they would have left.
        stayed, answered: How many never left; how many of them had their own answer.
        waited, heard: The same of those that sent a FIN, and went on waiting.
        wrong: What those were told that had no answer of their own; the first few.
    """

    left: int = 0
    early: int = 0
    stayed: int = 0
    answered: int = 0
    waited: int = 0
    heard: int = 0
    wrong: list[str] = field(default_factory=list)


async def leave(address: Address, count: int, at_once: int, longest: float, seed: int) -> Outcome:
    """Have *count* clients ask for `/work`, *at_once* at a time.

    Of ten, one stays, one sends a FIN and waits, and eight leave at an instant drawn
    from 0 to *longest* seconds: half by a close, half by a reset.
    """
    chance = random.Random(seed)
    outcome = Outcome()
    turn = asyncio.Semaphore(at_once)

    async def client(number: int) -> None:
        async with turn:
            await _client(outcome, address, number, chance.random() * longest)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(client(number))
    return outcome


def kind_of(number: int, patience: float) -> Kind:
    """What the client with that *number* does, *patience* seconds at most if it
    leaves.
    """
    asks, mine = Send(get(f"/work?n={number}")), Want(str(number).encode())
    match number % 10:
        case 0:
            return Kind(name="stays", acts=(asks,), answers=(mine,))
        case 1:
            return Kind(name="half-closes, and waits", acts=(asks, Shut()), answers=(mine,))
        case manner:
            ends = (Reset(),) if manner % 2 else ()
            return Kind(name="leaves", acts=(asks, *ends, Rest(patience)))


async def _client(outcome: Outcome, address: Address, number: int, patience: float) -> None:
    kind = kind_of(number, patience)
    seen = await played(kind, address, PATIENCE)
    if not kind.answers:
        outcome.early += bool(seen.data)
        outcome.left += not seen.data
        return
    end, stays = judged(kind, seen), kind.name == "stays"
    outcome.stayed += stays
    outcome.waited += not stays
    if end.kept:
        outcome.answered += stays
        outcome.heard += not stays
    elif len(outcome.wrong) < 5:
        outcome.wrong.append(f"{number}: {end.about}")


async def state_of(address: Address) -> dict[str, Any]:
    """What the application says of its requests."""
    asks = Kind(name="looks", acts=(Send(get("/state")),), answers=(Want(None),))
    ((_, said),) = (await played(asks, address, PATIENCE)).answers
    found: dict[str, Any] = json.loads(said)
    return found
