"""What is asked: settings to replay a journal under, and what each means for a silence.
No Spark here.

The rule of this module: *a setting says everything about a replay, the log nothing but
what happened*. Whether the log can answer is decided here too, before anything is
counted.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...html.units import spoken
from ..arguments import Fault, positive_ns

MS = 1_000_000


@dataclass(slots=True)
class Setting:
    """One row of the answer. What it does not name stays as in the log."""

    name: str
    timeouts: dict[tuple[str, int], int] = field(default_factory=dict)
    """(listener, ms that were in force) -> ns; an empty listener: any; 0 ms: wherever
    any was.
    """
    tick_ns: int | None = None

    def timeout_ns(self, listener: str, timeout_ms: int) -> int:
        """The timeout of silences for which *timeout_ms* > 0 was in force. The
        narrowest wins.
        """
        keys = (listener, timeout_ms), ("", timeout_ms), (listener, 0), ("", 0)
        return next((self.timeouts[key] for key in keys if key in self.timeouts), timeout_ms * MS)


@dataclass(frozen=True, slots=True)
class InForce:
    """One timeout that a run of a writer had in force at one listener."""

    run: int
    listener: str
    listener_hash: int
    timeout_ms: int


def refusal(
    setting: Setting, in_force: Iterable[InForce], thresholds_ns: Mapping[int, int]
) -> str | None:
    """Why the log cannot tell what *setting* would do; None if it can. *thresholds_ns*:
    of each run, the silence up to which none was written.
    """
    for entry in in_force:
        timeout = setting.timeout_ns(entry.listener, entry.timeout_ms)
        threshold = thresholds_ns[entry.run]
        if timeout != entry.timeout_ms * MS and timeout < threshold:
            short = (
                f"{entry.listener}: timeout {spoken(timeout / 1e9)} is below "
                f"{spoken(threshold / 1e9)}"
            )
            return f"{short}, and the journal did not write shorter silences one by one (mode gaps)"
    return None


def parse(words: Iterable[str], listeners: Iterable[str] | None = None) -> Setting:
    """Read one `--set`: `timeout=20s`, `timeout.LISTENER=20s`,
    `timeout.LISTENER@75s=60s`, `tick=100ms`.

    Args:
        listeners: Names that exist; None: any.
    Raises:
        Fault: a word is none of these, or names a listener that is not there.
    """
    words = list(words)
    setting = Setting(" ".join(words))
    for word in words:
        key, equals, value = word.partition("=")
        kind, _, narrowed = key.partition(".")
        if not equals:
            raise Fault(f"--set {word!r} is no KEY=VALUE such as timeout.echo=20s or tick=100ms")
        try:
            if kind == "timeout":
                listener, _, was = narrowed.partition("@")
                if listener and listeners is not None and listener not in listeners:
                    known = ", ".join(listeners)
                    raise Fault(
                        f"--set {word}: no listener {listener!r} in the log; it has: {known}"
                    )
                setting.timeouts[listener, positive_ns(was) // MS if was else 0] = positive_ns(
                    value
                )
            elif key == "tick":
                setting.tick_ns = positive_ns(value)
            else:
                raise Fault(
                    f"--set {word}: unknown key {key!r}; known: timeout[.LISTENER[@WAS]], tick"
                )
        except ArgumentTypeError as error:
            raise Fault(f"{word}: {error}") from None
    return setting
