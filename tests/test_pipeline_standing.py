"""A session that stays: found when it can be used, passed over with one line when not, gone when idle or killed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

pytest.importorskip("grpc")

import grpc
from pipeline_traffic import write
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from reaper.pipeline import cli, warm
from reaper.pipeline.read.inputs import check
from reaper.pipeline.session import NoSpark, java, keeper, standing
from reaper.pipeline.session.standing import ELSEWHERE, Standing, born, found, load, locked, release, save

BOUND_S = 30.0
"""After so long a session that should have ended by itself has not."""


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this test's session."""
    place = tmp_path / "session"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("REAPER_SESSION", str(place))
    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    return place


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def mine(listener: int) -> Standing:
    """A session that this process would keep."""
    return Standing(os.getpid(), born(os.getpid()) or 0, listener, "token", release(), time.time(), 600.0)


def asked() -> tuple[Standing | None, list[str]]:
    """What a command finds, and what it says."""
    said: list[str] = []
    with found(said.append) as there:
        return there, said


def test_a_session_that_can_be_used_is_found_in_silence(where: Path, mine: Standing) -> None:
    save(where, mine)
    assert asked() == (mine, [])


def test_no_session_is_no_news(where: Path) -> None:
    assert asked() == (None, [])
    where.rmdir()
    assert asked() == (None, [])


def test_a_session_of_another_release_is_passed_over_with_one_line(where: Path, mine: Standing) -> None:
    save(where, replace(mine, release="idle-reaper 0.0.1, pyspark 4.0.0"))
    there, said = asked()
    assert there is None
    (line,) = said
    assert "it is of idle-reaper 0.0.1, pyspark 4.0.0, this is idle-reaper " in line
    assert "session stop ends it" in line


def test_a_session_whose_process_has_ended_is_passed_over(where: Path, mine: Standing) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    save(where, replace(mine, pid=gone.pid))
    there, said = asked()
    assert there is None
    assert "its process has ended" in said[0]


def test_a_process_number_that_was_given_away_is_not_the_session(where: Path, mine: Standing) -> None:
    save(where, replace(mine, born=mine.born - 1))
    assert asked()[0] is None


def test_a_session_that_does_not_listen_is_passed_over(where: Path, mine: Standing) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        save(where, replace(mine, port=closed.getsockname()[1]))
        there, said = asked()
    assert there is None
    assert "it does not answer" in said[0]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_user_who_says_where_spark_runs_gets_it_there(
    where: Path, mine: Standing, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(where, mine)
    monkeypatch.setenv(name, "elsewhere")
    assert asked() == (None, [])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "born": 0}'])
def test_a_description_that_makes_no_sense_is_none(where: Path, text: str) -> None:
    (where / "session.json").write_text(text)
    assert asked() == (None, [])


def test_the_token_is_for_this_user_alone(where: Path, mine: Standing) -> None:
    save(where, mine)
    assert (where / "session.json").stat().st_mode & 0o777 == 0o600
    assert load(where) == mine


def test_a_link_is_no_place_for_a_session(
    where: Path, mine: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    save(where, mine)
    link = tmp_path / "link"
    link.symlink_to(where)
    monkeypatch.setenv("REAPER_SESSION", str(link))
    monkeypatch.setattr("reaper.pipeline.session.command.check_java", lambda: "17")
    assert asked() == (None, [])
    assert cli.main(["session", "start"]) == 2
    assert "is no directory of yours: set REAPER_SESSION to one" in capsys.readouterr().err


def test_a_session_does_not_end_while_a_command_uses_it(where: Path, mine: Standing, capsys: Any) -> None:
    save(where, mine)
    over = threading.Event()
    brief = replace(mine, idle_s=0.0)
    with found(print) as there:
        assert there == mine
        with pytest.raises(BlockingIOError), locked(where, fcntl.LOCK_EX | fcntl.LOCK_NB):
            pass
        staying = threading.Thread(target=keeper._stay, args=(where, brief, over), daemon=True)
        staying.start()
        staying.join(3 * keeper.LOOK_S)
        assert staying.is_alive()
        assert load(where) == mine
    staying.join(BOUND_S)
    assert not staying.is_alive()
    assert load(where) is None
    assert "it ends" in capsys.readouterr().out


def test_a_session_is_idle_from_its_latest_use_on(where: Path, mine: Standing) -> None:
    over = threading.Event()
    save(where, mine)
    with locked(where, fcntl.LOCK_SH) as lock:
        os.utime(lock.fileno(), (time.time() + 60, time.time() + 60))
    threading.Timer(3 * keeper.LOOK_S, over.set).start()
    keeper._stay(where, replace(mine, idle_s=0.0), over)
    assert load(where) == mine


def stays(
    where: Path, mine: Standing, *warming: str, until: Callable[[], bool] = lambda: True
) -> list[subprocess.Popen[bytes]]:
    """Keep the session in *where* for a few looks, and until *until*; what warmed it, if with the command *warming*."""
    over, started = threading.Event(), []

    def warm(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(warming, stdin=subprocess.PIPE))
        return started[-1]

    def end() -> None:
        latest = time.monotonic() + 60
        while not until() and time.monotonic() < latest:
            time.sleep(0.1)
        time.sleep(3 * keeper.LOOK_S)
        over.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "_warm", warm)
        threading.Thread(target=end, daemon=True).start()
        keeper._stay(where, mine, over)
    return started


@pytest.mark.parametrize("used", [False, True])
def test_a_session_warms_itself_once_when_no_command_has_just_used_it(
    where: Path, mine: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    monkeypatch.setattr(keeper, "LEISURE_S", 0.0)
    save(where, mine)
    with locked(where, fcntl.LOCK_SH) as lock:  # when a command last used it
        os.utime(lock.fileno(), (time.time() + 60, time.time() + 60) if used else (0, 0))
    warmed = tmp_path / "warmed"
    started = stays(where, mine, "touch", str(warmed), until=lambda: used or warmed.exists())
    assert len(started) == (0 if used else 1)


@pytest.mark.parametrize(("command", "warm"), [("true", True), ("false", False)])
def test_a_session_says_that_it_is_warm_once_all_was_answered(
    where: Path, mine: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, command: str, warm: bool
) -> None:
    monkeypatch.setattr(keeper, "LEISURE_S", 0.0)
    save(where, mine)
    found = replace(mine, warm=warm)
    tried = tmp_path / "tried"
    asked = ("sh", "-c", f"touch {tried}; {command}")
    assert len(stays(where, mine, *asked, until=lambda: tried.exists() and load(where) == found)) == 1
    assert load(where) == found
    assert cli.main(["session", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warm"] is warm


def test_what_warms_a_session_ends_with_it(
    where: Path, mine: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LEISURE_S", 0.0)
    save(where, mine)
    asleep = tmp_path / "asleep"
    (warming,) = stays(where, mine, "sh", "-c", f"touch {asleep}; exec sleep 600", until=asleep.exists)
    assert warming.returncode == -signal.SIGKILL


def test_what_warms_a_session_ends_when_its_keeper_is_killed_and_leaves_nothing(where: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "reaper.pipeline.warm", str(scratch)]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=120).returncode == 1
    assert not scratch.exists()


def test_nobody_is_asked_before_the_users(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "LEISURE_S", 0.0)
    waiting = threading.Thread(target=warm._leisure, args=(where,), daemon=True)
    with locked(where, fcntl.LOCK_SH) as lock:  # as a command does
        waiting.start()
        waiting.join(3 * warm.LOOK_S)
        assert waiting.is_alive()
        os.utime(lock.fileno(), (0, 0))
    waiting.join()


def test_every_question_of_the_warming_waits_for_its_turn_and_is_one_that_the_commands_answer(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_end_with_keeper", lambda _: None)
    done: list[str] = []
    monkeypatch.setattr(warm, "_leisure", lambda found: done.append(found.name))
    monkeypatch.setattr(warm, "WAVES", 1)
    checked: dict[str, Any] = {}

    def main(arguments: list[str]) -> int:
        done.append(arguments[0])
        paths = [Path(argument) for argument in arguments if Path(argument).is_dir()]
        checked.update((path.name, check([path])) for path in paths)
        return 1

    monkeypatch.setattr(warm.cli, "main", main)
    assert warm.main(str(tmp_path)) == 0
    assert done[::2] == ["session"] * (2 * warm.AUDITS + 2 * warm.OTHERS)
    assert done[1::2][:5] == ["report", "advise", "audit", "audit", "report"]
    assert set(checked) == {"server", "client", "crowd"}
    assert not any(inputs.quarantined for inputs in checked.values())
    assert sum(facts.rows for facts in checked["crowd"].files) == 1 + warm.CROWD * (warm.TOUCHES + 2)
    monkeypatch.setattr(warm.cli, "main", lambda _: 2)
    assert warm.main(str(tmp_path)) == 2


class Answers(base_pb2_grpc.SparkConnectServiceServicer):
    """A Spark that answers *code*; None: that it knows its version."""

    def __init__(self, code: grpc.StatusCode | None) -> None:
        self.code = code

    def AnalyzePlan(self, _request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        if self.code is not None:
            context.abort(self.code, "no")
        return base_pb2.AnalyzePlanResponse()


@pytest.mark.parametrize("code", [None, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL])
def test_a_spark_that_asks_no_stranger_for_the_token_is_not_kept(code: grpc.StatusCode | None) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    base_pb2_grpc.add_SparkConnectServiceServicer_to_server(Answers(code), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        if code is grpc.StatusCode.UNAUTHENTICATED:
            keeper.refuse_strangers(port)
        else:
            with pytest.raises(NoSpark, match="does not ask for its token"):
                keeper.refuse_strangers(port)
    finally:
        server.stop(0).wait()


def test_a_session_is_told_to_end(where: Path, mine: Standing) -> None:
    over = threading.Event()
    over.set()
    keeper._stay(where, mine, over)


def test_a_session_whose_spark_has_ended_ends(
    where: Path, mine: Standing, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(keeper, "PULSE_S", 0.0)
    told = threading.Event()
    bound = threading.Timer(BOUND_S, told.set)
    bound.start()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        keeper._stay(where, replace(mine, port=closed.getsockname()[1]), told)
    bound.cancel()
    assert not told.is_set()
    assert "Spark has ended" in capsys.readouterr().out


def test_status_and_stop_without_a_session_say_so(where: Path, mine: Standing, capsys: Any) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    save(where, replace(mine, pid=gone.pid))
    assert cli.main(["session", "status"]) == 1
    assert cli.main(["session", "stop", "--json"]) == 0
    assert capsys.readouterr().out == 'no session\n{\n  "running": false\n}\n'
    assert load(where) is None


def test_a_second_start_finds_the_first(where: Path, mine: Standing, capsys: Any) -> None:
    save(where, mine)
    assert cli.main(["session", "start"]) == 0
    assert f"there already: session: process {os.getpid()}" in capsys.readouterr().out
    save(where, replace(mine, release="idle-reaper 0.0.1, pyspark 4.0.0"))
    assert cli.main(["session", "start"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- the Java below


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark without content, of a user without opinions and with a cache directory."""
    for name in java._OPINIONS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    return tmp_path / "spark"


def sharing(spark_home: Path) -> str:
    """The one flag about the archive."""
    return next((flag for flag in java.flags("17", spark_home, quick=False) if "Archive" in flag), "")


def test_the_first_java_writes_an_archive_and_the_next_reads_it(spark_home: Path) -> None:
    name, _, part = sharing(spark_home).partition("=")
    assert name == "-XX:ArchiveClassesAtExit"
    Path(part).write_bytes(bytes(16))  # being written: the header comes last
    assert sharing(spark_home) == ""
    Path(part).write_bytes(b"\xba\xa8 an archive")
    assert sharing(spark_home) == f"-XX:SharedArchiveFile={Path(part).with_suffix('')}"
    assert not Path(part).exists()


def test_an_archive_that_was_never_finished_is_thrown_away(spark_home: Path) -> None:
    part = Path(sharing(spark_home).partition("=")[2])
    part.write_bytes(b"")
    os.utime(part, (0, 0))
    assert sharing(spark_home).startswith("-XX:ArchiveClassesAtExit=")
    assert not part.exists()


def test_another_java_and_another_spark_have_archives_of_their_own(spark_home: Path) -> None:
    first, other = (java.flags(version, spark_home, quick=False)[-1] for version in ("17", "21"))
    assert first != other
    (spark_home / "jars" / "new.jar").touch()
    os.utime(spark_home / "jars", (1, 1))
    assert java.flags("17", spark_home, quick=False)[-1] != first


def test_a_cache_that_cannot_be_written_stops_nothing(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/1")
    assert java.flags("17", spark_home, quick=True) == list(java.QUICK)


@pytest.mark.parametrize(
    ("opinion", "lacking"),
    [("-XX:+UseZGC", "UseSerialGC"), ("-XX:-TieredCompilation", "Tiered"), ("-Xshare:off", "Archive")],
)
def test_a_flag_that_the_user_has_an_opinion_on_is_left_alone(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch, opinion: str, lacking: str
) -> None:
    assert lacking in " ".join(java.flags("17", spark_home, quick=True))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", opinion)
    assert lacking not in " ".join(java.flags("17", spark_home, quick=True))


def test_little_is_what_lies_here_and_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.parquet").write_bytes(bytes(600))
    (tmp_path / "2.log").write_bytes(bytes(600))
    given = [tmp_path / "a", tmp_path / "2.log", tmp_path / "missing"]
    assert java.little(given)
    assert not java.little([*given, "s3a://bucket/journal"])
    monkeypatch.setattr(java, "LITTLE_BYTES", 1000)
    assert java.little(given[:1])
    assert not java.little(given)


# ---- with a real Spark


@pytest.mark.spark
@pytest.mark.slow
def test_a_command_is_answered_by_the_session_that_stays_and_kill_takes_its_java_along(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)")
    # No archive: a Java that writes one ends later.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join([*java.QUICK, "-Xshare:auto"]))
    write(tmp_path / "server", connections=20, faults={"early": 2})

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "reaper.pipeline", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    started = run("session", "start", "--json", "--quiet")
    assert started.returncode == 0, started.stderr
    pid = json.loads(started.stdout)["pid"]
    try:
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[:1]
        asked = run("audit", "--events", str(tmp_path / "server"), "--out", str(tmp_path / "out"))
        assert asked.returncode == 1, asked.stderr
        assert f"asking the session that stays (process {pid})" in asked.stderr
        summary = json.loads((tmp_path / "out" / "audit.json").read_text())
        assert (summary["connections"], summary["verdicts"]["early"]) == (20, 2)
        assert run("session", "status", "--quiet").returncode == 0
    finally:
        os.kill(pid, 9)
    until = time.monotonic() + 60
    while standing.born(int(child)) is not None and time.monotonic() < until:
        time.sleep(0.1)
    assert standing.born(int(child)) is None
    assert run("session", "status").returncode == 1
