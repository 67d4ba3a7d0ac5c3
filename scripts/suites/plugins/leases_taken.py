"""A plugin of pytest that counts the leases that a guard takes in the process of the
tests.

A run in which nothing was guarded would agree with every other. The count goes to a
file that `SUITES_LEASES` names, a line per process.
"""

from __future__ import annotations

import os
from importlib import import_module
from itertools import count
from typing import Any

COUNTED = count()


def pytest_configure() -> None:
    """Count each registration with the core: a connection, or a limit of one that has
    its own timer.
    """
    core = import_module("_idle_reaper.core.reaper").IdleReaper
    register = core.register

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        next(COUNTED)
        return register(self, *arguments, **options)

    core.register = counted


def pytest_sessionfinish() -> None:
    """Write the count."""
    with open(os.environ["SUITES_LEASES"], "a", encoding="ascii") as file:
        file.write(f"{next(COUNTED)}\n")
