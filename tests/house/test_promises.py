"""What docs/stability.md promises: which names are public, and that what goes is
announced.

The lists below are the promise. A name that is added to an `__all__` is added here in
the same change; one that goes is deprecated first.
"""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

import reaper
from reaper._deprecated import NOTICES

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "stability.md").read_text()

NAMES = {
    "reaper": """
        ClockWentBackwards ConfigError ConnectionReaped DelayedOperation DuplicateUid
        Expiry Explanation
        HookErrors IdleReaper IdleRing InvalidArgument InvariantViolated Lease Level
        Purgatory ReaperError Statistics Timer TimingWheel UnknownUid stopping
    """,
    "reaper.trio": """
        Connection LoopStatistics ParkableStream ParkingLot Probe TrioReaper
        WatchedStream journal_clock open_keeper open_reaper relieve serve_pages serve_parked
        serve_status serve_tcp
    """,
    "reaper.asyncio": """
        AsyncioReaper Connection LoopStatistics Probe Protocol WatchedReader guard
        journal_clock loop_factory open_keeper open_reaper reaper_of relieve serve_status
        start_server
    """,
    "reaper.threads": """
        ThreadKeeper ThreadReaper open_keeper serve_status
    """,
    "reaper.keeper": """
        Keeper KeeperClosed KeeperOptions KeeperStatistics
    """,
    "reaper.uvicorn": """
        Auto H11 Http2 HttpTools loop metrics ready status
    """,
    "reaper.gunicorn": """
        ASGIWorker ThreadWorker UvicornWorker
    """,
    "reaper.aiohttp": """
        guard run_app
    """,
    "reaper.websockets": """
        GuardedConnection connection
    """,
    "reaper.config": """
        Attach DEFAULT Limits OPTIONS Reaper ReaperConfig SECTIONS Server Timeouts
    """,
    "reaper.journal": """
        ConnectionLog Journal JournalStatistics SCHEMA_VERSION peer_key
    """,
    "reaper.metrics": """
        BOUNDS CONTENT_TYPE Family Histogram LoopStatistics ReaperCollector Told
        exposition families instrument merged
    """,
    "reaper.logs": """
        JsonFormatter TextFormatter configure line
    """,
    "reaper.testing": """
        Client Closing HeapTimer HeapTimerQueue ManualClock NotConforming check_timer_queue
    """,
    "reaper.testing.on_trio": "check_keeper closings",
    "reaper.testing.on_asyncio": "VirtualLoop check_keeper closings",
    "reaper.testing.on_threads": "check_keeper",
    "reaper.policy": """
        ANSWERS IDLE_PHASES INSTANT IdlePolicy NOT_TAKEN Phase REASONS RULES Reason Rule
        Watch lifespan reasons
    """,
    "reaper.attach": """
        Event Guard Limits
    """,
}
"""The public names, by module. The pipeline's are those of its own `__all__`: it is
provisional.
"""

SETTINGS = {
    "Reaper": """
        tick wheel_size jitter reaps_per_second pressure release_buffers log_format log_level
        tame_gc
    """,
    "Timeouts": """
        idle first_byte handshake headers body keep_alive keep_alive_margin write request tunnel
        tunnel_age half_closed linger vanished max_age drain drain_delay drain_window
        drain_streams stream_ping stream_age abandoned drain_idle
    """,
    "Limits": """
        min_in_rate min_in_grace min_out_rate min_out_grace max_requests max_age_jitter
        max_header_bytes max_body_bytes max_connections
    """,
    "Server": """
        host port workers watchdog status tls_cert tls_key streams stream_retry
        stream_ping_lines behind
    """,
    "Attach": """
        idle first_byte max_age stalled_write min_in_rate min_in_grace vanished
        even_unanswered tick jitter reaps_per_second how
    """,
}
"""The settings by section, in the order in which its class takes them without names: a
new one goes to the end.
"""


def source(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def exported(module: str) -> list[str]:
    """The `__all__` of *module*, which is not imported: not every framework is
    installed.
    """
    for node in ast.parse(source(module)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def promised() -> dict[str, str]:
    """By module, what the page says that it is."""
    found = re.findall(r"^\| ((?:`reaper[.\w]*`(?:, )?)+) \| \*\*(\w+)\*\* \|", PAGE, re.MULTILINE)
    return {module: kind for cell, kind in found for module in re.findall(r"`([.\w]+)`", cell)}


@pytest.mark.parametrize("module", NAMES)
def test_a_module_exports_the_names_that_are_promised(module: str) -> None:
    assert set(exported(module)) == set(NAMES[module].split())


def test_a_section_takes_its_settings_in_the_order_that_is_promised() -> None:
    """Or a section that a program makes by position gets another meaning."""
    config = importlib.import_module("reaper.config")
    kinds = {name: getattr(config, name) for name in SETTINGS}
    taken = {name: [field.name for field in fields(kind)] for name, kind in kinds.items()}
    assert taken == {name: names.split() for name, names in SETTINGS.items()}


def test_each_module_says_what_the_page_says_of_it() -> None:
    assert promised().keys() == {*NAMES, "reaper.pipeline"}
    for module, kind in promised().items():
        told = ast.get_docstring(ast.parse(source(module))) or ""
        assert re.findall(r"^Stability: (\w+)\.$", told, re.MULTILINE) == [kind], module


def test_the_reference_shows_each_public_module() -> None:
    shown = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    for module in NAMES:
        assert f".. automodule:: {module}\n" in shown, module


def minor(version: str) -> tuple[int, int]:
    major, second, _ = version.split(".")
    return int(major), int(second)


def test_the_pin_on_the_page_is_this_minor_version() -> None:
    major, second = minor(reaper.__version__)
    pins = re.findall(r"`idle-reaper([^`]*)`", PAGE)
    assert pins == [f">={major}.{second},<{major}.{second + 1}"]


@pytest.mark.parametrize("name", NOTICES)
def test_what_goes_is_announced_for_two_minor_releases_and_then_gone(name: str) -> None:
    notice = NOTICES[name]
    (major, second) = minor(notice.since)
    assert minor(notice.until) in {(major, second + 2), (major + 1, 0)}
    assert minor(reaper.__version__) < minor(notice.until), f"{name} goes in this release"


def test_a_name_that_goes_still_works_and_says_what_to_write() -> None:
    policy = importlib.import_module("reaper.policy")
    with pytest.warns(DeprecationWarning, match=r"use reaper\.policy\.reasons\.MAX_AGE"):
        assert policy.TOO_OLD == "max_age"
    rules = policy.RULES
    with pytest.warns(DeprecationWarning, match=r"use reaper\.policy\.ANSWERS") as caught:
        assert [rules[policy.Phase.BODY].status, rules[policy.Phase.WRITE].status] == [408, None]
    assert {Path(each.filename) for each in caught} == {Path(__file__)}


def test_what_was_never_there_is_an_attribute_error_and_warns_of_nothing() -> None:
    policy = importlib.import_module("reaper.policy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AttributeError, match="has no attribute 'NONSENSE'"):
            _ = policy.NONSENSE
