"""Claims about `reaper.config`: precedence, origins, faults all reported at once; and
commands that run for a while.
"""

from __future__ import annotations

import dataclasses
import re
import signal
import sys
import threading
import tokenize
from pathlib import Path
from tokenize import COMMENT

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.config import DEFAULT, OPTIONS, ReaperConfig, Timeouts
from reaper.config.balancers import BALANCERS, ENDLESS
from reaper.config.durations import WANTED, format_duration, parse_duration
from reaper.config.flags import Parser, add_settings, settings
from reaper.config.options import Option
from reaper.config.running import progress_on_stderr, stoppable
from reaper.errors import ConfigError, InvalidArgument
from reaper.policy import RULES


def faults(**sources: object) -> list[str]:
    sources.setdefault("environ", {})
    with pytest.raises(ConfigError) as caught:
        ReaperConfig.load(**sources)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        *(
            ("250ms", 0.25, "250ms"),
            ("1.5ms", 0.0015, "1.5ms"),
            ("30s", 30.0, "30s"),
            ("0s", 0.0, "0s"),
        ),
        *(
            ("5m", 300.0, "5m"),
            ("60m", 3600.0, "1h"),
            ("1.5h", 5400.0, "90m"),
            ("1.5s", 1.5, "1500ms"),
            ("1m30s", 90.0, "90s"),
            ("1d2h3m4s5ms", 93784.005, "93784005ms"),
            ("1m37.9s", 97.9, "97900ms"),
        ),
    ],
)
def test_a_duration_means_seconds_and_is_shown_in_the_largest_unit_that_divides_it(
    text: str, seconds: float, shown: str
) -> None:
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30",
        "s",
        "-1s",
        " 1s",
        "1s\n",
        "1 s",
        "1w",
        "nan",
        "infs",
        "1e3s",
        "1s1m",
        "1s1s",
        "1m 30s",
        "٣s",
        "9" * 400 + "h",
        30,
    ],
)
def test_what_is_no_duration_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@given(st.floats(min_value=0, allow_infinity=False, allow_nan=False))
def test_duration_survives_the_round_trip_to_the_last_bit(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, True, "1s"])
def test_only_finite_seconds_from_zero_up_can_be_shown(value: float) -> None:
    with pytest.raises(InvalidArgument):
        format_duration(value)


def test_without_any_source_everything_is_at_its_default() -> None:
    config = ReaperConfig.load(environ={})
    assert config == ReaperConfig()
    assert {path: config.get(path) for path in OPTIONS} == {
        path: found.default for path, found in OPTIONS.items()
    }
    assert {config.origin(path) for path in OPTIONS} == {DEFAULT}


def test_file_beats_default_environment_beats_file_command_line_beats_environment(
    tmp_path: Path,
) -> None:
    toml = tmp_path / "reaper.toml"
    toml.write_text(
        '[reaper]\ntick = "250ms"\n[timeouts]\nidle = "5s"\nkeep_alive = "0s"\n[server]\nworkers = 3\n'
    )
    environ = {"REAPER_TIMEOUTS_IDLE": "6s", "REAPER_TIMEOUTS_BODY": "7s", "HOME": "/"}
    overrides = {
        "timeouts.body": "8s",
        "timeouts.write": None,
        "timeouts.headers": 5,
        "server.port": 0,
    }  # or typed
    config = ReaperConfig.load(toml, environ, overrides)
    assert (repr(config.timeouts.headers), config.server.port) == ("5.0", 0)
    assert (config.reaper.tick, config.timeouts.idle, config.timeouts.body) == (0.25, 6.0, 8.0)
    assert (config.timeouts.keep_alive, config.server.workers) == (0.0, 3)
    assert config.origin("reaper.tick") == str(toml)
    assert config.origin("timeouts.idle") == "environment REAPER_TIMEOUTS_IDLE"
    assert config.origin("timeouts.body") == "command line"
    assert config.origin("timeouts.write") == DEFAULT


def test_the_reaper_section_is_not_said_twice_in_the_environment() -> None:
    environ = {"REAPER_TICK": "1ms", "REAPER_WHEEL_SIZE": "32", "REAPER_SERVER_WATCHDOG": "0s"}
    once = ReaperConfig.load(environ=environ)
    floors = (once.reaper.tick, once.reaper.wheel_size, once.server.watchdog)
    assert floors == (0.001, 32, 0)


def test_a_variable_that_says_reaper_twice_is_refused_with_the_right_name() -> None:
    (line,) = faults(environ={"REAPER_REAPER_TICK": "3s"})
    said = "REAPER_REAPER_TICK: unknown environment variable: did you mean REAPER_TICK?"
    assert line == said


def test_every_fault_is_reported_with_path_value_origin_and_what_would_be_right(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bad.toml"
    off = "; 0s switches it off"
    path.write_text(
        'tick = 3\n[reaper]\ntick = "0s"\nwheelsize = 3\n[timeouts]\nidle = 30\nheaders = "soon"\nbody = true\n'
        '[timeoutz]\n[server]\nport = 70000\nworkers = "many"\nbehind = "elb"\nhost = ""\n'
        "[limits]\nmax_age_jitter = 2\n"
    )
    behind = ", ".join(f'"{name}"' for name in ("unknown", "direct", *BALANCERS, *ENDLESS))
    found = faults(
        path=path,
        environ={
            "REAPER_TIMEOUTS_WRITE": "-5s",
            "REAPER_TIMEOUTS_IDEL": "1s",
            "REAPER_OF_SOMEONE_ELSE": "x",
        },
        overrides={"timeouts.tunnel": float("nan"), "server.prot": 1, "limits.max_requests": "1.5"},
    )
    assert found == [
        f"tick: 3 (from {path}): not in a section: did you mean reaper.tick?",
        f"reaper.tick: '0s' (from {path}): expected {WANTED}, at least 1ms",
        f"reaper.wheelsize: unknown setting (from {path}): did you mean reaper.wheel_size?",
        f"timeouts.idle: 30 (from {path}): expected {WANTED}{off}",
        f"timeouts.headers: 'soon' (from {path}): expected {WANTED}{off}",
        f"timeouts.body: True (from {path}): expected {WANTED}{off}",
        f"timeoutz: unknown section (from {path}): did you mean timeouts?",
        f"server.port: 70000 (from {path}): expected an integer 0..65535",
        f"server.workers: 'many' (from {path}): expected an integer 1..1024 or \"auto\"",
        f"server.behind: 'elb' (from {path}): expected one of {behind}",
        f"server.host: '' (from {path}): expected a text that is not empty",
        f"limits.max_age_jitter: 2 (from {path}): expected a number 0..1",
        f"timeouts.write: '-5s' (from environment REAPER_TIMEOUTS_WRITE): expected {WANTED}{off}",
        "REAPER_TIMEOUTS_IDEL: unknown environment variable: did you mean REAPER_TIMEOUTS_IDLE?",
        f"timeouts.tunnel: nan (from command line): expected {WANTED}{off}",
        "server.prot: unknown setting (from command line): did you mean server.port?",
        "limits.max_requests: '1.5' (from command line): expected an integer >= 0",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((b"\xff\xfe", "x.toml: not UTF-8 at byte 0"), (b"[reaper", "x.toml: not TOML: ")),
        (None, "x.toml: cannot be read: "),
        *(
            (b'[reaper]\nwheel_size = "64"', "reaper.wheel_size"),
            (b'[reaper]\njitter = "0.1"', "reaper.jitter"),
        ),
        (
            b'[server]\nworkers = "auto"\nport = "80"',
            "server.port",
        ),  # quotes are for variables, which are all text
        *(
            (b'idle = "3s"', "did you mean timeouts.idle?"),
            (b'[timeouts]\ntick = "3s"', "did you mean reaper.tick?"),
        ),
        (b'[server]\nkeep_alive = "3s"', "did you mean timeouts.keep_alive?"),
        (
            b'[server]\ntls_cert = "a.pem"',
            "server.tls_key: missing: expected together with server.tls_cert ('a.pem')",
        ),
        (b'[reaper]\ntick = "0.9ms"', "at least 1ms"),
        (b'[server]\nwatchdog = "10ms"', "at least 1s; 0s switches it off"),
    ],
)
def test_a_file_that_cannot_be_used_or_one_wrong_setting_is_one_fault(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    (line,) = faults(path=path)
    assert said in line


def test_a_section_made_by_hand_is_checked_too_and_none_can_be_changed() -> None:
    with pytest.raises(
        ConfigError, match=r"timeouts\.idle: nan: expected .*\ntimeouts\.drain: 0: expected"
    ):
        Timeouts(idle=float("nan"), drain=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ReaperConfig().timeouts.idle = 1.0  # type: ignore[misc]


def test_a_command_may_take_a_whole_section_and_single_settings_of_another() -> None:
    parser = Parser()
    add_settings(parser, ["attach", "reaper.log_format"], prefix="attach-")
    given = ["--idle", "7s", "--log-format", "json"]
    assert settings(parser.parse_args(given)) == {"attach.idle": "7s", "reaper.log_format": "json"}
    with pytest.raises(SystemExit):
        parser.parse_args(["--wheel-size", "8"])


def test_every_setting_has_names_of_its_own() -> None:
    names = [name for found in OPTIONS.values() for name in (found.flag, found.environment)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", OPTIONS)
def test_every_setting_says_what_it_does_and_has_a_precedent_and_a_good_default(path: str) -> None:
    found = OPTIONS[path]
    assert found.doc
    assert found.precedent or found.section == "server"
    assert found.kind.check(found.default)


ROOT = Path(__file__).parent.parent.parent
CHECKED_ONLY = {"server.behind"}
"""`reaper check` judges by it, and its row says that nothing else does."""


def settings_read() -> set[str]:
    """The settings that a server or a guard reads: `timeouts.idle` of any
    configuration, under whatever local name.
    """
    sections = "|".join({path.partition(".")[0] for path in OPTIONS})
    found = {f"timeouts.{rule.timeout}" for rule in RULES.values()}
    for path in [*ROOT.glob("reaper/**/*.py"), *ROOT.glob("server_example/**/*.py")]:
        room = path.relative_to(ROOT).parts[1]
        if room in ("config", "doctor"):  # which says what a setting should be
            continue
        with tokenize.open(
            path
        ) as file:  # a text says `timeouts.idle`, code says it in three words
            code = " ".join(
                token.string
                for token in tokenize.generate_tokens(file.readline)
                if token.type != COMMENT
            )
        local = dict(re.findall(rf"(\w+) = (?:\w+ \. )*({sections})\b(?! \.)", code))
        for name, attribute in re.findall(r"(\w+) \. (?=(\w+))", code):
            found.add(f"{'attach' if room == 'attach' else local.get(name, name)}.{attribute}")
        found |= {
            f"reaper.{name}" for name in re.findall(r'chosen \( "(\w+)"', code)
        }  # by the driver
    return found


def test_every_setting_has_an_effect() -> None:
    assert set(OPTIONS) - settings_read() == CHECKED_ONLY
    assert "timeouts.no_such_setting" not in settings_read()


ONLY_READ = {"config", "docs", "house"}
"""Rooms of tests in which no setting acts."""

IN_NO_ENTRY = {
    *("reaper.log_level", "server.host", "server.tls_cert", "server.tls_key"),
    *(
        "timeouts.first_byte",
        "timeouts.half_closed",
        "timeouts.drain_window",
        "timeouts.drain_idle",
    ),
    *("limits.min_in_rate", "limits.min_in_grace", "limits.min_out_rate", "limits.min_out_grace"),
    *("limits.max_requests", "limits.max_age_jitter"),
    *("limits.max_header_bytes", "limits.max_body_bytes"),
    *("attach.first_byte", "attach.stalled_write", "attach.min_in_rate", "attach.min_in_grace"),
    "attach.even_unanswered",
}
"""Settings that came before the changelog named each. A new one is not added here."""


def test_every_setting_has_an_entry_in_the_changelog() -> None:
    pages = [ROOT / "CHANGELOG.md", *(ROOT / "news").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    named = {
        path
        for path, found in OPTIONS.items()
        if re.search(rf"\b{found.key}\b|{re.escape(found.flag)}(?!\w)", text)
    }
    assert set(OPTIONS) - named - IN_NO_ENTRY == set()


def test_a_proxy_that_is_named_gives_the_ping_unless_that_is_set() -> None:
    def loaded(**given: str) -> ReaperConfig:
        return ReaperConfig.load(environ={f"REAPER_{name}": text for name, text in given.items()})

    followed = loaded(SERVER_BEHIND="nginx")
    assert followed.timeouts.stream_ping == 20
    assert followed.origin("timeouts.stream_ping") == (
        "server.behind (environment REAPER_SERVER_BEHIND): a third of nginx's 60s"
    )
    assert loaded(SERVER_BEHIND="nginx", TIMEOUTS_STREAM_PING="0s").timeouts.stream_ping == 0
    assert loaded(SERVER_BEHIND="nginx", TIMEOUTS_STREAM_PING="5s").timeouts.stream_ping == 5
    assert loaded(SERVER_BEHIND="caddy").timeouts.stream_ping == 0
    assert loaded(SERVER_BEHIND="direct").timeouts.stream_ping == 0
    assert loaded().timeouts.stream_ping == 0


def ways_to_set(found: Option) -> str:
    """A pattern of the ways in which a test sets a setting."""
    flag = "--" + found.key.replace("_", "-")
    return "|".join(
        [
            rf"{found.section}(\.|__){found.key}(?!\w)",
            rf"{found.environment}(?!\w)",
            rf"({re.escape(found.flag)}|{flag})(?!\w)",
            rf"\b({found.key}|{found.key.upper()}) ?=",
            rf"\"{found.key}\"",
        ]
    )


def test_every_setting_has_a_test_of_what_it_does() -> None:
    """It is in the room where the setting acts: those of the configuration and of the
    pages only read it.
    """
    files = [
        path for path in (ROOT / "tests").rglob("test_*.py") if path.parts[-2] not in ONLY_READ
    ]
    texts = "".join(path.read_text() for path in files)
    assert [path for path, o in OPTIONS.items() if not re.search(ways_to_set(o), texts)] == []


# ---- commands that run for a while
# ----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="raises SIGTERM within this process")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_a_second_ctrl_c_ends_it_at_once(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    notes: list[str] = []
    with pytest.raises(KeyboardInterrupt), stoppable(lambda: notes.append("asked")) as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert notes == ["asked", "asked"]
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.skipif(sys.platform == "win32", reason="raises SIGTERM within this process")
def test_a_signal_that_comes_in_the_middle_of_a_wait_is_noted_all_the_same() -> None:
    """The handler runs in the thread that waits, between any two steps of the wait."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        for _ in range(20_000):
            signal.pthread_kill(main, signal.SIGTERM)

    with stoppable() as stop:
        sender = threading.Thread(target=interrupt)
        sender.start()
        while sender.is_alive():
            stop.wait(0.0)
        assert stop.wait(20.0)


def test_progress_is_a_line_with_the_seconds_before_it_unless_it_is_not_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress_on_stderr(True)("hidden")
    progress_on_stderr(False)("shown")
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"\[ +\d+\.\d s\] shown\n", said.err)
