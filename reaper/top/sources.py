"""The sources of a picture: a server's own status, or the kernel.

The rule of this module: *a source that cannot answer says why in one line*, and may be
asked again.
"""

from __future__ import annotations

import heapq
import json
import time
import urllib.parse
from bisect import bisect_right
from typing import Any

from ..errors import ReaperError, needs
from ..status import IDLE_BOUNDS, SCHEMA
from .picture import PHASE

TIMEOUT = 5.0
"""Seconds that a server has for its answer: an event loop may well stall for so
long.
"""

LARGEST = 16 << 20
"""The most bytes of an answer that are read."""

SEES = (
    "a status sees what `--http reaper.uvicorn:Auto` or a worker of reaper.gunicorn guards, or the "
    "program that serves it, not `reaper run`; `reaper doctor --pid N` says whether that is there"
)
"""What is said where an answer is no picture, so that nobody takes it for no guard."""

NAMED = 40
"""How many connections are named, of those that have been silent the longest."""


class Unreachable(ReaperError):
    """A source has no answer now. Nothing was changed; you may ask again."""


class Http:
    """The status that a server serves at *url*: `http://127.0.0.1:9180`, or with a
    path.

    Raises:
        ReaperError: *url* is no such URL.
    """

    def __init__(self, url: str) -> None:
        said = url if "://" in url else f"http://{url}"
        try:
            parts = urllib.parse.urlsplit(said)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ReaperError(f"--connect {url}: expected a URL such as http://127.0.0.1:9180")
        self.name = said
        self._url = (
            said
            if parts.path.strip("/")
            else urllib.parse.urlunsplit(parts._replace(path="/status"))
        )

    def ask(self) -> dict[str, Any]:
        """Ask for a status document, for at most `TIMEOUT` seconds. Raises
        Unreachable.
        """
        # Imported here: every `reaper` command knows this module, and few of them speak
        # HTTP.
        import http.client
        import urllib.request
        from urllib.error import HTTPError

        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(self._url, timeout=TIMEOUT) as response:
                found = json.loads(response.read(LARGEST))
        except HTTPError as error:
            hint = (
                "; is there a status? (uvicorn: mount reaper.uvicorn.status; else serve_status)"
                if error.code == 404
                else ""
            )
            error.close()
            raise Unreachable(f"{self._url} answered {error.code} {error.reason}{hint}") from None
        except TimeoutError:
            raise Unreachable(f"{self._url}: no answer within {TIMEOUT:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            if type(error) is http.client.BadStatusLine:
                raise Unreachable(self._no_status("expected HTTP")) from None
            cause = getattr(error, "reason", error)
            why = str(getattr(cause, "strerror", None) or cause).lower()
            raise Unreachable(f"{self._url}: {why or type(error).__name__}") from None
        except ValueError:
            raise Unreachable(self._no_status("expected JSON")) from None
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            got = found.get("schema") if isinstance(found, dict) else None
            raise Unreachable(self._no_status(f"schema {got!r}, expected {SCHEMA!r}"))
        return found

    def _no_status(self, why: str) -> str:
        """That what answers is none, because of *why*; no word about the guard."""
        return (
            f"{self._url} is not the status of a reaper: {why}; that says nothing of whether the "
            f"server is guarded: {SEES}"
        )


class Kernel:
    """The connections of a process and its children, of any server, as the kernel sees
    them. Linux.

    Args:
        by: What they are counted by: PHASE, or ADDRESS, that of the client, which then
            stands in the place of the phase.
    Raises:
        ReaperError: there is no such process, its descriptors may not be read, or it
            listens nowhere.
        NotInstalled: there is no psutil.
    """

    def __init__(self, pid: int, by: str = PHASE) -> None:
        with needs("top --pid", "idle-reaper[attach]"):
            from ..attach.kernel import Linux
            from ..attach.targets import ByPid

        self.name: str = f"process {pid}"
        self._pid = pid
        self._by = by
        self._target = ByPid(pid, Linux(pid))

    def ask(self) -> dict[str, Any]:
        """Make a status document. Raises Unreachable. Cost: about 10 us per
        connection.
        """
        from ..attach.kernel import Refusal
        from ..attach.netlink import addresses_of

        try:
            listeners = self._target.listeners()
        except Refusal as gone:
            raise Unreachable(str(gone)) from None
        self._target.scan()
        phases: dict[str, list[int]] = {}
        silences: list[tuple[float, bytes, str]] = []
        for found in self._target.kernel.dump(listeners, True):
            seen = found.snapshot
            if seen is None or not found.inode or found.inode not in self._target or seen.outgoing:
                continue
            phase = _phase_of(seen)
            idle = max(0.0, seen.received_ago)
            named = phase if self._by == PHASE else addresses_of(found.ident)[1].host
            row = phases.setdefault(named, [0] * (len(IDLE_BOUNDS) + 1))
            row[bisect_right(IDLE_BOUNDS, idle)] += 1
            silences.append((idle, found.ident, phase))
        unknown = {"timeout_s": None, "due_in_s": None}
        worker = {
            "worker": 0,
            "pid": self._pid,
            "at": time.monotonic(),
            "connections": len(silences),
            "idle_bounds_s": list(IDLE_BOUNDS),
            "phases": [
                {"phase": name, "timeout_s": None, "connections": sum(row), "idle": row}
                for name, row in phases.items()
            ],
            "due_next": [
                {"name": str(addresses_of(ident)[1]), "phase": phase, "idle_s": idle, **unknown}
                for idle, ident, phase in heapq.nlargest(NAMED, silences)
            ],
            "closed": {},
        }
        known = {"schema": SCHEMA, "server": self.name, "workers": [worker], "missing": []}
        return known if self._by == PHASE else {**known, "by": self._by}


def _phase_of(seen: Any) -> str:
    """What a connection waits for, by what the kernel knows of it, in at most twelve
    characters.

    A question that came within one jiffy of the answer before looks answered.
    """
    if seen.queued:
        return "not taken"
    if seen.unread:
        return "not read"
    if not seen.received:
        return "first byte"
    if seen.received_ago < seen.sent_ago or not seen.acked:
        return "server"
    return "client"
