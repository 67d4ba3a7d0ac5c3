"""The guests of servers: when one is changed, when it is left alone, when it is
refused.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from reaper.foreign import PYTHON, Foreign, missing, untested
from reaper.run import report
from reaper.servers.cards import cards
from reaper.servers.guest import Card, Change, Kind, Visit, around

Heard = list[dict[str, Any]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What is said of servers, instead of being said."""
    found: Heard = []
    monkeypatch.setattr(report, "_say", lambda message, text: found.append(message))
    return found


def fails(module: ModuleType, visit: Visit) -> None:
    raise RuntimeError("odd")


def marks(module: ModuleType, visit: Visit) -> None:
    module.guarded = True  # type: ignore[attr-defined]


NEEDS = Foreign("pytest", ("0.1", "0.2"), {"odd:Config": "load"})


def visit(changes: Callable[[ModuleType, Visit], None], *, strict: bool) -> Visit:
    """A visit by the card of a server whose only module is `odd`."""
    card = Card(
        title="odd",
        needs=(NEEDS,),
        kinds=(Kind("odd", "odd", {}),),
        changes={"odd": Change(changes)},
        done="nothing",
        page="odd",
    )
    return Visit(card, report, strict)


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch, has: list[str]) -> ModuleType:
    """A server's module that is imported, whose `Config` has the attributes *has*."""
    module = ModuleType("odd")
    module.Config = type("Config", (), dict.fromkeys(has, fails))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd", module)
    return module


CASES: list[tuple[list[str], Callable[[ModuleType, Visit], None], list[str], str]] = [
    (
        [],
        fails,
        ["it has no Config.load; tested with 0.1 to 0.2"],
        "does not fit: it has no Config.load",
    ),
    (["load"], marks, [], "tested with 0.1 to 0.2"),
    (["load"], fails, ["RuntimeError: odd"], "tested with 0.1 to 0.2"),
]
KINDS = ["it lacks a name", "its version was not tested", "the change fails"]


@pytest.mark.parametrize(("has", "changes", "why", "refused"), CASES, ids=KINDS)
def test_a_server_is_guarded_though_its_version_is_new_and_otherwise_left_alone(
    odd: ModuleType,
    changes: Callable[[ModuleType, Visit], None],
    why: list[str],
    refused: str,
    heard: Heard,
) -> None:
    visit(changes, strict=False).guard(odd)
    assert ([message["why"] for message in heard], hasattr(odd, "guarded")) == (why, not why)


@pytest.mark.parametrize(("has", "changes", "why", "refused"), CASES, ids=KINDS)
def test_a_server_that_does_not_fit_or_was_not_tested_is_refused_if_strict(
    odd: ModuleType,
    changes: Callable[[ModuleType, Visit], None],
    why: list[str],
    refused: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as error:
        visit(changes, strict=True).guard(odd)
    assert error.value.code == 2
    assert refused in capsys.readouterr().err


def test_the_versions_installed_here_are_those_that_are_said_to_be_tested() -> None:
    tables = {table for card in cards() for table in card.tables}
    wrong = {
        str(table): table.tested[1]
        for table in tables
        if table.package != PYTHON and table.version and table.version != table.tested[1]
    }
    assert not wrong
    assert not untested(tables)


def test_all_that_guests_need_is_there() -> None:
    assert missing({table for card in cards() for table in card.tables}) == ""


@pytest.mark.parametrize("has", [["load"]])
def test_a_change_that_fails_halfway_is_changed_back(odd: ModuleType, heard: Heard) -> None:
    class Base:
        def inherited(self) -> None: ...

    class Kind(Base):
        def own(self) -> None: ...

    def changes(module: ModuleType, visit: Visit) -> None:
        for name in ("own", "inherited", "own"):
            around(Kind, name)(lambda method: lambda *_: None)
        raise RuntimeError("odd")

    before = dict(vars(Kind))
    visit(changes, strict=False).guard(odd)
    assert dict(vars(Kind)) == before
    assert [message["why"] for message in heard] == ["RuntimeError: odd"]


def test_a_coroutine_function_that_is_wrapped_stays_one() -> None:
    class Kind:
        async def method(self) -> int:
            return 1

    @around(Kind, "method")
    def more(method: Any) -> Any:
        async def instead(self: Any) -> int:
            return int(await method(self)) + 1

        return instead

    assert inspect.iscoroutinefunction(Kind.method)
    assert asyncio.run(Kind().method()) == 2
