"""The unit is the server: of every name of every card that is taken away, exactly one
line is said, and nothing of the server is changed.
"""

from __future__ import annotations

import asyncio
import pkgutil
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from reaper.foreign import Foreign
from reaper.run import report
from reaper.servers import cards
from reaper.servers.guest import Card, Visit
from reaper.source import Reader
from tests.helpers.given_back import given_back

Name = tuple[str, str, str]
"""Module, class and name; the name is empty where the class itself is gone, and the
class where the name is the module's.
"""


def names_of(tables: tuple[Foreign, ...]) -> Iterator[Name]:
    """Every name of *tables*, and every class."""
    for table in tables:
        for place, names in table.names.items():
            module, _, path = place.partition(":")
            yield from ((module, path, name) for name in names.split())
            if path:
                yield module, path, ""


@contextmanager
def without(gone: Name) -> Iterator[None]:
    """Within the block the look-up does not find the name *gone*; that a real look-up
    finds what is there, and no more, is in test_foreign.py and test_source.py.
    """
    module, path, name = gone
    known = Reader.known

    def instead(self: Reader, of: str, where: str, wanted: set[str]) -> set[str] | None:
        if (of, where) != (module, path):
            return known(self, of, where, wanted)
        if not name:
            return None
        return (known(self, of, where, wanted) or set()) - set(name.split("|"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "known", instead)
        yield


def found(card: Card) -> list[Any]:
    """The modules and the classes that the guest of *card* could change."""
    places = [place for table in card.tables for place in table.names]
    objects: list[Any] = [BaseEventLoop, *map(import_module, card.changes)]
    for place in places:
        module, _, path = place.partition(":")
        objects.append(getattr(import_module(module), path) if path else import_module(module))
    return objects


def uvicorn(kind: str) -> bool:
    """Whether a `Config` names the protocol that it was given."""
    from uvicorn import Config

    made = Config("app", http="httptools")
    return bool(made.http == "httptools" and made.loop == "auto")


def gunicorn(kind: str) -> bool:
    """Whether a `Config` has gunicorn's own worker, each time that it is asked."""
    from gunicorn.config import Config

    made = Config()
    made.set("worker_class", "asgi" if kind == "gunicorn-asgi" else "gthread")
    return all(made.worker_class.__module__.startswith("gunicorn.") for _ in range(3))


def anyio(kind: str) -> bool:
    """Whether the listeners of a program are anyio's own."""
    from anyio._core import _sockets

    async def main() -> bool:
        made = await _sockets.create_tcp_listener(local_host="127.0.0.1")
        await made.aclose()
        return all("accept" not in vars(each) for each in made.listeners)

    return asyncio.run(main())


def at_once(kind: str) -> bool:
    """True: whoever has changed nothing when the modules are loaded changes nothing."""
    return True


USES: dict[str, Callable[[str], bool]] = {"uvicorn": uvicorn, "gunicorn": gunicorn, "anyio": anyio}
"""How those are used that look up the names of a kind when that is asked for."""


def looked_up(card: Card, gone: Name) -> list[str]:
    """The kinds of *card* that are served when the name *gone* is looked up: the first
    one is enough where all need it.
    """
    of_all = gone in set(names_of(card.needs))
    kinds = [kind.name for kind in card.kinds if gone in set(names_of(kind.needs))]
    return [""] if of_all else kinds


@pytest.mark.parametrize("card", cards.cards(), ids=lambda card: card.name)
def test_a_name_that_is_gone_is_one_line_and_nothing_is_changed(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(report, "_say", lambda message, text: said.append(text))
    objects, wrong = found(card), list[tuple[Any, ...]]()
    use = USES.get(card.name, at_once)
    for gone in dict.fromkeys(names_of(card.tables)):
        for kind in looked_up(card, gone):
            said.clear()
            with given_back(objects) as before, without(gone):
                visit = Visit(card, report, False)
                for name, change in card.changes.items():
                    if not kind or change.kind in ("", kind):
                        visit.guard(import_module(name))
                changed = [dict(vars(each)) for each in objects] != before
                late = bool(kind or card.library) and card.name in USES
                stock = use(kind or card.kinds[-1].name)
            if len(said) != 1 or "is not guarded: " not in said[0]:
                wrong.append((gone, kind, said[:]))
            if not stock or (changed and not late):
                wrong.append((gone, kind, "changed"))
    assert not wrong


def test_the_names_of_every_kind_are_looked_up_for_it() -> None:
    for card in cards.cards():
        assert all(looked_up(card, gone) for gone in names_of(card.tables))


OF_OBJECTS = {
    ("anyio._backends._asyncio:TCPSocketListener", "accept"),
    ("asyncio.base_events:Server", "close"),
    ("twisted.internet.tcp:Server", "_dataReceived"),
}
"""Names that are replaced of single objects, when the program makes them."""


def replaced(card: Card) -> set[tuple[str, str]]:
    """The places and names that the tables of *card* say are replaced, as far as the
    installed versions have them.
    """
    tables = (*card.tables, *card.promised)
    return {
        (place, name)
        for table in tables
        for place, names in table.replaced.items()
        for each in names
        for name in each.partition(".")[0].split("|")
        if hasattr(pkgutil.resolve_name(place.rstrip(":")), name)
    }


@pytest.mark.parametrize("card", cards.cards(), ids=lambda card: card.name)
def test_the_tables_say_which_names_are_replaced(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REAPER_TIMEOUTS_ABANDONED", "5s")  # it asks for one more
    tables = (*card.tables, *card.promised)
    places = {place for table in tables for place in table.names}
    objects = {place: pkgutil.resolve_name(place.rstrip(":")) for place in places}
    with given_back(list(objects.values())) as before:
        for module in card.changes:
            Visit(card, report, False).guard(import_module(module))
        had = dict(zip(objects, before, strict=True))
        changed = {
            (place, name)
            for place, each in objects.items()
            for name, value in vars(each).items()
            if had[place].get(name) is not value
        }
    assert changed | OF_OBJECTS & replaced(card) == replaced(card)


def test_a_change_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_say", lambda message, text: None)
    for name, use in USES.items():
        card = cards.card_of(name)
        monkeypatch.setattr(Visit, "listens", lambda *_, **__: SimpleNamespace())
        with given_back(found(card)):
            visit = Visit(card, report, False)
            for module in card.changes:
                visit.guard(import_module(module))
            assert not use(card.kinds[-1].name), name
