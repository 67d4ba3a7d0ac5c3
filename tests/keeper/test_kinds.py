"""The five kinds that projects write fail the kit, and reaper's keepers pass it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import reaper.asyncio
import reaper.threads
import reaper.trio
from reaper.testing import NotConforming, on_asyncio, on_threads, on_trio
from scripts.keepers.kinds import KINDS, Kind


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Ends that raise and stalls are logged."""
    logging.getLogger("reaper").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("reaper").setLevel(logging.NOTSET)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_that_projects_write_fails_the_kit(name: str) -> None:
    # With the loop's clock for all: it is not the wall clock that fails here.
    kind: Any = type(name, (KINDS[name],), {"now": Kind.now})
    with pytest.raises(NotConforming):
        on_asyncio.check_keeper(kind.open)


def test_the_keepers_of_loops_pass_it() -> None:
    on_asyncio.check_keeper(reaper.asyncio.open_keeper)
    on_trio.check_keeper(reaper.trio.open_keeper)


@pytest.mark.slow
def test_the_keeper_of_threads_passes_it() -> None:
    on_threads.check_keeper(reaper.threads.open_keeper)
