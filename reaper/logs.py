"""Logs for machines have one JSON object per line, whatever logs it.

The rule of this module: *a line is an object, and an object is a line*. A message of
several lines, a traceback and a value that JSON does not know are put into one line.

| field | meaning |
|---|---|
| `time` | when, UTC, ISO 8601 with milliseconds |
| `level` | DEBUG, INFO, WARNING, ERROR or CRITICAL |
| `logger` | `reaper`, `server_example`, `server_example.http`, ... |
| `message` | for people; its words may change |
| `pid` | of the process |
| `exception`, `stack` | a traceback, a stack, where there is one |
| `peer`, `uid`, `reason`, `limit`, `silence`, `lateness`, `due` | of a close |
| others | what else the record carries as `extra`: `lag`, `tick` of a stall |

Stability: public.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import IO, Any

from .errors import printable

__all__ = ["JsonFormatter", "TextFormatter", "configure", "line"]

LOGGERS = ("reaper", "server_example")
"""The loggers whose level `configure` sets; that of other packages stays at WARNING."""

TEXT = "%(levelname)s %(name)s: %(message)s"

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class TextFormatter(logging.Formatter):
    """Formats any record for a terminal. Text that a peer may have chosen moves no
    cursor and forges no line.
    """

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Format *record* as one line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Format a traceback as lines."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """Formats any record as one JSON object. For `logging.config` as well:
    `"()": "reaper.logs.JsonFormatter"`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format *record* as one line."""
        found: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        found |= {
            name: _plain(value)
            for name, value in vars(record).items()
            if name not in _USUAL | found.keys()
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            found["stack"] = record.stack_info
        return json.dumps(found, default=str)


def _time(seconds: float) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _plain(value: Any) -> Any:
    """Make text of NaN and of infinity, which JSON does not have."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def line(logger: str, message: str, **fields: Any) -> str:
    """Format *message* as `JsonFormatter` does, at INFO and with *fields*, for programs
    that print without a logger.
    """
    record = logging.LogRecord(logger, logging.INFO, "", 0, message, None, None)
    vars(record).update(fields)
    return JsonFormatter().format(record)


def configure(
    log_format: str = "text", level: str = "warning", stream: IO[str] | None = None
) -> None:
    """Have this process log to *stream*, standard error unless told otherwise, in place
    of what was configured before.

    Args:
        log_format: "text", or "json": one object per line; warnings of Python's are
            lines of the log then.
        level: Least level of our own loggers: debug, info, warning, error.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(log_format == "json")
    for name in LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
