"""Logs for machines: whatever is logged, each line is one JSON object with the
documented fields.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterator

import pytest

from reaper.errors import printable
from reaper.logs import LOGGERS, JsonFormatter, configure, line
from tests.helpers.server_process import PATIENCE, Process

Logged = Callable[..., io.StringIO]


@pytest.fixture
def logged() -> Iterator[Logged]:
    """Configures logging for a test, and puts back what was."""
    root = logging.getLogger()
    before, levels = (
        list(root.handlers),
        {name: logging.getLogger(name).level for name in ("", *LOGGERS)},
    )
    out = io.StringIO()

    def begin(log_format: str, level: str = "warning") -> io.StringIO:
        configure(log_format, level, out)
        return out

    yield begin
    logging.captureWarnings(False)
    root.handlers[:] = before
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_a_record_is_one_object_on_one_line_with_its_extras(logged: Logged) -> None:
    out = logged("json", "debug")
    log = logging.getLogger("reaper")
    log.debug(
        "reaped %r: %s\nsecond line",
        7,
        "idle",
        extra={"uid": 7, "reason": "idle", "due": float("inf")},
    )
    try:
        raise LookupError("on purpose")
    except LookupError:
        log.error("it raised", exc_info=True, extra={"uid": object})
    first, second = (json.loads(text) for text in out.getvalue().splitlines())
    assert (first["level"], first["logger"], first["pid"]) == ("DEBUG", "reaper", os.getpid())
    assert (first["message"], first["uid"], first["reason"]) == (
        "reaped 7: idle\nsecond line",
        7,
        "idle",
    )
    assert first["due"] == "inf"
    assert first["time"].endswith("Z")
    assert len(first["time"]) == len("2026-01-01T00:00:00.000Z")
    assert "LookupError: on purpose" in second["exception"]
    assert set(first) == {"time", "level", "logger", "message", "pid", "uid", "reason", "due"}


def test_warnings_and_stacks_are_lines_of_the_log_as_well(logged: Logged) -> None:
    out = logged("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old\nway", DeprecationWarning, stacklevel=1)
    logging.getLogger("reaper").error("where?", stack_info=True)
    first, second = (json.loads(text) for text in out.getvalue().splitlines())
    assert first["logger"] == "py.warnings"
    assert "DeprecationWarning: old\nway" in first["message"]
    assert "test_warnings_and_stacks" in second["stack"]


def test_text_stays_as_it_was_and_other_packages_stay_quiet(logged: Logged) -> None:
    out = logged("text", "debug")
    logging.getLogger("server_example.http").info("hello")
    logging.getLogger("another").info("not this")
    assert out.getvalue() == "INFO server_example.http: hello\n"


def test_what_a_peer_chose_moves_no_cursor_and_forges_no_line(logged: Logged) -> None:
    out = logged("text")
    try:
        raise LookupError("\x1b[2Jgone\r\u202e")
    except LookupError:
        logging.getLogger("reaper").error(
            "of %s", "\x1b]0;mine\x07\nERROR reaper: forged", exc_info=True
        )
    first, *trace = out.getvalue().splitlines()
    assert first == r"ERROR reaper: of \x1b]0;mine\x07\nERROR reaper: forged"
    assert trace[-1] == r"LookupError: \x1b[2Jgone\r\u202e"
    assert printable("/päth/with spaces\\") == "/päth/with spaces\\"


def test_a_line_without_a_logger_has_the_same_fields() -> None:
    said = json.loads(line("server_example", "listening", event="listening", port=8080))
    assert (said["level"], said["event"], said["port"]) == ("INFO", "listening", 8080)
    record = logging.LogRecord("app", logging.INFO, "", 0, "%d", (3,), None)
    assert (
        json.loads(JsonFormatter().format(record))["message"] == "3"
    )  # as a logging configuration names it


@pytest.mark.slow
def test_everything_that_a_server_prints_is_one_json_object_per_line() -> None:
    flags = "--log-format json --log-level info --idle 200ms --tick 50ms --drain-idle 0s --workers 1 --port 0"
    process = Process("echo", *flags.split())
    try:
        with socket.create_connection(process.address, timeout=PATIENCE) as client:
            client_name = "{}:{}".format(*client.getsockname())
            assert client.recv(1) == b""
        process.says('"reason": "idle"')
    finally:
        process.stop()
    said = [json.loads(text) for text in process.said().splitlines()]
    assert all({"time", "level", "logger", "message", "pid"} <= set(each) for each in said)
    assert [each["event"] for each in said if "event" in each][:2] == ["starting", "listening"]
    (closed,) = [each for each in said if each.get("reason") == "idle"]
    assert closed["lateness"] >= 0
    assert closed["message"].startswith(
        f"{closed['peer']} - closed: idle, limit 200ms, silent for 0."
    )
    assert closed["peer"] == client_name
    (last,) = [each for each in said if each.get("event") == "stopped"]
    assert (last["accepted"], last["reaped"], last["status"]) == (1, 1, 0)
