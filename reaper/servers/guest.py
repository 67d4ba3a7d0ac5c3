"""A guest in a server that others wrote: what is changed there, which names that needs,
and which versions were tested.

One rule: *nothing is changed unless every name is there*: of the server, and of what it
is built on. The unit is the server: all its names are looked up before the first of its
modules is changed. A server that lacks one of them is left alone, and a line says so;
`--strict` ends the program with status 2 instead. An exception in here never reaches
the program, and what had been changed is changed back.

A room of `reaper.servers` has its names in `names.py`, what it changes in `changes.py`,
and a `Card` in `card.py` that says all the rest of it; none of them imports anything of
the server until the program has. `cards` finds them.

Many programs import a library and never serve by it. They are left in peace: before the
program has the library listen, no name is looked up, and nothing is said or refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, Protocol

from ..config.effects import Column, said, without_effect
from ..config.settings import DEFAULT, ReaperConfig
from ..errors import one_line
from ..foreign import Foreign, missing, untested

PACKAGE = __name__.partition(".")[0]
"""The name of this library in this process: `_idle_reaper` where `reaper run` has
imported it.
"""

SHOWN = ("idle", "first_byte", "headers", "body", "keep_alive", "write", "tunnel", "vanished")
"""The timeouts that are named where a server listens, if they act in it."""

SERVING: set[str] = set()
"""The libraries that have been asked to listen in this process."""

_made: list[tuple[Any, str, Any]] | None = None
"""What a guest has changed so far: whose name, and what stood there; `_NOTHING`: it was
inherited. None: no guest is at work.
"""
_NOTHING = object()

Around = Callable[[Any, str], Callable[[Callable[[Any], Any]], None]]
"""As `around`."""


def silence(config: ReaperConfig) -> str:
    """The timeout that holds for a silent connection of plain bytes: `idle` if *config*
    sets it, else `tunnel`. The default of `idle` is too short for a program that has
    not asked for it.
    """
    return "tunnel" if config.origin("timeouts.idle") == DEFAULT else "idle"


class Host(Protocol):
    """Lets guests in, and says what becomes of a server: `reaper.run.report`."""

    def load(self) -> ReaperConfig:
        """The settings in force."""

    def judge(self) -> None:
        """End the program with status 2 if its settings cannot be used."""

    def is_set(self, name: str) -> bool:
        """Whether the timeout *name* was set anywhere."""

    def alone(self) -> bool:
        """Whether a server that is left alone here is not watched from outside."""

    def guarded(
        self, server: str, sockets: Iterable[Any], limits: Mapping[str, float], vain: str = ""
    ) -> None:
        """Say that *server* listens on *sockets* and is guarded."""

    def left_alone(self, server: str, why: str) -> None:
        """Say that *server* is not guarded."""

    def refuse(self, why: str) -> NoReturn:
        """Say *why*, and end the program with status 2."""


@dataclass(frozen=True)
class Kind(Column):
    """One kind of a server, such as one of its workers or loops.

    Attributes:
        name: Begins with the name of the room.
        needs: The names that this kind needs beside those of its server.
        called: What follows the server's name where this kind does not fit, such as
            `'s ThreadWorker`.
        serves: Where the class of its connections is in the room, `module:Class`; what
            acts by `Served` is what that class overrides. Empty: its connections are
            guarded by a protocol of ours.
        starts: The command that starts it, with `{asgi}` or `{wsgi}` for an
            application and `{port}`; empty: programs import it.
        under: The room of the server that runs in it, whose card then holds; empty:
            none.
    """

    needs: tuple[Foreign, ...] = ()
    called: str = ""
    serves: str = ""
    starts: str = ""
    under: str = ""


class Change(NamedTuple):
    """What is done when the program has imported a module.

    Attributes:
        make: Makes the change; called with the module, and with what it may say of the
            server.
        kind: The kind that is changed there; empty: all kinds.
    """

    make: Callable[[ModuleType, Visit], None]
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """All that is to be said of a server, for the rest of reaper.

    Attributes:
        title: Its name, for people.
        needs: The names that every kind of it needs, of the server, which is first, and
            of the packages below it. Nothing is changed unless all of them are there.
        promised: Names that others have promised, and that are replaced or overridden:
            they are not looked up.
        spared: Names that it gets along without (`Foreign.without`).
        besides: Names that are looked up, too, where the program asks for more; by what
            it asks, for people.
        kinds: Its kinds, and what acts in each; the first is meant where none is named.
        changes: What is changed, by the module that the program imports.
        done: What that is, for people, in a cell of a table.
        page: Its page in docs/settings/.
        family: Servers of one family stand side by side in the second table of
            docs/run.md; empty: it stands in the first.
        own: Timeouts that stay the server's own unless the settings have them, and
            where the server takes them from.
        note: Which of its kinds are guarded, for people; empty: all.
        below: The packages beside its own that the modules of its room import at their
            top.
        library: Whether programs import it that do not serve by it. Then a change is
            made before a name is looked up, may wrap only what the package has
            promised, and calls `Visit.serves` and `Visit.fits` there.
    """

    title: str
    needs: tuple[Foreign, ...]
    kinds: tuple[Kind, ...]
    changes: Mapping[str, Change]
    done: str
    page: str
    promised: tuple[Foreign, ...] = ()
    spared: tuple[Foreign, ...] = ()
    besides: Mapping[str, tuple[Foreign, ...]] = field(default_factory=dict)
    family: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    below: tuple[str, ...] = ()
    library: bool = False

    @property
    def name(self) -> str:
        """The server's name on PyPI."""
        return self.needs[0].package

    @property
    def tables(self) -> tuple[Foreign, ...]:
        """The names that it and all its kinds need."""
        every = (*self.needs, *(table for kind in self.kinds for table in kind.needs))
        return tuple(dict.fromkeys(every))

    @property
    def is_there(self) -> bool:
        """Whether the program serves by it, as far as is known: it has imported a
        module that is changed. A library must also have listened.
        """
        return (
            self.name in SERVING
            if self.library
            else not sys.modules.keys().isdisjoint(self.changes)
        )

    def kind(self, name: str = "") -> Kind:
        """The kind *name*; empty: the first."""
        return next(each for each in self.kinds if name in ("", each.name))

    def limits(self, config: ReaperConfig) -> tuple[str, ...]:
        """The timeouts that are named where it listens."""
        acts = [name for name in SHOWN if f"timeouts.{name}" in self.kinds[0].acts]
        if "idle" not in acts:
            return tuple(acts)
        # Of these two, one holds.
        return (silence(config), *(name for name in acts if name not in ("idle", "tunnel")))

    def in_force(self, config: ReaperConfig) -> dict[str, float]:
        """Those timeouts by *config*, in seconds; 0: none."""
        return {name: getattr(config.timeouts, name) for name in self.limits(config)}

    def __str__(self) -> str:
        return str(self.needs[0])


@dataclass(frozen=True)
class Visit:
    """A guest in a program: what it may ask, and what it reports of its server. There
    is one for each card.

    Attributes:
        card: Whose visit it is.
        host: Who has let it in.
        strict: Whether the program is ended where the server does not fit, or was not
            tested.
    """

    card: Card
    host: Host
    strict: bool
    _known: dict[tuple[Foreign, ...], bool] = field(default_factory=dict)

    def guard(self, module: ModuleType) -> None:
        """Change *module*, which has just been imported.

        Raises:
            SystemExit: the settings cannot be used; or the server does not fit, and
                `strict` is set.
        """
        global _made
        if not self.card.library:
            self.host.judge()
        change = self.card.changes[module.__name__]
        _made = []
        try:
            if self.card.library or self.fits(change.kind):
                change.make(module, self)
        except Exception as error:  # the program goes on without us
            for kind, name, had in reversed(_made):
                if had is _NOTHING:
                    delattr(kind, name)
                else:
                    setattr(kind, name, had)
            self.misfit(f"{type(error).__name__}: {one_line(error)}")
        finally:
            _made = None

    def fits(self, kind: str = "", *more: Foreign) -> bool:
        """Whether all names are there that this *kind* of the server needs, and those
        of *more*. They are looked up once; if some are not, the first call says so.

        Raises:
            SystemExit: they are not, or a package was not tested, and `strict` is set.
        """
        if not self._has(self.card.needs):
            return False
        if not kind:
            return True
        meant = self.card.kind(kind)
        return self._has((*meant.needs, *more), meant.called)

    def _has(self, needs: tuple[Foreign, ...], called: str = "") -> bool:
        if needs not in self._known:
            why = missing(needs, self.card.name)
            if not why and self.strict:
                why = untested(needs, self.card.name)
            self._known[needs] = not why
            if why:
                self.misfit(why, called)
        return self._known[needs]

    def serves(self) -> None:
        """Note that the program is about to have the library listen.

        Raises:
            SystemExit: the settings cannot be used.
        """
        self.host.judge()
        SERVING.add(self.card.name)

    def misfit(self, why: str, kind: str = "") -> None:
        """Report that the server, or this *kind* of it, does not fit, because of *why*.

        Raises:
            SystemExit: `strict` is set.
        """
        if self.strict:
            self.host.refuse(f"{self.card}{kind} does not fit: {why}")
        self.left_alone(why, kind)

    def listens(
        self, sockets: Iterable[Any], kind: str = "", keep_alive: float | None = None
    ) -> None:
        """Say that the server listens on *sockets*, guarded, and what is set and does
        nothing in it.

        Args:
            sockets: Its listening sockets.
            kind: Which of its kinds it is; empty: the first.
            keep_alive: The server's own, in seconds, which holds unless ours is set;
                None if it has none.
        """
        config = self.host.load()
        limits = self.card.in_force(config)
        if keep_alive is not None and not self.host.is_set("keep_alive"):
            limits["keep_alive"] = keep_alive
        vain = said(without_effect(config, self.card.kind(kind)))
        self.host.guarded(str(self.card), sockets, limits, vain)

    def left_alone(self, why: str, kind: str = "") -> None:
        """Say that the server, or this *kind* of it, is not guarded, because of
        *why*.
        """
        self.host.left_alone(f"{self.card}{kind}", why)


def around(kind: Any, name: str) -> Callable[[Callable[[Any], Any]], None]:
    """Replace *name*, a function or method of *kind* (a class or a module), by what the
    decorated function returns.

    That function is called once, with the original. So a call costs no frame that only
    passes it on. If the original is a coroutine function, the replacement must be one.
    """

    def decorate(instead_of: Callable[[Any], Any]) -> None:
        method = getattr(kind, name)
        if _made is not None:
            _made.append((kind, name, vars(kind).get(name, _NOTHING)))
        setattr(kind, name, functools.wraps(method)(instead_of(method)))

    return decorate


def after(kind: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Have the decorated function called each time the method *name* of *kind* has
    returned.

    The function is called with the result, and then with the arguments of the call.
    """

    def decorate(then: Callable[..., Any]) -> None:
        @around(kind, name)
        def both(method: Any) -> Any:
            def instead(*arguments: Any, **options: Any) -> Any:
                result = method(*arguments, **options)
                then(result, *arguments, **options)
                return result

            return instead

    return decorate
