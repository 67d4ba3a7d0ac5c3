"""What is asked: settings to replay a journal under, and what each means for a silence. No Spark here.

The rule of this module: *a setting says everything about a replay, the log nothing but what happened*. Whether the log
can answer is decided here too, before anything is counted.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...config.durations import format_duration
from ..arguments import positive_ns

MS = 1_000_000

CURRENT = "as it was"
"""Name of the row that replays the settings in force."""


class CannotTell(Exception):
    """The log does not hold the answer, or there is no such thing to change. The message is one line."""


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

    def timeout_ns(self, listener: str, timeout_ms: int) -> int:
        """The timeout of silences for which *timeout_ms* > 0 was in force. The narrowest rule wins."""
        fitting = [rule for rule in self.rules if rule.applies(listener, timeout_ms)]
        if not fitting:
            return timeout_ms * MS
        return max(fitting, key=lambda rule: (rule.was_ms is not None, rule.listener is not None)).timeout_ns


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


def parse(words: Iterable[str], listeners: Iterable[str] | None = None) -> Setting:
    """One `--set`: `timeout=20s`, `timeout.LISTENER=20s`, `timeout.LISTENER@75s=60s`, `tick=100ms`.

    Args:
        listeners: Names that exist; None: any.
    Raises:
        CannotTell: a word is none of these, or names a listener that is not there.
    """
    words = list(words)
    setting = Setting(" ".join(words))
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise CannotTell(f"--set {word!r} is no KEY=VALUE such as timeout.echo=20s or tick=100ms")
        try:
            if key == "timeout" or key.startswith("timeout."):
                listener, _, was = key.removeprefix("timeout").removeprefix(".").partition("@")
                if listener and listeners is not None and listener not in listeners:
                    known = ", ".join(listeners)
                    raise CannotTell(f"--set {word}: no listener {listener!r} in the log; it has: {known}")
                rule = Rule(positive_ns(value), listener or None, positive_ns(was) // MS if was else None)
                setting = replace(setting, rules=(*setting.rules, rule))
            elif key == "tick":
                setting = replace(setting, tick_ns=positive_ns(value))
            else:
                raise CannotTell(f"--set {word}: unknown key {key!r}; known: timeout[.LISTENER[@WAS]], tick")
        except ArgumentTypeError as error:
            raise CannotTell(f"{word}: {error}") from None
    return setting


def duration(ns: int) -> str:
    """As the command line writes it."""
    return format_duration(ns / 1e9)
