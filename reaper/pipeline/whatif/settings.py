"""What is asked: settings to replay a journal under, and what each means for a silence. No Spark here.

The rule of this module: *a setting says everything about a replay, the log nothing but what happened*. Whether the log
can answer is decided here too, before anything is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...config.durations import format_duration, parse_duration
from ...errors import InvalidArgument

MS = 1_000_000
HOUR_NS = 3600e9

STEPS = 16
"""Distinct timeouts that the library's jitter makes of one (tests/test_pipeline_whatif.py holds it to that)."""

CURRENT = "as it was"
"""Name of the row that replays the settings in force."""


class CannotTell(Exception):
    """The log does not hold the answer, or there is no such thing to change. The message is one line."""


def figure(value: float | None, low: float | None, high: float | None, kind: str) -> dict[str, Any]:
    """A figure and how it is known: exact, bounded (value null) or estimated; low and high inclusive."""
    return {"value": value, "low": low, "high": high, "kind": kind}


@dataclass(frozen=True, slots=True)
class Rule:
    """One timeout to put in the place of others."""

    timeout_ns: int
    listener: str | None = None
    """Only of this listener; None: of all."""
    was_ms: int | None = None
    """Only where this was in force; None: wherever any was."""

    def applies(self, listener: str, timeout_ms: int) -> bool:
        """Whether it replaces *timeout_ms*, which was in force at *listener*."""
        return self.listener in (None, listener) and self.was_ms in (None, timeout_ms)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the answer. What is None stays as the log has it."""

    name: str
    rules: tuple[Rule, ...] = ()
    tick_ns: int | None = None
    epochs_per_tick: int | None = None
    wheel_size: int = 64
    jitter: float = 0.0

    def timeout_ns(self, listener: str, timeout_ms: int) -> int:
        """The timeout, before jitter, of silences for which *timeout_ms* > 0 was in force. The narrowest rule wins."""
        fitting = [rule for rule in self.rules if rule.applies(listener, timeout_ms)]
        if not fitting:
            return timeout_ms * MS
        return max(fitting, key=lambda rule: (rule.was_ms is not None, rule.listener is not None)).timeout_ns

    def epoch_ns(self, tick_ns: int, epochs: int) -> int:
        """Length of an epoch where the log has *epochs* in a tick of *tick_ns*."""
        return max(1, (self.tick_ns or tick_ns) // (self.epochs_per_tick or epochs))

    def jitter_steps(self, timeout_ns: int, tick_ns: int) -> tuple[int, int]:
        """(distinct timeouts, ns between two of them) that jitter makes of *timeout_ns*; (1, 0): it changes nothing."""
        tick_ns = self.tick_ns or tick_ns
        ticks = int(timeout_ns * self.jitter / tick_ns + 1e-9)
        if ticks < 1:
            return 1, 0
        step = -(-(ticks + 1) // STEPS)
        return ticks // step + 1, step * tick_ns


@dataclass(frozen=True, slots=True)
class InForce:
    """One timeout that a run of a writer had in force at one listener."""

    run: int
    listener: str
    listener_hash: int
    timeout_ms: int
    silences: int


def refusal(setting: Setting, in_force: Iterable[InForce], thresholds_ns: Mapping[int, int]) -> str | None:
    """Why the log cannot tell what *setting* would do; None: it can.

    Args:
        thresholds_ns: Of each run: silences up to it were not written. 0: all were.
    """
    for entry in in_force:
        timeout = setting.timeout_ns(entry.listener, entry.timeout_ms)
        threshold = thresholds_ns[entry.run]
        if timeout != entry.timeout_ms * MS and timeout < threshold:
            return (
                f"{entry.listener}: timeout {duration(timeout)} is below {duration(threshold)}, and the journal did "
                "not write shorter silences one by one (mode gaps)"
            )
    return None


def parse(words: Iterable[str], base: Setting, listeners: Iterable[str] | None = None) -> Setting:
    """One `--set`: `timeout=20s`, `timeout.LISTENER=20s`, `timeout.LISTENER@75s=60s`, `tick=`, `wheel_size=`,
    `jitter=`, `epochs_per_tick=`.

    Args:
        listeners: Names that exist; None: any.
    Raises:
        CannotTell: a word is none of these, or names a listener that is not there.
    """
    words = list(words)
    setting = replace(base, name=" ".join(words))
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise CannotTell(f"--set {word!r} is no KEY=VALUE such as timeout.echo=20s or tick=100ms")
        if key == "timeout" or key.startswith("timeout."):
            listener, _, was = key.removeprefix("timeout").removeprefix(".").partition("@")
            if listener and listeners is not None and listener not in listeners:
                raise CannotTell(f"--set {word}: no listener {listener!r} in the log; it has: {', '.join(listeners)}")
            rule = Rule(_duration(word, value), listener or None, _duration(word, was) // MS if was else None)
            setting = replace(setting, rules=(*setting.rules, rule))
        elif key == "tick":
            setting = replace(setting, tick_ns=_duration(word, value))
        elif key == "jitter":
            setting = replace(setting, jitter=share(value, f"--set {word}"))
        elif key == "wheel_size":
            setting = replace(setting, wheel_size=whole(value, f"--set {word}", 2))
        elif key == "epochs_per_tick":
            setting = replace(setting, epochs_per_tick=whole(value, f"--set {word}", 1))
        else:
            known = "timeout[.LISTENER[@WAS]], tick, wheel_size, jitter, epochs_per_tick"
            raise CannotTell(f"--set {word}: unknown key {key!r}; known: {known}")
    return setting


def whole(text: str, what: str, least: int) -> int:
    """An integer >= *least*."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise CannotTell(f"{what}: expected an integer >= {least}, got {text!r}")
    return int(text)


def share(text: str, what: str) -> float:
    """A number within 0..1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise CannotTell(f"{what}: expected a share within 0..1, got {text!r}")
    return value


def _duration(word: str, text: str) -> int:
    try:
        value = round(parse_duration(text) * 1e9)
    except InvalidArgument as error:
        raise CannotTell(f"--set {word}: {error}") from None
    if value <= 0:
        raise CannotTell(f"--set {word}: a timeout or tick is longer than 0s, got {text!r}")
    return value


def duration(ns: int) -> str:
    """As the command line writes it."""
    return format_duration(ns / 1e9)


@dataclass(frozen=True, slots=True)
class Wheel:
    """What tick and wheel size imply for one timeout. The core waits in its ring for what is due within
    `wheel_size` ticks; what is due later waits in a hierarchical wheel above it, whole slots at a time."""

    slots: int
    """Slots that wait at most, for this timeout: one an epoch."""
    levels: int
    """Levels of the wheel above the ring that its slots need; 0: the ring holds the timeout."""
    cascades: int
    """Times a slot is moved down at most, between levels and into the ring: one a level, and one more for a slot that
    finds the wheel empty, for the clock of an empty wheel stands still and places it too high."""


def wheel(timeout_ns: int, tick_ns: int, epoch_ns: int, wheel_size: int) -> Wheel:
    """The model of one timeout; the tests check it against the core."""
    ahead = timeout_ns // tick_ns + 1 - wheel_size  # ticks that a slot waits before the ring takes it, at most
    slots = -(-timeout_ns // epoch_ns) + 1
    if ahead <= 0:
        return Wheel(slots, 0, 0)
    levels, span = 1, wheel_size
    while ahead >= span - span // wheel_size:  # a level sees the clock rounded down: its last slot is not surely free
        levels += 1
        span *= wheel_size
    return Wheel(slots, levels, levels + 1)
