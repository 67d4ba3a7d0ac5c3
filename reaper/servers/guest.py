"""A guest in a server that others wrote: what is changed there, which names that needs,
and which versions were tested.

One rule: *nothing is changed unless every name is there*: of the server, and of what it
is built on. A server that lacks one of them is left alone, and a line says so;
`--strict` ends the program with status 2 instead. An exception in here never reaches
the program.

A room of `reaper.servers` has its names in `names.py`, and declares its guests in
`changes.py`, which imports nothing of the server until the program has.
`reaper.run.servers` lists them all.

Many programs import a library and never serve by it. They are left in peace: before the
program has the library listen, no name is looked up, and nothing is said or refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn, Protocol

from ..config.effects import said, without_effect
from ..config.settings import DEFAULT, ReaperConfig
from ..errors import one_line
from ..foreign import Foreign, missing, untested

PACKAGE = __name__.partition(".")[0]
"""The name of this library in this process: `_idle_reaper` where `reaper run` has
imported it.
"""

HTTP = ("first_byte", "headers", "body", "keep_alive", "write", "tunnel", "vanished")
"""The timeouts that hold for an HTTP server."""
SOCKETS = ("tunnel", "vanished")
"""The timeouts that hold for a server of WebSockets and nothing else."""
PLAIN = ("idle", "write", "vanished")
"""The timeouts that hold for a server of plain bytes, whose protocol nobody knows; for
`idle` see `silence`.
"""

SERVING: set[str] = set()
"""The modules of the libraries that have been asked to listen in this process."""

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
class Guest:
    """What is changed in one module of a server.

    Attributes:
        needs: The names that are used, of the server, which is first, and of the
            packages below it. Nothing is changed unless all of them are there.
        module: `change` is called when the program has imported this module.
        change: Makes the change; called with the module, and with what it may say of
            the server. None: the names are read, and nothing is changed.
        limits: The timeouts that hold afterwards.
        own: Timeouts that stay the server's own unless the settings have them, and
            where the server takes them from.
        columns: Its kinds in `config.effects`; empty: its own name.
        note: Which of its kinds are guarded, for people; empty: all.
        library: Whether programs import its module that do not serve by it. Then
            `change` is called before a name is looked up, may wrap only what the
            package has promised, and calls `Visit.serves` and `Visit.fits` there.
    """

    needs: tuple[Foreign, ...]
    module: str
    change: Callable[[ModuleType, Visit], None] | None
    limits: tuple[str, ...] = HTTP
    own: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    note: str = ""
    library: bool = False

    def guard(self, module: ModuleType, host: Host, *, strict: bool) -> None:
        """Change *module*, which has just been imported.

        Raises:
            SystemExit: it does not fit, and *strict* is set.
        """
        visit = Visit(self, host, strict)
        try:
            fits = self.library or visit.fits(self.needs)
            if fits and self.change is not None:
                self.change(module, visit)
        except Exception as error:  # the program goes on without us
            visit.misfit(f"{type(error).__name__}: {one_line(error)}")

    @property
    def name(self) -> str:
        """The server's name on PyPI."""
        return self.needs[0].package

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its names in `config.effects`."""
        return self.columns or (self.name,)

    @property
    def is_there(self) -> bool:
        """Whether the program serves by it, as far as is known: it has imported the
        module. A library must also have listened.
        """
        return self.module in (SERVING if self.library else sys.modules)

    def in_force(self, config: ReaperConfig) -> dict[str, float]:
        """The timeouts that hold in it by *config*, in seconds; 0: none."""
        names = (silence(config) if name == "idle" else name for name in self.limits)
        return {name: getattr(config.timeouts, name) for name in names}

    def __str__(self) -> str:
        return str(self.needs[0])


@dataclass(frozen=True)
class Visit:
    """A guest in a program: what it may ask, and what it reports of its server.

    Attributes:
        guest: Whose visit it is.
        host: Who has let it in.
        strict: Whether the program is ended where the server does not fit, or was not
            tested.
    """

    guest: Guest
    host: Host
    strict: bool
    _known: dict[tuple[Foreign, ...], str] = field(default_factory=dict)

    def fits(self, needs: tuple[Foreign, ...], kind: str = "") -> bool:
        """Whether all names of *needs* are there. If not, each call says so, of this
        *kind* of the server. They are looked up once.

        Raises:
            SystemExit: they are not, or a package was not tested, and `strict` is set.
        """
        if needs not in self._known:
            why = missing(needs, self.guest.name)
            if not why and self.strict:
                why = untested(needs, self.guest.name)
            self._known[needs] = why
        if why := self._known[needs]:
            self.misfit(why, kind)
        return not why

    def serves(self) -> None:
        """Note that the program is about to have the library listen."""
        SERVING.add(self.guest.module)

    def misfit(self, why: str, kind: str = "") -> None:
        """Report that the server, or this *kind* of it, does not fit, because of *why*.

        Raises:
            SystemExit: `strict` is set.
        """
        if self.strict:
            self.host.refuse(f"{self.guest}{kind} does not fit: {why}")
        self.left_alone(why, kind)

    def listens(
        self, sockets: Iterable[Any], column: str = "", keep_alive: float | None = None
    ) -> None:
        """Say that the server listens on *sockets*, guarded, and what is set and does
        nothing in it.

        Args:
            sockets: Its listening sockets.
            column: Which of its `kinds` it is; empty: the first.
            keep_alive: The server's own, in seconds, which holds unless ours is set;
                None if it has none.
        """
        config = self.host.load()
        limits = self.guest.in_force(config)
        if keep_alive is not None and not self.host.is_set("keep_alive"):
            limits["keep_alive"] = keep_alive
        vain = said(without_effect(config, [column or self.guest.kinds[0]]))
        self.host.guarded(str(self.guest), sockets, limits, vain)

    def left_alone(self, why: str, kind: str = "") -> None:
        """Say that the server, or this *kind* of it, is not guarded, because of
        *why*.
        """
        self.host.left_alone(f"{self.guest}{kind}", why)


def around(kind: Any, name: str) -> Callable[[Callable[[Any], Any]], None]:
    """Replace *name*, a function or method of *kind* (a class or a module), by what the
    decorated function returns.

    That function is called once, with the original. So a call costs no frame that only
    passes it on. If the original is a coroutine function, the replacement must be one.
    """

    def decorate(instead_of: Callable[[Any], Any]) -> None:
        method = getattr(kind, name)
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
