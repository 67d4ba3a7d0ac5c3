"""Claims about `python -m reaper`, the lint, reloading, and the table in the
documentation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reaper.__main__ import main, tables
from reaper.config import OPTIONS, ReaperConfig
from reaper.config.balancers import BALANCERS
from reaper.config.command import SETTINGS, rewrite
from reaper.config.durations import format_duration
from reaper.config.flags import _joined
from reaper.config.lint import COARSE_SHARE, GOOD_SHARE, IDLE_KEYS, Finding, lint, room
from reaper.config.settings import applied, changes
from reaper.driver.pace import LONGEST_SLICE, REAPS_PER_SLICE, SECONDS_PER_REAP
from reaper.servers.cards import pages as settings_pages

if TYPE_CHECKING:
    from tests.conftest import Ran

ROOT = Path(__file__).parent.parent.parent
REASONS, EFFECTS, SERVERS, DEPRECATIONS, MODULES, *OF_SERVERS = tables()
HOOK = "reaper/run/hook/sitecustomize.py"


@pytest.fixture(autouse=True)
def _no_variables_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in OPTIONS.values():
        monkeypatch.delenv(found.environment, raising=False)


def config(**overrides: object) -> ReaperConfig:
    """A configuration from `section__key=value`."""
    return ReaperConfig.load(
        environ={}, overrides={name.replace("__", "."): value for name, value in overrides.items()}
    )


def graves(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.path) for finding in found if finding.severity != "note"]


@pytest.mark.parametrize(
    ("tick", "idle", "said"),
    [
        *(("1s", "10s", None), ("1s", "4s", None), ("1s", "3s", "warning"), ("1s", "1s", "error")),
        *(("2s", "1s", "error"), ("1ms", "10s", "warning"), ("1s", "0s", None)),  # too fine; off
    ],
)
def test_a_tick_is_judged_by_the_shortest_timeout(tick: str, idle: str, said: str | None) -> None:
    found = lint(config(reaper__tick=tick, timeouts__idle=idle))
    assert graves(found) == ([(said, "reaper.tick")] if said else [])
    assert any("times the promised time" in each.text for each in found) is (said == "error")


IDLE_OFF = {f"timeouts__{key}": "0s" for key in IDLE_KEYS}


@pytest.mark.parametrize(
    ("limit", "tick"),
    [
        ("timeouts__max_age", "reaper__tick"),
        ("timeouts__request", "reaper__tick"),
        ("attach__idle", "attach__tick"),
    ],
)
def test_a_tick_is_judged_by_ages_and_by_what_attach_tolerates_too(limit: str, tick: str) -> None:
    found = lint(config(**IDLE_OFF, **{limit: "5s", tick: "60s"}))
    (error,) = (each for each in found if each.severity == "error")
    assert error.path == tick.replace("__", ".")
    assert limit.replace("__", ".") in error.text


def test_up_to_a_quarter_of_the_shortest_timeout_a_tick_is_yours_to_choose() -> None:
    page = " ".join((ROOT / "docs" / "tick.md").read_text().split())
    assert f"at most {GOOD_SHARE:.0%} late".replace("%", " %") in page
    assert f"closes up to {COARSE_SHARE:.0%} late".replace("%", " %") in page
    assert not graves(lint(config(timeouts__idle="4s", reaper__tick="1s")))
    assert graves(lint(config(timeouts__idle="3900ms", reaper__tick="1s")))


@pytest.mark.parametrize("size", [3, 256])
def test_another_wheel_size_is_a_note(size: int) -> None:
    (note,) = (each for each in lint(config(reaper__wheel_size=size)))
    assert (note.severity, note.path) == ("note", "reaper.wheel_size")
    assert note.text.startswith(f"{size} instead of 64")


@pytest.mark.parametrize("behind", OPTIONS["server.behind"].kind.choices)  # type: ignore[attr-defined]
def test_the_defaults_pass_where_what_stands_in_front_gives_up_before_them(behind: str) -> None:
    assert behind not in BALANCERS or BALANCERS[behind].source
    slower = (
        behind in BALANCERS and BALANCERS[behind].tells and BALANCERS[behind].idle >= 95
    )  # "unknown" is default
    assert graves(lint(config(server__behind=behind))) == (
        [("error", "timeouts.keep_alive")] if slower else []
    )


@pytest.mark.parametrize(
    ("given", "severity", "words"),
    [
        ({"server__behind": "nginx"}, "note", "20s: nginx cuts a response"),
        ({"server__behind": "nginx", "timeouts__stream_ping": "0s"}, "note", "use 20s"),
        ({"server__behind": "nginx", "timeouts__stream_ping": "60s"}, "error", "use 20s"),
        ({"server__behind": "haproxy"}, "note", "16s: HAProxy"),
        ({"server__behind": "nginx", "timeouts__stream_ping": "59s"}, None, ""),
        ({"server__behind": "caddy"}, None, ""),
        ({"timeouts__stream_ping": "60s"}, None, ""),
    ],
)
def test_a_ping_is_judged_by_the_read_timeout_of_what_stands_in_front(
    given: dict[str, str], severity: str | None, words: str
) -> None:
    found = [each for each in lint(config(**given)) if each.path == "timeouts.stream_ping"]
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all(words in each.text for each in found)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"timeouts__stream_age": "10s", "timeouts__stream_ping": "15s"}, "timeouts.stream_age"),
        ({"server__stream_retry": "2s", "timeouts__drain_streams": "0s"}, "server.stream_retry"),
        ({"timeouts__drain_window": "29s"}, "timeouts.drain_window"),
    ],
)
def test_settings_of_streams_that_defeat_each_other_are_a_warning(
    given: dict[str, str], path: str
) -> None:
    assert ("warning", path) in [(each.severity, each.path) for each in lint(config(**given))]


@pytest.mark.parametrize(
    ("behind", "keep_alive", "wrong"),
    [
        ("alb", "59s", True), ("alb", "60s", True), ("alb", "61s", False),
        ("nginx", "75s", True), ("nginx", "76s", False),
        ("gorouter", "75s", True), ("gorouter", "91s", False),
        ("nlb", "349s", False), ("nlb", "350s", True),
        ("direct", "5s", False), ("unknown", "5s", False), ("alb", "0s", False),
        ("gcp-alb", "600s", True), ("go", "91s", False),
    ],
)  # fmt: skip
def test_keep_alive_is_judged_by_what_stands_in_front(
    behind: str, keep_alive: str, wrong: bool
) -> None:
    found = lint(config(server__behind=behind, timeouts__keep_alive=keep_alive))
    errors = [finding for finding in found if finding.severity == "error"]
    assert {finding.path for finding in errors} == ({"timeouts.keep_alive"} if wrong else set())
    if wrong and behind in BALANCERS:
        assert BALANCERS[behind].title in errors[0].text


DOORS = ("first_byte", "headers", "keep_alive", "write", "request", "vanished", "tunnel_age")


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        *(({f"timeouts__{key}": "0s"}, f"timeouts.{key}") for key in DOORS),
        ({"limits__min_in_rate": 0}, "limits.min_in_rate"),
        ({"limits__min_out_rate": 0}, "limits.min_out_rate"),
        ({"timeouts__keep_alive_margin": "95s"}, "timeouts.keep_alive_margin"),
        ({"timeouts__drain": "1s"}, "timeouts.drain_idle"),
        ({"timeouts__drain_window": "31s"}, "timeouts.drain_window"),
        ({"timeouts__vanished": "9s"}, "timeouts.vanished"),
        ({"timeouts__drain_delay": "1s"}, "timeouts.drain_delay"),
    ],
)
def test_doors_left_open_and_settings_that_defeat_each_other_are_a_warning(
    overrides: dict[str, Any], path: str
) -> None:
    assert graves(lint(config(**overrides))) == [("warning", path)]


FINDINGS = {
    "reaper__tick": "1m",
    "timeouts__headers": "0s",
    "timeouts__max_age": "9s",
    "timeouts__tunnel_age": "9s",
}
"""Settings of which each is found at fault."""


def test_findings_come_with_the_gravest_first() -> None:
    order = [finding.severity for finding in lint(config(**FINDINGS))]
    assert order == sorted(order, key=("error", "warning", "note").index)
    assert set(order) == {"error", "warning", "note"}


def test_an_age_below_an_idle_time_is_a_note() -> None:
    notes = {each.path for each in lint(config(**FINDINGS)) if each.severity == "note"}
    assert {"timeouts.max_age", "timeouts.tunnel_age"} <= notes


def test_a_reload_names_every_change_and_applies_only_the_live_ones() -> None:
    old = config(timeouts__idle="5s", server__port=1)
    new = config(timeouts__idle="6s", server__port=2, reaper__tick="2s", limits__max_requests=7)
    assert changes(old, new) == {
        "reaper.tick": "1s -> 2s (needs a restart)",
        "timeouts.idle": "5s -> 6s",
        "limits.max_requests": "1000 -> 7",
        "server.port": "1 -> 2 (needs a restart)",
    }
    after = applied(old, new)
    assert (after.timeouts.idle, after.limits.max_requests) == (6.0, 7)
    assert (after.reaper.tick, after.server.port) == (1.0, 1)
    assert set(changes(after, new)) == {"reaper.tick", "server.port"}
    assert after.origins == dict.fromkeys(
        ("timeouts.idle", "limits.max_requests", "server.port"), "command line"
    )


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A file that sets one timeout."""
    path = tmp_path / "good.toml"
    path.write_text('[timeouts]\nidle = "7s"\n')
    return path


def test_check_prints_values_with_their_origin_and_passes(
    good: Path, call: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REAPER_TIMEOUTS_BODY", "8s")
    status, out, _ = call(main, "check", good, "--write", "9s")
    said, _, attach = out.partition("[attach]")  # whose keys have the names of others
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in said.splitlines() if line}
    assert lines["idle"] == ["7s", str(good)]
    assert lines["body"] == ["8s", "environment REAPER_TIMEOUTS_BODY"]
    assert lines["write"] == ["9s", "command line"]
    assert lines["tunnel"] == ["10m", "default"]
    assert (status, "verdict: pass" in attach) == (0, True)


def test_check_says_the_same_as_json(good: Path, call: Ran) -> None:
    status, out, _ = call(main, "check", good, "--tick", "30s", "--json")
    report = json.loads(out)
    assert (status, report["schema"], report["verdict"]) == (1, "reaper-check/1", "fail")
    assert report["values"]["timeouts.idle"] == {"value": 7.0, "text": "7s", "origin": str(good)}
    assert set(report["values"]) == set(OPTIONS)
    assert report["findings"][0]["path"] == "reaper.tick"


def test_check_of_an_unusable_file_says_every_fault_on_stderr(tmp_path: Path, call: Ran) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('[timeouts]\nidle = 3\nbody = "x"\n')
    status, out, err = call(main, "check", path, "--json")
    assert (status, json.loads(out)["errors"]) == (2, err.splitlines())
    assert [line.split(":")[0] for line in err.splitlines()] == ["timeouts.idle", "timeouts.body"]


def test_check_needs_no_file_and_reads_the_one_that_the_servers_would(
    tmp_path: Path, call: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REAPER_TIMEOUTS_BODY", "8s")
    monkeypatch.setenv("REAPER_IDLE", "3s")
    status, said, _ = call(main, "check", "--changed")
    assert [line.split() for line in said.splitlines()[:2]] == [
        ["[timeouts]"],
        ["body", "8s", "environment", "REAPER_TIMEOUTS_BODY;", "default", "30s"],
    ]
    assert (status, "keep_alive" in said) == (0, False)
    monkeypatch.delenv("REAPER_TIMEOUTS_BODY")
    status, said, _ = call(main, "check", "--changed", "--json")
    report = json.loads(said)
    (note,) = report["findings"]  # a variable that sets nothing
    assert (status, report["values"], note["severity"], note["path"]) == (
        0,
        {},
        "note",
        "REAPER_IDLE",
    )
    assert note["text"].endswith("did you mean REAPER_TIMEOUTS_IDLE?")
    for seconds, named in ((7, "named.toml"), (8, "given.toml")):
        (tmp_path / named).write_text(f'[timeouts]\nidle = "{seconds}s"\n')
        monkeypatch.setenv("REAPER_CONFIG", str(tmp_path / "named.toml"))
        status, said, _ = call(
            main, "check", "--changed", *([tmp_path / named] if seconds == 8 else [])
        )
        assert (status, f"{seconds}s           {tmp_path / named}" in said) == (0, True)


@pytest.mark.parametrize("arguments", [[], ["chekc", "x"], ["check", "x", "--ilde", "3s"]])
def test_bad_arguments_are_one_line_and_status_2(arguments: list[str], call: Ran) -> None:
    status, _, err = call(main, *arguments)
    assert (status, len(err.splitlines())) == (2, 1)


def test_help_of_check_explains_every_setting(call: Ran) -> None:
    status, said, _ = call(main, "check", "--help")
    assert (status, [found.flag for found in OPTIONS.values() if found.flag not in said]) == (0, [])


def test_rewriting_keeps_what_is_around_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    settings, reasons = SETTINGS, REASONS
    path.write_text(
        f"before\n{reasons.begin}\nold\n{reasons.end}\nbetween\n"
        f"{settings.begin}\nold\n{settings.end}\nafter\n"
    )
    assert main(["table", str(path)]) == 0
    assert path.read_text() == (
        f"before\n{reasons.begin}\n\n{reasons.write()}\n{reasons.end}\nbetween\n"
        f"{settings.begin}\n\n{settings.write()}\n{settings.end}\nafter\n"
    )
    assert rewrite(path.read_text(), [settings, reasons]) == path.read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing", f"no line such as {SETTINGS.begin}"),
        (REASONS.begin, f"no line {REASONS.end}"),
        (f"{REASONS.end}{REASONS.begin}", f"{REASONS.end} comes before {REASONS.begin}"),
    ],
)
def test_a_page_without_the_markers_of_a_table_is_refused(
    tmp_path: Path, call: Ran, text: str, why: str
) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    status, _, err = call(main, "table", path)
    assert (status, err.startswith(f"{path}: {why}: expected")) == (2, True)
    assert path.read_text() == text


def test_what_is_no_file_has_no_table(tmp_path: Path, call: Ran) -> None:
    status, _, err = call(main, "table", tmp_path)
    assert (status, err.startswith(f"{tmp_path}: Is a directory: expected")) == (2, True)


def test_the_documentation_has_not_drifted() -> None:
    pages = {
        path: path.read_text(encoding="utf-8")
        for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / HOOK)
    }
    for table, page in (
        (SETTINGS, "docs/timeouts.md"),
        (REASONS, "docs/howto/why-closed.md"),
        (EFFECTS, "docs/run.md"),
        (SERVERS, "docs/run.md"),
        (MODULES, HOOK),
        (DEPRECATIONS, "docs/stability.md"),
        *zip(OF_SERVERS, (f"docs/settings/{name}.md" for name in settings_pages()), strict=True),
    ):
        showing = {path: text for path, text in pages.items() if table.begin in text}
        assert ROOT / page in showing
        for path, text in showing.items():
            name = path.relative_to(ROOT)
            assert rewrite(text, [table]) == text, f"run `python -m reaper table {name}`"


@pytest.mark.parametrize("words", [("check", "--body", "-5s"), ("doctor", "--for", "-.5s")])
def test_a_negative_duration_is_shown_with_what_would_be_right(
    words: tuple[str, ...], call: Ran
) -> None:
    status, _, err = call(main, *words)
    assert (status, "expected a duration such as 250ms" in err) == (2, True)
    assert f"'{words[-1]}'" in err


def test_a_command_behind_a_flag_keeps_its_own_negative_numbers() -> None:
    words = ["run", "--idle", "-5s", "--", "sh", "--level", "-1"]
    assert _joined(words) == ["run", "--idle=-5s", "--", "sh", "--level", "-1"]


def test_a_place_that_is_none_is_refused(call: Ran) -> None:
    status, _, err = call(main, "check", "--status", "foo")
    assert (status, "server.status: 'foo'" in err, "expected HOST:PORT" in err) == (2, True, True)
    assert call(main, "check", "--status", "[::1]:9180")[0] == 0


def test_a_timeout_of_more_than_ten_years_is_an_error() -> None:
    found = lint(config(timeouts__body="99999999d", timeouts__tunnel_age="3650d"))
    assert graves(found) == [("error", "timeouts.body")]
    assert "0s switches it off" in found[0].text


def test_a_number_of_connections_is_told_what_it_takes_and_whether_it_may() -> None:
    path = "limits.max_connections"
    assert room(config(), 10) == []
    given = config(limits__max_connections="200000")
    takes, longest, _ = room(given, 1_000_000)
    assert {(found.severity, found.path) for found in (takes, longest)} == {("note", path)}
    assert "200,000 connections" in takes.text
    assert f"{format_duration(round(200_000 * SECONDS_PER_REAP))};" in longest.text
    assert f"closes {REAPS_PER_SLICE} of them" in longest.text
    assert SECONDS_PER_REAP * REAPS_PER_SLICE < 0.01  # what it calls less than 10 ms
    assert f"({LONGEST_SLICE * 1000:.0f} ms in a loop that is busy)" in longest.text
    warning, *_ = room(given, 1024)
    assert (warning.severity, "ulimit -n 200064" in warning.text) == ("warning", True)


@pytest.mark.parametrize(
    ("most", "tame", "said"), [("3999", "false", 0), ("4000", "false", 1), ("4000", "true", 0)]
)
def test_the_collector_is_spoken_of_where_it_would_hold_a_loop(
    most: str, tame: str, said: int
) -> None:
    given = config(limits__max_connections=most, reaper__tame_gc=tame)
    found = [each for each in room(given, 1_000_000) if each.path == "reaper.tame_gc"]
    assert len(found) == said
    assert all("for about 10ms" in each.text for each in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_each_shell_has_a_script_of_completion(shell: str, call: Ran) -> None:
    status, out, _ = call(main, "completion", shell)
    assert (status, "--keep-alive" in out or "keep-alive" in out) == (0, True)


@pytest.mark.parametrize(("keep_alive", "ttl"), [("95s", 93), ("4s", 2), ("2s", 1), ("0s", None)])
def test_a_pool_without_an_end_is_a_note_that_says_which_one_suits(
    keep_alive: str, ttl: int | None
) -> None:
    found = lint(config(server__behind="apache", timeouts__keep_alive=keep_alive))
    said = [each for each in found if "ttl=" in each.text]
    assert [each.text.rpartition(" ")[2] for each in said] == ([str(ttl)] if ttl else [])
    assert all(each.severity == "note" for each in said)


@pytest.mark.parametrize("keep_alive", ["1s", "500ms"])
def test_a_pool_without_an_end_is_a_warning_where_no_whole_second_is_less(keep_alive: str) -> None:
    found = lint(config(server__behind="apache", timeouts__keep_alive=keep_alive))
    (said,) = [each for each in found if "ttl=" in each.text]
    assert (said.severity, said.text.endswith("none is less: set 4s or more, and ttl=2")) == (
        "warning",
        True,
    )
