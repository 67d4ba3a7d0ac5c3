"""Behaviours as data: a TOML file, or a mix on the command line, becomes a `Scenario`.

One rule: what is not understood is an error, never ignored. Every complaint is one line that names file, key and value.

    name = "reconnect-storm"
    description = "everybody is reaped in one instant and comes back in the next"
    protocol = "echo"                  # echo | http | raw; the command line overrides it

    [ramp]
    shape = "waves"                    # linear (at `rate` a second) | burst | waves (of equal size, one `every`)
    waves = 3
    every = "0.5T"

    [[client]]
    kind = "silent"                    # see `loadgen behaviours`
    weight = 80
    reconnect = "0s"                   # and every parameter of the kind: `250ms`, or a multiple of the timeout, `0.9T`
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..units import BadArgument, parse_duration
from .behaviours import CLOSEST, KINDS, Behaviour

PROTOCOL_NAMES = ("echo", "http", "raw")
SHAPES = ("linear", "burst", "waves")
_OWN = {"name", "weight", "timeout", "horizon", "reconnect", "deadline"}


@dataclass(frozen=True)
class Ramp:
    """When the connections are opened.

    Args:
        shape: "linear": connection i at i / rate; "burst": all at once; "waves": in *waves* equal groups, one each
            *every* seconds.
        rate: connections per second; None for the command line's.
    """

    shape: str = "linear"
    rate: float | None = None
    waves: int = 1
    every: float = 0.0

    def offset(self, index: int, connections: int, rate: float) -> float:
        """Seconds after the start at which connection *index* of *connections* is due."""
        if self.shape == "linear":
            return index / (self.rate or rate)
        return index * self.waves // connections * self.every


@dataclass(frozen=True)
class ClientSpec:
    """One kind of client as it was written: texts that mean something once the timeout is known."""

    kind: str
    name: str
    weight: float
    options: tuple[tuple[str, Any], ...] = ()

    def behaviour(self, timeout: float, horizon: float) -> Behaviour:
        """The behaviour at that timeout, in seconds.

        Raises:
            BadArgument: a parameter that the kind does not have, or a value that is out of its range.
        """
        cls = KINDS[self.kind]
        options = dict(self.options)
        own = _quantity(f"{self.name}.timeout", options.pop("timeout", "1T"), timeout)
        if own <= 0:
            raise BadArgument(f"{self.name}.timeout must be longer than 0")
        known = {f.name: f for f in fields(cls) if f.name not in _OWN}
        if "deadline" in options and not isinstance(options["deadline"], bool):
            raise BadArgument(f"{self.name}.deadline = {options['deadline']!r}: write true or false")
        values: dict[str, Any] = {"deadline": options.pop("deadline")} if "deadline" in options else {}
        if "reconnect" in options:
            values["reconnect"] = _quantity(f"{self.name}.reconnect", options.pop("reconnect"), own)
        unknown = sorted(set(options) - set(known))
        if unknown:
            accepted = ", ".join(["weight", "timeout", "reconnect", "deadline", *known])
            raise BadArgument(
                f"{self.name}.{unknown[0]}: a {self.kind} client has no such parameter: it has {accepted}"
            )
        for key, spec in known.items():
            if "default" in spec.metadata:
                values[key] = _quantity(f"{self.name}.{key}", options.get(key, spec.metadata["default"]), own)
            else:
                values[key] = _number(f"{self.name}.{key}", options.get(key, spec.default))
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

    def make_ramp(self, timeout: float) -> Ramp:
        """The ramp, in seconds."""
        options = dict(self.ramp or {})
        if "every" in options:
            options["every"] = _quantity("ramp.every", options["every"], timeout)
        return Ramp(**options)


def from_mix(text: str) -> Scenario:
    """`silent=50,chatty=40` as a scenario; a name alone weighs 1.

    Raises:
        BadArgument: an unknown behaviour, one named twice, or a weight that is not a number > 0.
    """
    clients: dict[str, ClientSpec] = {}
    for part in text.split(","):
        name, _, weight_text = part.strip().partition("=")
        if name not in KINDS:
            raise BadArgument(f"--mix {text!r}: {name!r} is no behaviour: choose from {', '.join(KINDS)}")
        if name in clients:
            raise BadArgument(f"--mix {text!r}: {name!r} is given twice: give each behaviour one weight")
        try:
            weight = float(weight_text) if weight_text else 1.0
        except ValueError:
            weight = 0.0
        if not 0 < weight < float("inf"):
            raise BadArgument(
                f"--mix {text!r}: weight {weight_text!r} of {name!r} must be a number > 0, such as {name}=50"
            )
        clients[name] = ClientSpec(name, name, weight)
    return Scenario("mix", tuple(clients.values()))


def shipped() -> list[str]:
    """Names of the scenarios that come with the program."""
    folder = resources.files(__package__) / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(name: str) -> Scenario:
    """The scenario in the file *name*, or the shipped one of that name.

    Raises:
        BadArgument: no such file, no TOML, or anything in it that is not understood.
    """
    path = Path(name)
    if name in shipped():
        path = Path(str(resources.files(__package__) / "scenarios" / f"{name}.toml"))
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadArgument(
            f"--scenario {name}: {error.strerror}: give a TOML file or one of {', '.join(shipped())}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadArgument(f"--scenario {name}: {error}") from None
    try:
        return parse_scenario(table, path.stem)
    except BadArgument as error:
        raise BadArgument(f"--scenario {name}: {error}") from None


def parse_scenario(table: dict[str, Any], name: str) -> Scenario:
    """A scenario from parsed TOML.

    Raises:
        BadArgument: anything that is not understood.
    """
    _only(table, {"name", "description", "protocol", "ramp", "client"}, "the file")
    protocol = table.get("protocol")
    if protocol is not None and protocol not in PROTOCOL_NAMES:
        raise BadArgument(f"protocol = {protocol!r}: choose from {', '.join(PROTOCOL_NAMES)}")
    ramp = table.get("ramp", {})
    if not isinstance(ramp, dict):
        raise BadArgument("ramp must be a table: write [ramp]")
    _only(ramp, {"shape", "rate", "waves", "every"}, "ramp")
    if ramp.get("shape", "linear") not in SHAPES:
        raise BadArgument(f"ramp.shape = {ramp['shape']!r}: choose from {', '.join(SHAPES)}")
    for key in ("rate", "waves"):
        if key in ramp and _number(f"ramp.{key}", ramp[key]) <= 0:
            raise BadArgument(f"ramp.{key} = {ramp[key]!r} must be > 0")
    if not isinstance(ramp.get("waves", 1), int):
        raise BadArgument(f"ramp.waves = {ramp['waves']!r} must be a whole number")
    rows = table.get("client")
    if not isinstance(rows, list) or not rows:
        raise BadArgument("there are no clients: write at least one [[client]] with a kind")
    clients = [_client(row, number) for number, row in enumerate(rows, 1)]
    names = [client.name for client in clients]
    for twice in {name for name in names if names.count(name) > 1}:
        raise BadArgument(f"two clients are called {twice!r}: give each a name of its own")
    return Scenario(
        str(table.get("name", name)), tuple(clients), str(table.get("description", "")), protocol, ramp or None
    )


def _client(row: Any, number: int) -> ClientSpec:
    where = f"client {number}"
    kind = row.get("kind")
    if kind not in KINDS:
        raise BadArgument(f"{where}: kind = {kind!r}: choose from {', '.join(KINDS)}")
    weight = _number(f"{where}: weight", row.get("weight", 1))
    if not 0 < weight < float("inf"):
        raise BadArgument(f"{where}: weight = {row['weight']!r} must be a number > 0")
    options = tuple((key, value) for key, value in row.items() if key not in ("kind", "name", "weight"))
    spec = ClientSpec(kind, str(row.get("name", kind)), weight, options)
    spec.behaviour(1.0, 1e9)  # complain while the file is being read
    return spec


def _check_gaps(behaviour: Behaviour) -> None:
    """No judged gap near the timeout: both ends would be right, and nothing shown."""
    if not behaviour.judged or behaviour.deadline:
        return
    for key in ("longest", "every", "shortest"):
        gap = getattr(behaviour, key, 0.0)
        if gap > CLOSEST * behaviour.timeout * (1 + 1e-9):
            raise BadArgument(f"{behaviour.name}.{key} is longer than {CLOSEST}T: nobody could say who was right")
    if getattr(behaviour, "every", 1.0) <= 0 or getattr(behaviour, "longest", 1.0) <= 0:
        raise BadArgument(f"{behaviour.name}: its gap must be longer than 0")
    if getattr(behaviour, "shortest", 0.0) > getattr(behaviour, "longest", float("inf")):
        raise BadArgument(f"{behaviour.name}.shortest is longer than its longest gap")


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise BadArgument(f"{where} has an unknown key {key!r}: it may have {', '.join(sorted(known))}")


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadArgument(f"{where} = {value!r} must be a number")
    return float(value)


def _quantity(where: str, value: Any, timeout: float) -> float:
    """Seconds from `250ms` or `0.9T`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*T", value) if isinstance(value, str) else None
    if match is not None:
        return float(match[1]) * timeout
    if not isinstance(value, str):
        raise BadArgument(
            f'{where} = {value!r}: write a duration such as "250ms" or a share of the timeout such as "0.9T"'
        )
    try:
        return parse_duration(value)
    except BadArgument:
        raise BadArgument(
            f'{where} = "{value}": write a duration such as "250ms" or a share of the timeout, "0.9T"'
        ) from None
