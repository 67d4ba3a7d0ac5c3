"""PySpark's functions, from the engine that answers: one program runs on both.

The rule of this module: *PySpark is imported only where Spark answers*. Product code
writes `F.col("conn")`, as every Spark program does; what `F` and `Window` are is
decided when they are asked.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["F", "Window", "answering", "here", "use"]

ENGINES = {"spark": f"{__package__}.spark", "embedded": f"{__package__}.embedded"}
"""The modules with what PySpark has no function for; both have the same functions."""
WORDS = {"spark": "pyspark.sql", "embedded": ENGINES["embedded"]}
"""The modules that have `functions` and `Window`."""

_answering = "spark"


def use(name: str) -> str:
    """Let the engine *name*, one of `ENGINES`, answer in this process from now on.
    Returns the name of the one before.
    """
    global _answering
    before, _answering = _answering, name
    return before


def answering() -> str:
    """The name of the engine that answers."""
    return _answering


def here() -> Any:
    """The module of the engine that answers."""
    return import_module(ENGINES[_answering])


class _Answering:
    """PySpark's module or class *name*, looked up in the engine that answers when it is
    used.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(import_module(WORDS[_answering]), self._name), name)


if TYPE_CHECKING:
    from pyspark.sql import Window as Window
    from pyspark.sql import functions as F  # noqa: N812
else:
    F = _Answering("functions")
    Window = _Answering("Window")
