"""Whether a server of yours is right with time: every kind of live and dead client at
it, in a test.

    def test_my_server_is_right_with_time():
        check("127.0.0.1:8080", limits={"keep_alive": 5.0, "headers": 10.0})

Stability: public.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from .conformance import NotConforming

__all__ = ["Found", "check"]

Where = str | tuple[str, int]
"""`HOST:PORT`, a URL, or host and port."""
Start = Where | Sequence[str] | Callable[[], AbstractContextManager[Where]]


@dataclass(frozen=True)
class Found:
    """What was found: the kinds of clients, in words, by verdict.

    Attributes:
        right: Those with which the server was right.
        not_judged: Those that nothing grants a verdict on, and why: a route that is
            missing, a limit that is not known, a machine that was late.
    """

    right: tuple[str, ...]
    not_judged: Mapping[str, str]


def check(
    start: Start,
    *,
    limits: Mapping[str, float] | None = None,
    tick: float = 1.0,
    wait: float = 30.0,
    learn: bool = False,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    routes: Mapping[str, str] | None = None,
) -> Found:
    """Try a server with every kind of client, by `reaper-loadgen conform`, in a process
    of its own: it shares neither a loop nor a bug with the server.

    Args:
        start: Where the server is, as `HOST:PORT`, URL, or host and port; or the words
            of a command that starts it, in which `{port}` stands for the port; or what
            gives a context manager that serves while it is entered, and gives where.
        limits: The server's limits, in seconds, by name: `first_byte`, `headers`,
            `body`, `keep_alive`, `write`, `tunnel`, `max_age`, ...; 0: it has none.
        tick: Seconds by which a close may be late.
        wait: Seconds for which a client is borne at most.
        learn: Whether limits that are not given are looked for, for up to *wait*.
        only, skip: Groups, levels (`must`, `should`, `advice`), or words of a kind's
            name.
        routes: Where the server has what kinds ask for: `{"/slow?": "/sleep?s="}`.

    Returns:
        What was right, and what could not be judged.

    Raises:
        NotConforming: the server is wrong with a kind; the message names each, with
            what its client saw. Or nothing could be judged.
        ValueError: an argument is wrong, or the server does not answer.
    """
    flags = ["--json", "--quiet", f"--tick={tick}s", f"--wait={wait}s"]
    flags += [f"--{name.replace('_', '-')}={value}s" for name, value in (limits or {}).items()]
    flags += [f"--route={name}={path}" for name, path in (routes or {}).items()]
    flags += [f"--only={words}" for words in only] + [f"--skip={words}" for words in skip]
    flags += [] if learn else ["--no-learn"]
    if callable(start):
        served = start()
    elif isinstance(start, str) or _is_address(start):
        served = nullcontext(start)  # type: ignore[arg-type]
    else:
        return _judged([*flags, "--", *map(str, start)])
    with served as where:
        return _judged([*flags, where if isinstance(where, str) else f"{where[0]}:{where[1]}"])


def _is_address(start: object) -> bool:
    return isinstance(start, tuple) and len(start) == 2 and isinstance(start[1], int)


def _judged(words: Sequence[str]) -> Found:
    done = subprocess.run(
        [sys.executable, "-m", "reaper_loadgen", "conform", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if not done.stdout:
        raise ValueError(done.stderr.strip())
    kinds = json.loads(done.stdout)["kinds"]
    wrong = [
        f"{each['kind']}: {each['why']} ({each['level']} {each['source'] or each['ground']});"
        f" saw {each['saw']}"
        for each in kinds
        if each["verdict"] == "wrong"
    ]
    right = tuple(each["kind"] for each in kinds if each["verdict"] == "right")
    missing = {each["kind"]: each["why"] for each in kinds if each["verdict"] == "not judged"}
    if wrong:
        raise NotConforming("\n".join([f"wrong with {len(wrong)} kinds of clients:", *wrong]))
    if not right:
        raise NotConforming(f"nothing could be judged: {sorted(set(missing.values()))}")
    return Found(right, missing)
