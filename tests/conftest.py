"""What every test run shares: Hypothesis profiles, `--no-skips`, one Spark session,
which tests share a process.

Under pytest-xdist the tests of one file stay together, for they share fixtures that
cost more than the tests. The files that start a Spark are two sets: each process that
runs one keeps a JVM of its own until it ends, and one set alone would take longer than
all the rest. The sets with the most slow tests start first.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from loadgen.plan.capacity import raise_descriptor_limit

# How fast examples are made is an affair of the machine, which may be busy.
ANY_PACE: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", **ANY_PACE)
settings.register_profile("quick", **ANY_PACE, max_examples=25)
# The same examples each time, so that few of them say as much as many.
settings.register_profile("ci", **ANY_PACE, max_examples=30, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

if sys.dont_write_bytecode:
    # Many a container's image asks for that. A thousand tests start a process, and each
    # would compile all of reaper first: half of what such a test costs.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# As in a shell that has this environment activated. Spark's workers are the first
# python3 of the path otherwise, which may be another Python.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# An ordinary user's soft limit is 1,024, of which a crowd in one process is more.
raise_descriptor_limit()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background with Ctrl-C ignored, programs inherit
    # that, and tests of Ctrl-C hang.
    signal.signal(signal.SIGINT, signal.default_int_handler)


QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds: compiling well takes longer than it saves."""


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The embedded engine of all tests in this process. Which engine a test means,
    `pytest_runtest_setup` sees.
    """
    pytest.importorskip("duckdb")
    from reaper.pipeline.engine import embedded

    with embedded.open_session() as session:
        yield session


@pytest.fixture(scope="session")
def one_spark() -> Iterator[Any]:
    """The Spark session of all tests in this process: starting one takes as long as ten
    tests.
    """
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)")
    from reaper.pipeline.engine import open_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
        with open_session("tests", "local[2]") as session:
            patch.undo()
            session.conf.set("spark.sql.shuffle.partitions", "1")
            yield session


@pytest.fixture
def real_spark(one_spark: Any, request: pytest.FixtureRequest) -> Any:
    """The Spark of all tests. Where its answers are compared with the other engine's it
    interprets the queries; what asks for `compiled`, and every other test, has it as
    users have it.
    """
    from tests.helpers.quick_spark import AS_USERS_HAVE_IT, INTERPRETED, set_all

    beside = together(request.node.location[0]) == BESIDE_DUCKDB
    set_all(one_spark, INTERPRETED if beside else AS_USERS_HAVE_IT)
    return one_spark


Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Ran:
    """Call the `main` of a command with words: its status, what went to stdout, what
    went to stderr.
    """

    def run(main: Callable[[list[str]], int], *words: Any) -> tuple[int, str, str]:
        try:
            status: Any = main([*map(str, words)])
        except SystemExit as stopped:
            status = stopped.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def pipeline(call: Ran) -> Ran:
    """The same of a command of the pipeline."""
    from reaper.pipeline import cli

    return lambda *words: call(cli.main, *words, "--quiet")


@pytest.fixture
def commands_on_spark(real_spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands ask the Spark of all tests: left to themselves they would end it with
    their own.
    """
    monkeypatch.setattr(
        "reaper.pipeline.read.command.asked_session", lambda *_: nullcontext(real_spark)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Which engine `F` is of, before the first fixture needs it: Spark's where a test
    asks for it.
    """
    names = getattr(item, "fixturenames", ())
    if "real_spark" in names or "spark" in names:
        from reaper.pipeline.engine import use

        use("spark" if "real_spark" in names else "embedded")


HERE = Path(__file__).parent

INSIDE_ROOMS = {"core", "testing", "policy"}
INSIDE_FILES = {"driver/test_driver.py", "driver/test_vanished.py"}
"""The tests of `pytest -m inside`: whole rooms, and single files of others."""


def room_and_name(path: Path) -> tuple[str, str]:
    """The folder of tests that *path* lies in, "" for none, and its path from `tests/`
    on.
    """
    below = path.relative_to(HERE) if path.is_relative_to(HERE) else PurePath(path.name)
    return "/".join(below.parts[:-1]), below.as_posix()


@functools.cache
def is_inside(path: Path) -> bool:
    room, name = room_and_name(path)
    return room in INSIDE_ROOMS or name in INSIDE_FILES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail if any test was skipped: here every tool is supposed to be installed",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m inside` the other files are not even imported: that takes longer than
    the tests.
    """
    if config.option.markexpr != "inside" or not collection_path.name.startswith("test_"):
        return None
    return None if is_inside(collection_path) else True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Under pytest-xdist only the controlling process has a terminal reporter, and
    every worker's skips reach it.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if session.config.getoption("--no-skips") and skipped and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"--no-skips: {len(skipped)} skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


BESIDE_DUCKDB = "one Spark beside DuckDB"
ON_SPARK = {
    **dict.fromkeys(("engines", "exemptions", "kinds", "lines_of_others", "tables"), BESIDE_DUCKDB),
    **dict.fromkeys(("cluster", "journal", "live", "notebook", "places"), "on a Spark"),
}
"""The files `test_*` that start a Spark, and the set of each: halves of about as many
seconds.
"""
ROOMS_ON_SPARK = {"pipeline", "keeper"}


@functools.cache
def together(path: str) -> str:
    """The name of the set of tests that must run in the same process as the tests of
    the file *path*, which is given from the root of the repository on.
    """
    pure = PurePath(path)
    name = pure.name.removeprefix("test_").removesuffix(".py")
    return ON_SPARK.get(name, path) if pure.parent.name in ROOMS_ON_SPARK else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole sets, those with the most slow tests first: two processes then end at about
    the same time.
    """
    slow: dict[str, int] = {}
    for item in items:
        if is_inside(item.path) and not item.get_closest_marker("slow"):
            item.add_marker("inside")
        name = together(item.location[0])
        slow[name] = slow.get(name, 0) + (1 if item.get_closest_marker("slow") else 0)
    items.sort(key=lambda item: -slow[together(item.location[0])])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class BySet(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid.split("::", 1)[0])

    config.option.loadscopereorder = False  # the order of the sets is ours
    return BySet(config, log)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1 and localhost, made by openssl."""
    from scripts import tools

    try:
        return tools.certificate(tmp_path_factory.mktemp("tls"))
    except tools.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Show a page in a browser without a network; on its stdout is what the page
    became.
    """
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        pytest.skip("needs chromium (Debian: apt-get install chromium)")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--dump-dom",
    ]

    def show(page: Path, *more: str) -> subprocess.CompletedProcess[str]:
        command = [
            browser,
            *options,
            f"--user-data-dir={tmp_path / 'profile'}",
            *more,
            page.as_uri(),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    return show


@pytest.fixture
def anyio_backend() -> Any:
    """The loop of tests on asyncio, unless their file says otherwise."""
    return "asyncio"


@pytest.fixture
def port() -> int:
    """Where nothing listens."""
    from scripts.serving import free_port

    return free_port()


@pytest.fixture(params=["still", "moving"])
def autojump_clock(request: pytest.FixtureRequest) -> Any:
    """What holds in virtual time holds under a clock that moves between two readings,
    too.
    """
    from tests.helpers.loops import autojump

    return autojump(request.param)


@pytest.fixture(params=["plain", "tls"])
def secured(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of an HTTP server without TLS, and with it."""
    if request.param == "plain":
        return {}
    cert, key = request.getfixturevalue("certificate")
    return {"server__tls_cert": cert, "server__tls_key": key}
