"""Whether a server's keep-alive timeout suits the proxy in front, and the command that
mends it.

The rule of this module: *nobody guesses*. The proxy is the one that was named, and the
timeout is in the configuration, or in the command by which the server was started.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..config.balancers import BALANCERS, ENDLESS
from ..config.durations import format_duration
from ..config.lint import lint
from ..config.settings import ReaperConfig

FLAGS = {
    "uvicorn": ("--timeout-keep-alive", 5.0),
    "gunicorn": ("--keep-alive", 2.0),
    "hypercorn": ("--keep-alive", 5.0),
}
"""Servers whose command says their keep-alive timeout: the flag, and what holds without
it.
"""
MORE, LESS = 5.0, 10.0
"""Seconds by which the timeout should be longer than the proxy's, or shorter."""


def by_config(path: str, behind: str | None) -> tuple[str, str] | None:
    """What is wrong with `timeouts.keep_alive` in the file *path*, and the command that
    mends it.

    Args:
        behind: The proxy; None: the one that `server.behind` names.
    Raises:
        ConfigError: the file cannot be used.
    """
    config = _of_file(path, behind)
    said = _wrong(config)
    if not said:
        return None
    line = f'keep_alive = "{format_duration(_suits(config.server.behind))}"'
    text, place = Path(path).read_text(), shlex.quote(path)
    if re.search(r"^keep_alive *=", text, re.MULTILINE):
        return said, f"sed -i 's/^keep_alive *=.*/{line}/' {place}"
    if re.search(r"^\[timeouts\]", text, re.MULTILINE):
        return said, rf"sed -i 's/^\[timeouts\]/&\n{line}/' {place}"
    return said, rf"printf '\n[timeouts]\n{line}\n' >> {place}"


def by_command(command: Sequence[str], behind: str) -> tuple[str, str] | None:
    """The same for a server that was started by *command*.

    Raises:
        LookupError: the command does not say its timeout.
    """
    words, flag, config = _started_by(command, behind)
    said = _wrong(config)
    if not said:
        return None
    return said, shlex.join([*words, flag, f"{_suits(behind):.0f}"])


def pool_by_config(path: str, behind: str | None) -> list[str]:
    """What the proxy has to be told, where it keeps connections for ever otherwise:
    nobody sees from here whether it was. The arguments are those of `by_config`.
    """
    return _of_the_pool(_of_file(path, behind))


def pool_by_command(command: Sequence[str], behind: str) -> list[str]:
    """The same for a server that was started by *command*.

    Raises:
        LookupError: the command does not say its timeout.
    """
    return _of_the_pool(_started_by(command, behind)[2])


def _of_the_pool(config: ReaperConfig) -> list[str]:
    if config.server.behind not in ENDLESS:
        return []
    title, _ = ENDLESS[config.server.behind]
    return [f"proxy: keep_alive {one.text}" for one in lint(config) if title in one.text]


def _of_file(path: str, behind: str | None) -> ReaperConfig:
    return ReaperConfig.load(path, overrides={"server.behind": behind} if behind else None)


def _started_by(command: Sequence[str], behind: str) -> tuple[list[str], str, ReaperConfig]:
    """*command* without its keep-alive timeout, the flag that says it, and what it
    amounts to.
    """
    words = list(command)
    name = next((Path(word).name for word in words[:4] if Path(word).name in FLAGS), "")
    if not name:
        raise LookupError
    flag, seconds = FLAGS[name]
    for place, word in enumerate(words):
        if word == flag or word.startswith(f"{flag}="):
            end = place + 1 + (word == flag)
            seconds = float(words[end - 1].rpartition("=")[2])
            del words[place:end]
            break
    given = {"timeouts.keep_alive": format_duration(seconds), "server.behind": behind}
    return words, flag, ReaperConfig.load(None, {}, given)


def _wrong(config: ReaperConfig) -> str:
    remarks = lint(config)
    said = [one for one in remarks if (one.severity, one.path) == ("error", "timeouts.keep_alive")]
    return "; ".join(f"keep_alive {one.text}" for one in said)


def _suits(behind: str) -> float:
    balancer = BALANCERS[behind]
    return balancer.idle + MORE if balancer.tells else max(balancer.idle - LESS, balancer.idle / 2)
