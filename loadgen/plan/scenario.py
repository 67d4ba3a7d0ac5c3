"""Makes a `Scenario` of a TOML file, or of a mix on the command line.

One rule: what is not understood is an error, never ignored. Every complaint is one line
that names file, key and value.

    name = "reconnect-storm"
    description = "all are reaped in one instant and come back in the next"
    protocol = "echo"              # echo | http | raw | ws; the command line wins
    statuses = ["2xx", "404"]      # of HTTP answers that are as expected; default 2xx
    max_age = "1h"                 # from then on a client that talks may be closed
                                   # too; default: never

    [ramp]
    shape = "waves"                # linear (at `rate` a second) | burst | waves (of
                                   # equal size, one `every`)
    waves = 3
    every = "0.5T"

    [[client]]
    kind = "silent"                # see `loadgen behaviours`
    weight = 80
    reconnect = "0s"               # and every parameter of the kind: `250ms`, or a
                                   # multiple of the timeout, `0.9T`
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..units import BadArgument, parse_duration, seconds, within
from .behaviours import CLOSEST, KINDS, Behaviour

PROTOCOL_NAMES = ("echo", "http", "raw", "ws")
DEFAULT_STATUSES = ("2",)
"""How the statuses of HTTP answers must begin, unless a scenario says otherwise."""
SHAPES = ("linear", "burst", "waves")
MOST_CLIENTS = 255
"""The most kinds of clients in one scenario: a plan keeps the kind of a connection in a
byte.
"""
MOST_WEIGHT = 1e9
FOREVER = float("inf")
SCENARIOS = Path(__file__).parent / "scenarios"
SHORTEST_GAP = 0.001
"""Seconds; a client that sends more often would be a flood, not a connection to be
judged.
"""
SLOWEST_RATE, MOST_WAVES = 0.001, 1_000_000
TAILS = (0.1, 1000.0)
SHOWN = 40
"""Characters of a value that a complaint repeats."""
_OWN = {"name", "weight", "timeout", "horizon", "reconnect", "deadline", "listener"}


@dataclass(frozen=True)
class Ramp:
    """When the connections are opened.

    "linear" opens connection i at i / *rate* seconds, where None is the rate of the
    command line; "burst" opens all at once; "waves" opens *waves* equal groups, one
    every *every* seconds.
    """

    shape: str = "linear"
    rate: float | None = None
    waves: int = 1
    every: float = 0.0

    def offset(self, index: int, connections: int, rate: float) -> float:
        """Seconds after the start at which connection *index* of *connections* is
        due.
        """
        if self.shape == "linear":
            return index / (self.rate or rate)
        return index * self.waves // connections * self.every


@dataclass(frozen=True)
class ClientSpec:
    """One kind of client as it was written: texts that need the timeout to mean
    something.
    """

    kind: str
    name: str
    weight: float
    options: tuple[tuple[str, Any], ...] = ()

    def behaviour(self, timeout: float, horizon: float) -> Behaviour:
        """Make the behaviour at *timeout* seconds.

        Raises BadArgument: the kind has no such parameter, or a value is out of its
        range.
        """
        cls, options = KINDS[self.kind], dict(self.options)
        own = _quantity(f"{self.name}.timeout", options.pop("timeout", "1T"), timeout)
        if own < SHORTEST_GAP:
            raise BadArgument(f"{self.name}.timeout must be at least {seconds(SHORTEST_GAP)}")
        known = {f.name: f for f in fields(cls) if f.name not in _OWN}
        values: dict[str, Any] = {}
        for key in [key for key in _COMMON if key in options]:
            values[key] = _COMMON[key](f"{self.name}.{key}", options.pop(key), own)
        if unknown := sorted(set(options) - set(known)):
            name = unknown[0] if unknown[0].isidentifier() else _shown(unknown[0])
            accepted = ", ".join(["weight", "timeout", *_COMMON, *known])
            raise BadArgument(
                f"{self.name}.{name}: a {self.kind} client has no such parameter: it has {accepted}"
            )
        for key, spec in known.items():
            read, default = (
                (_quantity, spec.metadata["default"]) if spec.metadata else (_number, spec.default)
            )
            values[key] = read(f"{self.name}.{key}", options.get(key, default), own)
        made = cls(name=self.name, weight=self.weight, timeout=own, horizon=horizon, **values)
        _check_gaps(made)
        return made


@dataclass(frozen=True)
class Scenario:
    """What a run consists of, before the timeout is known."""

    name: str
    clients: tuple[ClientSpec, ...]
    description: str = ""
    protocol: str | None = None
    ramp: dict[str, Any] | None = None
    statuses: tuple[str, ...] = DEFAULT_STATUSES
    max_age: str | None = None

    def age_limit(self, timeout: float) -> float | None:
        """The `max_age` in seconds; None if there is none."""
        return None if self.max_age is None else _quantity("max_age", self.max_age, timeout)

    def make_ramp(self, timeout: float) -> Ramp:
        """The ramp, with its times in seconds."""
        options = dict(self.ramp or {})
        if "every" in options:
            options["every"] = _quantity("ramp.every", options["every"], timeout)
        return Ramp(**options)


def from_mix(text: str) -> Scenario:
    """Make a scenario of `silent=50,chatty=40`; a name alone weighs 1.

    Raises BadArgument: a behaviour is unknown or named twice, or a weight is no
    number > 0.
    """
    clients: dict[str, ClientSpec] = {}
    for part in text.split(","):
        name, _, weight_text = part.strip().partition("=")
        if name not in KINDS:
            raise BadArgument(
                f"--mix {text!r}: {name!r} is no behaviour: choose from {', '.join(KINDS)}"
            )
        if name in clients:
            raise BadArgument(
                f"--mix {text!r}: {name!r} is given twice: give each behaviour one weight"
            )
        weight = 0.0
        with suppress(ValueError):
            weight = float(weight_text or 1)
        if not 0 < weight <= MOST_WEIGHT:
            complaint = (
                f"weight {weight_text!r} of {name!r} must be a number > 0, such as {name}=50"
            )
            raise BadArgument(f"--mix {text!r}: {complaint}")
        clients[name] = ClientSpec(name, name, weight)
    return Scenario("mix", tuple(clients.values()))


def shipped() -> list[str]:
    """The names of the scenarios that come with the program."""
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))


def load_scenario(name: str) -> Scenario:
    """Load the scenario in the file *name*, or the shipped one of that name.

    Raises BadArgument: there is no such file, or something in it is not understood.
    """
    path = SCENARIOS / f"{name}.toml" if name in shipped() else Path(name)
    shown = name if name.isprintable() else repr(name)
    try:
        return parse_scenario(tomllib.loads(path.read_text()), path.stem)
    except OSError as error:
        wanted = f"give a TOML file or one of {', '.join(shipped())}"
        raise BadArgument(f"--scenario {shown}: {error.strerror}: {wanted}") from None
    except RecursionError:
        raise BadArgument(f"--scenario {shown}: nested too deeply to be a scenario") from None
    except ValueError as error:
        # It is not understood, no TOML, no text, has a number of thousands of digits,
        # or *name* cannot be the name of a file.
        raise BadArgument(f"--scenario {shown}: {error}") from None


def parse_scenario(table: dict[str, Any], name: str) -> Scenario:
    """Make a scenario of parsed TOML. Raises BadArgument: something is not
    understood.
    """
    _quantity("max_age", table.get("max_age", "0s"), 1.0)
    _only(
        table,
        {"name", "description", "protocol", "ramp", "client", "statuses", "max_age"},
        "the file",
    )
    protocol = table.get("protocol")
    if protocol is not None and protocol not in PROTOCOL_NAMES:
        raise BadArgument(f"protocol = {_shown(protocol)}: choose from {', '.join(PROTOCOL_NAMES)}")
    rows = table.get("client")
    if not isinstance(rows, list) or not rows:
        raise BadArgument("there are no clients: write at least one [[client]] with a kind")
    if len(rows) > MOST_CLIENTS:
        raise BadArgument(f"there are {len(rows)} clients: write at most {MOST_CLIENTS}")
    clients = tuple(_client(row, number) for number, row in enumerate(rows, 1))
    twice = [
        name for name, count in Counter(client.name for client in clients).items() if count > 1
    ]
    if twice:
        raise BadArgument(f"two clients are called {twice[0]!r}: give each a name of its own")
    name, description = (
        _text("name", table.get("name", name)),
        _text("description", table.get("description", "")),
    )
    ramp, statuses = _ramp(table.get("ramp", {})), _statuses(table.get("statuses", ["2xx"]))
    return Scenario(name, clients, description, protocol, ramp, statuses, table.get("max_age"))


def parse_statuses(text: str) -> tuple[str, ...]:
    """Read how the statuses of answers may begin, from `2xx,404`. Raises
    BadArgument.
    """
    return _statuses([part.strip() for part in text.split(",")])


def _statuses(values: Any) -> tuple[str, ...]:
    texts = [str(value) for value in values] if isinstance(values, list) else []
    if not texts or not all(re.fullmatch(r"[1-5](\d\d|xx)", text) for text in texts):
        raise BadArgument(f'statuses = {_shown(values)}: write a list such as ["2xx", "404"]')
    return tuple(text.removesuffix("xx") for text in texts)


def _ramp(ramp: Any) -> dict[str, Any] | None:
    if not isinstance(ramp, dict):
        raise BadArgument("ramp must be a table: write [ramp]")
    _only(ramp, {"shape", "rate", "waves", "every"}, "ramp")
    if ramp.get("shape", "linear") not in SHAPES:
        raise BadArgument(f"ramp.shape = {_shown(ramp['shape'])}: choose from {', '.join(SHAPES)}")
    if "rate" in ramp and _number("ramp.rate", ramp["rate"]) < SLOWEST_RATE:
        raise BadArgument(
            f"ramp.rate = {_shown(ramp['rate'])} must be > 0: at least {SLOWEST_RATE} per second"
        )
    waves = ramp.get("waves", 1)
    if type(waves) is not int or not 0 < waves <= MOST_WAVES:
        raise BadArgument(
            f"ramp.waves = {_shown(waves)} must be > 0, whole, and at most {MOST_WAVES}"
        )
    _quantity("ramp.every", ramp.get("every", "0s"), 1.0)
    return ramp or None


def _client(row: Any, number: int) -> ClientSpec:
    where = f"client {number}"
    if not isinstance(row, dict):
        raise BadArgument(f"{where} = {_shown(row)}: write [[client]] and its kind below")
    kind = row.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadArgument(f"{where}: kind = {_shown(kind)}: choose from {', '.join(KINDS)}")
    weight = _number(f"{where}: weight", row.get("weight", 1))
    if not 0 < weight <= MOST_WEIGHT:
        raise BadArgument(
            f"{where}: weight = {_shown(row['weight'])} must be a number > 0 "
            f"and at most {MOST_WEIGHT:g}"
        )
    options = tuple(
        (key, value) for key, value in row.items() if key not in ("kind", "name", "weight")
    )
    name = _text(f"{where}: name", row.get("name", kind))
    if not name:
        raise BadArgument(f'{where}: name = "": give it a name, or none, to be called {kind!r}')
    spec = ClientSpec(kind, name, weight, options)
    spec.behaviour(1.0, 1e9)  # complain while the file is being read
    return spec


def _check_gaps(behaviour: Behaviour) -> None:
    """Refuse a gap that floods, and a judged gap near the timeout.

    Near the timeout both ends would be right, and nothing would be shown.
    """
    name, value = behaviour.name, vars(behaviour)
    for key in ("longest", "every", *(["shortest"] if behaviour.kind == "bursty" else [])):
        if value.get(key, 1.0) < SHORTEST_GAP:
            raise BadArgument(
                f"{name}.{key}: its gap must be longer than 0: at least {seconds(SHORTEST_GAP)}"
            )
    if not TAILS[0] <= value.get("tail", 1.0) <= TAILS[1]:
        raise BadArgument(f"{name}.tail must be a number from {TAILS[0]} to {TAILS[1]:g}")
    if value.get("shortest", 0.0) > value.get("longest", FOREVER):
        raise BadArgument(f"{name}.shortest is longer than its longest gap")
    if value.get("earliest", 0.0) > value.get("latest", FOREVER):
        raise BadArgument(f"{name}.earliest is later than its latest")
    for key in (
        ("longest", "every", "shortest") if behaviour.judged and not behaviour.deadline else ()
    ):
        if value.get(key, 0.0) > CLOSEST * behaviour.timeout * (1 + 1e-9):
            raise BadArgument(f"{name}.{key} is longer than {CLOSEST}T: neither end would be wrong")


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise BadArgument(
                f"{where} has an unknown key {_shown(key)}: it may have {', '.join(sorted(known))}"
            )


def _text(where: str, value: Any, _: float = 1.0) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise BadArgument(f"{where} = {_shown(value)}: write a text of one line")
    return value


def _flag(where: str, value: Any, _: float) -> bool:
    if not isinstance(value, bool):
        raise BadArgument(f"{where} = {_shown(value)}: write true or false")
    return value


def _number(where: str, value: Any, _: float = 1.0) -> float:
    if (
        not isinstance(value, bool)
        and isinstance(value, (int, float))
        and abs(value) <= sys.float_info.max
    ):
        return float(value)
    raise BadArgument(f"{where} = {_shown(value)} must be a number")


def _quantity(where: str, value: Any, timeout: float) -> float:
    """Read seconds from `250ms`, or from `0.9T`, a multiple of *timeout*."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*T", value) if isinstance(value, str) else None
    with suppress(BadArgument):
        if isinstance(value, str):
            return within(float(match[1]) * timeout) if match else parse_duration(value)
    wanted = 'write a duration such as "250ms" or a share of the timeout such as "0.9T"'
    raise BadArgument(f"{where} = {_shown(value)}: {wanted}")


_COMMON: dict[str, Callable[[str, Any, float], Any]] = {
    "reconnect": _quantity,
    "deadline": _flag,
    "listener": _text,
}
"""The parameters that every kind may have, and the functions that read them."""


def _shown(value: Any) -> str:
    """Write *value* as a complaint repeats it: in one line, and cut if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
