"""One program, two engines: Spark and the embedded one answer the same, row by row, and
function by function.
"""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.pipeline.rivals import Sparks
from benchmarks.pipeline.worker import form_of_audit, form_of_connections
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.audit.command import run_by_day
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.cli import main
from reaper.pipeline.engine import F, NoSpark, Window, answering, here, use
from reaper.pipeline.engine.choice import LITTLE, bytes_of, choose
from reaper.pipeline.engine.spark import (
    _OPTIONS_OF_JAVA,
    BRIEF_JAVA,
    BRIEFEST_JAVA,
    EMBEDDED_HEAP_MB,
    _of_driver,
    check_reachable,
    open_session,
)
from reaper.pipeline.losses.formats import KNOWN
from reaper.pipeline.losses.run import losses
from reaper.pipeline.places import Remote
from reaper.pipeline.read.file import EVENTS
from reaper.pipeline.read.frames import small_frame
from reaper.pipeline.read.inputs import Inputs, check
from reaper.pipeline.report.run import gather
from reaper.pipeline.whatif.run import what_if
from tests.helpers.pipeline_traffic import FAULTS, MS, WALL, S, journal, on_spark, play, write
from tests.helpers.quick_spark import AS_USERS_HAVE_IT, set_all
from tests.pipeline.test_access_logs import HOSTILE, LOGS, REPORT
from tests.pipeline.test_advise import unfinished
from tests.pipeline.test_audit import JOINED, PLANTED, TRAPS, write_both, write_traps
from tests.pipeline.test_losses import ASKED, CUT, written

Both = Callable[[Callable[[Any], Any]], tuple[Any, Any]]
"""Asks a question of the embedded engine, and of Spark."""

ROUNDS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture
def compiled(real_spark: Any) -> None:
    """Spark compiles the queries of this test, and plans them, as users have it."""
    set_all(real_spark, AS_USERS_HAVE_IT)


@pytest.fixture
def both(real_spark: Any, spark: Any) -> Both:
    """What a question is answered, by the embedded engine and by Spark."""

    def ask(question: Callable[[Any], Any]) -> tuple[Any, Any]:
        before = use("embedded")
        try:
            embedded = question(spark)
            use("spark")
            return embedded, question(real_spark)
        finally:
            use(before)

    return ask


# ---- answers


def answers(
    session: Any, server: Inputs, client: Inputs | None, out: Path, whole: bool
) -> dict[str, Any]:
    """What audit, advise and report would say of *server*; *whole*: and what-if."""
    audited = audit(session, server, client, out, Settings())
    table = pq.read_table(out / "connections").sort_by("conn")
    found = {
        "audit": audited.summary,
        "types": {field.name: str(field.type) for field in table.schema},
        "connections": table.to_pylist(),
        "charts": gather(audited, server),
        "advice": advise(session, server, None, Policy(max_cut=0.05)),
    }
    if whole:
        found["what-if"] = what_if(session, server, [["timeout=3s", "tick=500ms"], ["timeout=9s"]])
    return found


def same(both: Both, tmp_path: Path, whole: bool = True) -> dict[str, Any]:
    """What both engines answer of the journals below *tmp_path*; fails where they
    differ.
    """
    server, client = (check([tmp_path / side], now_ns=WALL) for side in ("server", "client"))
    embedded, spark = both(
        lambda session: answers(session, server, client, tmp_path / "out", whole)
    )
    for key, answer in spark.items():
        assert embedded[key] == answer, key
    found: dict[str, Any] = spark
    return found


@on_spark
@pytest.mark.usefixtures("compiled")
def test_every_trap_of_the_audit_is_answered_alike(both: Both, tmp_path: Path) -> None:
    write_both(tmp_path, 3 * S)
    write_traps(tmp_path / "server", writer=5)
    found = same(both, tmp_path)["audit"]
    assert (found["joined"]["pairs"], found["joined"]["server_only"]) == (len(JOINED), len(TRAPS))


@on_spark
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_unproven_is_answered_alike(both: Both, tmp_path: Path, name: str) -> None:
    plant, result = PLANTED[name]
    plant(tmp_path)
    server = check([tmp_path / "server"], now_ns=WALL)
    joined = (tmp_path / "client").exists()
    client = check([tmp_path / "client"], now_ns=WALL) if joined else None
    embedded, spark = both(
        lambda session: audit(session, server, client, tmp_path / "out", Settings()).summary
    )
    assert embedded == spark
    assert spark["result"] == result


@on_spark
@settings(**ROUNDS, max_examples=2)
@given(
    seed=st.integers(0, 1000),
    faults=st.dictionaries(st.sampled_from(FAULTS), st.integers(1, 3)),
    mode=st.sampled_from(["full", "gaps"]),
    ahead=st.sampled_from([0, 400 * MS, -3000 * MS]),
)
@example(seed=1, faults=dict.fromkeys(FAULTS, 2), mode="full", ahead=0)
def test_any_traffic_with_any_faults_is_answered_alike(
    both: Both,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    faults: dict[str, int],
    mode: str,
    ahead: int,
) -> None:
    place = tmp_path_factory.mktemp("traffic")
    planted = {
        name: count for name, count in faults.items() if mode == "full" or name != "backward"
    }
    options: dict[str, Any] = {
        "connections": 60,
        "server_clock_ahead": ahead,
        "listeners": ("echo", "http", "alt"),
    }
    write(place / "server", place / "client", seed=seed, faults=planted, mode=mode, **options)
    same(both, place, whole=seed < 3)


@on_spark
@pytest.mark.parametrize("name", LOGS)
def test_every_format_of_access_logs_is_read_alike(both: Both, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.log"
    own = [REPORT[name]] if name in REPORT else []
    lines = [*LOGS[name], *own, "no line", *HOSTILE[name], ""]
    path.write_bytes("\n".join(lines).encode() + b"\xff\xfe\r\n")
    logs = (name, [path], 75 * 10**9)
    embedded, spark = both(lambda session: advise(session, Inputs(), logs, Policy(max_cut=0.3)))
    assert embedded == spark


ODD: dict[str, tuple[str, bytes]] = {
    "a byte order mark": ("envoy", b"\xef\xbb\xbf%s\n%s\n%s\n%s\n"),
    "lines of a JSON array": ("envoy", b"[\n%s,\n%s,\n%s,\n%s\n]\n"),
    "a JSON array in one line": ("envoy", b"[%s,%s,%s,%s]\n"),
    "carriage returns": ("nginx", b"%s\r%s\r\n%s\r\r%s"),
}
"""What is odd about a log -> its format, and four lines of it."""


OF_ERRORS = (
    "2026/09/21 14:13:20 [error] 7#7: *3 upstream prematurely closed connection while reading "
    "response header from upstream, client: 10.0.0.9"
)
"""A line of nginx's error log."""


@on_spark
@pytest.mark.parametrize("name", KNOWN)
def test_what_each_proxy_lost_is_answered_alike(both: Both, tmp_path: Path, name: str) -> None:
    again = ((25, "saved"),) if "nginx" in name else ()
    path = written(tmp_path / "log", name, (*ASKED, CUT, *again))
    path.write_text(path.read_text() + "no line\n" + (f"{OF_ERRORS}\n" if again else ""))
    embedded, spark = both(lambda session: losses(session, name, [path]))
    assert embedded == spark
    assert spark["lost"] == 2
    assert sum(each["saved_by_another_try"] for each in spark["upstreams"].values()) == len(again)
    assert spark["lines_excused"]["no request"] == len(again)


@on_spark
def test_a_gzip_of_several_members_is_read_alike(both: Both, tmp_path: Path) -> None:
    members = [gzip.compress(f"{line}\n".encode()) for line in LOGS["nginx"]]
    path = tmp_path / "a.gz"
    path.write_bytes(b"".join(members))
    logs = ("nginx", [path], 75 * 10**9)
    embedded, spark = both(lambda session: advise(session, Inputs(), logs, Policy(max_cut=0.3)))
    assert embedded == spark
    assert embedded["rows_read"] == len(members)


@on_spark
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_log_is_read_alike(both: Both, tmp_path: Path, odd: str) -> None:
    name, shape = ODD[odd]
    path = tmp_path / "odd.log"
    path.write_bytes(shape % tuple(line.encode() for line in LOGS[name]))
    logs = (name, [path], 75 * 10**9)
    embedded, spark = both(lambda session: advise(session, Inputs(), logs, Policy(max_cut=0.3)))
    assert embedded == spark
    assert embedded["rows_read"] > 0


@on_spark
def test_silences_that_still_run_are_answered_alike(both: Both, tmp_path: Path) -> None:
    unfinished(tmp_path / "server", "gaps")
    server = check([tmp_path / "server"], now_ns=WALL)
    embedded, spark = both(lambda session: advise(session, server, None, Policy()))
    assert embedded == spark
    entry = spark["listeners"]["echo"]
    assert entry["silences"] - entry["silences_ended"] > 250


@on_spark
def test_a_thousand_listeners_are_answered_alike(both: Both, tmp_path: Path) -> None:
    with journal(tmp_path / "server", 1) as ours:
        for number in range(1500):
            ours.open(S, 5000, f"port {number}").reap(7 * S, 6 * S)
    server = check([tmp_path / "server"], now_ns=WALL)

    def ask(session: Any) -> Any:
        return audit(session, server, None, tmp_path / "out", Settings()).summary

    embedded, spark = both(ask)
    assert embedded == spark
    assert len(spark["listeners"]) == 1500


# ---- a session of the program's own


@on_spark
def test_a_session_beside_the_programs_own_changes_nothing_of_it(real_spark: Any) -> None:
    real_spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        theirs = dict(real_spark.conf.getAll)
        with open_session("mine") as session:
            assert session is not real_spark
            assert session.conf.get("spark.sql.session.timeZone") == "UTC"
            session.conf.set("spark.sql.shuffle.partitions", "7")
            assert session.range(5).count() == 5
        assert dict(real_spark.conf.getAll) == theirs
        assert real_spark.range(3).count() == 3
    finally:
        real_spark.conf.set("spark.sql.session.timeZone", "UTC")


# ---- functions

ROW = pa.schema(
    {
        "key": pa.int64(),
        "serial": pa.int64(),
        "a": pa.int64(),
        "b": pa.int64(),
        "text": pa.string(),
        "numbers": pa.list_(pa.int64()),
        "steps": pa.list_(pa.struct({"at": pa.int64(), "up": pa.int64()})),
    }
)
long, short = st.integers(-(1 << 62), 1 << 62), st.integers(-1000, 1000)
rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.none() | short | long,
        st.none() | short,
        st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=70),
        st.lists(short, min_size=1, max_size=4),
        st.none() | st.lists(st.fixed_dictionaries({"at": short, "up": short}), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


NUMBERS = ("1", " +1\x1f", "1.", ".5", "1e3", "0x1f", "1_000", str(1 << 63), "\u0661")
"""Texts that one engine or the other takes for whole numbers, if it is left to itself.
"""


def of_rows(frame: Any) -> Any:
    """A value from each row, by each function."""
    a, b = F.col("a"), F.col("b")
    small = F.coalesce("b", F.lit(7))
    return frame.select(
        "serial",
        F.try_multiply("a", F.lit(1000)).alias("times"),
        F.greatest("a", "b").alias("greatest"),
        F.least("a", b).alias("least"),
        F.floor(b / 7).alias("floor"),
        F.expr("b div 7").alias("div"),
        (b % 7).alias("mod"),
        F.shiftright("a", 48).alias("right"),
        F.shiftleft(small, 6).bitwiseOR(5).alias("bits"),
        F.abs(b).alias("abs"),
        F.when(b > 0, "more").when(b < 0, "less").otherwise("neither").alias("case"),
        F.when(b.between(-5, 5) | b.isin(7, 8) | (a.isNull() & ~b.isNull()), 1).alias("logic"),
        F.nullif("b", F.lit(0)).alias("nullif"),
        F.filter("numbers", lambda x: x > small).alias("kept"),
        F.array_min("numbers").alias("least_number"),
        F.array_max("numbers").alias("most_number"),
        F.transform("numbers", lambda x, i: x * 2 + i).alias("indexed"),
        F.aggregate("steps", F.lit(0).cast("long"), lambda total, x: total + x["up"]).alias(
            "total"
        ),
        F.concat(F.array(F.lit(1).cast("long")), F.col("numbers")).alias("concat"),
        F.regexp_extract("text", r"^(\w*)(\d?)", 1).alias("word"),
        F.col("text").rlike("[a-z]+").alias("like"),
        F.col("text").try_cast("long").alias("number"),
        F.lead("a").over(Window.partitionBy("key").orderBy("serial")).alias("after"),
        F.sum("b")
        .over(
            Window.partitionBy("key").orderBy("serial").rowsBetween(Window.unboundedPreceding, -1)
        )
        .alias("until"),
    ).orderBy("serial")


def of_groups(frame: Any) -> Any:
    """A row from each group, by each aggregate."""
    return frame.groupBy("key").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count("b").alias("count"),
        F.sum("b").alias("sum"),
        F.min("text").alias("min"),
        F.max("a").alias("max"),
        F.max_by("b", "serial").alias("max_by"),
        F.percentile_approx("b", 0.5).alias("median"),
        F.percentile_approx("b", [0.0, 0.1, 0.5, 0.9, 1.0], 1000).alias("quantiles"),
        F.min(F.struct(F.col("serial"), F.col("b").alias("c"))).alias("struct"),
    ).select("*", "struct.c").drop("struct").orderBy("key")  # fmt: skip


def of_shapes(frame: Any) -> list[Any]:
    """Frames made of frames."""
    twice = F.array(
        *(
            F.struct(F.col(name).alias("at"), F.lit(up).alias("up"))
            for name, up in (("a", 1), ("b", 0))
        )
    )
    names = frame.select("key", "text").distinct()
    joined = frame.select("key", "serial").join(F.broadcast(names), "key", "left")
    return [
        frame.select("serial", F.inline(twice)).orderBy("serial", "up"),
        frame.select("serial", F.explode("numbers").alias("n")).groupBy("n").count().orderBy("n"),
        joined.orderBy("serial", "text"),
        frame.select("serial", "b").orderBy(F.desc("b"), "serial").limit(3),
        frame.select("serial", "b").orderBy(F.desc("b"), "serial"),
        frame.select("a", "b")
        .unionByName(frame.select("b", "a"))
        .where("a > 0")
        .agg(F.count("a"), F.max("b")),
        frame.withColumns({"a": F.col("b"), "c": F.col("a")})
        .select("serial", "a", "c")
        .orderBy("serial"),
    ]


@pytest.fixture(params=["compiled", "interpreted"])
def either_way(request: pytest.FixtureRequest) -> None:
    """Spark compiles the queries of the test, and interprets them."""
    if request.param == "compiled":
        request.getfixturevalue("compiled")


@on_spark
@pytest.mark.usefixtures("either_way")
@settings(**ROUNDS, max_examples=6)
@given(given=rows)
@example(
    given=[
        (0, (1 << 62) - 1, None, "x" * 40, [1], None),
        (0, None, 0, None, [0, 0], []),
        (1, 1, -7, "7", [3], []),
    ]
)
@example(given=[(0, 1, 1, text, [1], None) for text in NUMBERS])
def test_every_function_that_spark_has_and_duckdb_has_not_gives_sparks_answer(
    both: Both, given: list[Any]
) -> None:
    found = [(key, serial, *rest) for serial, (key, *rest) in enumerate(given)]

    def ask(session: Any) -> list[Any]:
        frame = small_frame(session, found, ROW)
        return [
            [tuple(row) for row in each.collect()]
            for each in (of_rows(frame), of_groups(frame), *of_shapes(frame))
        ]

    embedded, spark = both(ask)
    assert embedded == spark


@on_spark
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("question", ["audit", "advise"])
def test_java_compiles_every_method_that_spark_runs_over_rows_of_events(
    question: str, real_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer method than this Java only interprets, unless it is told: one of them,
    over rows of events, took as long as all the rest of an advice. Stages over rows of
    connections have longer ones, of 9,613 to 16,362 bytes, for which a Java that a
    command starts is told. What Spark does without them costs more: with
    `spark.sql.codegen.hugeMethodLimit` at 8000 an audit of a million rows took 1.3
    times the processor time, and an advice 1.4 times.
    """
    from pyspark.sql.classic.dataframe import DataFrame

    sizes: list[tuple[int, str]] = []
    asked = {name: getattr(DataFrame, name) for name in ("collect", "toArrow", "observe")}

    def noting(name: str) -> Any:
        def ask(frame: Any, *args: Any, **options: Any) -> Any:
            codes = frame._jdf.queryExecution().debug().codegenToSeq()
            sizes.extend(
                (each._3().maxMethodCodeSize(), each._1())
                for each in (codes.apply(i) for i in range(codes.size()))
            )
            return asked[name](frame, *args, **options)

        return ask

    write(tmp_path / "server", tmp_path / "client", connections=40)
    server, client = (
        check([tmp_path / "server"], now_ns=WALL),
        check([tmp_path / "client"], now_ns=WALL),
    )
    for name in asked:
        monkeypatch.setattr(DataFrame, name, noting(name))
    real_spark.conf.set(
        "spark.sql.adaptive.enabled", "false"
    )  # whose plans are not final before they have run
    try:
        if question == "audit":
            audit(real_spark, server, client, tmp_path / "out", Settings())
        else:
            advise(real_spark, server, None, Policy())
    finally:
        real_spark.conf.set("spark.sql.adaptive.enabled", "true")
    # The text of a stage has those below it, too: its own number comes first.
    of_rows = [
        size
        for size, stage in sizes
        if f"{stage.strip().partition(' ')[0]} ColumnarToRow" in stage  # of a file
    ]
    assert len(of_rows) > 1
    assert max(of_rows) < 8000


def work_for(session: Any, ask: Callable[[], object]) -> tuple[int, int]:
    """How many queries Spark runs to answer *ask*, and how often it reads a journal's
    rows for them, by the plans that it ran at last.
    """
    store = session._jsparkSession.sharedState().statusStore()
    bus = session.sparkContext._jsc.sc().listenerBus()
    bus.waitUntilEmpty()
    before = store.executionsCount()
    ask()
    bus.waitUntilEmpty()
    ran = store.executionsList(before, store.executionsCount() - before)
    found = 0
    for i in range(ran.size()):
        nodes = store.planGraph(ran.apply(i).executionId()).allNodes()
        told = [nodes.apply(at) for at in range(nodes.size())]
        # Of all tables that are read, the events' alone has a column `kind`.
        found += sum(
            node.name().startswith("Scan parquet") and "kind#" in node.desc() for node in told
        )
    return ran.size(), found


@on_spark
@pytest.mark.usefixtures("compiled")
def test_spark_reads_the_events_once_to_check_once_to_audit_twice_to_advise(
    real_spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "server", connections=40)
    checked: list[Inputs] = []
    questions: list[Callable[[], object]] = [
        lambda: checked.append(check([tmp_path / "server"], spark=real_spark, now_ns=WALL)),
        lambda: audit(real_spark, checked[0], None, tmp_path / "out", Settings()),
        lambda: advise(real_spark, checked[0], None, Policy()),
    ]
    # Of the audit's: one writes a row per connection, one counts what arrived, two sum
    # up. Each costs a second of planning and compiling, however little it reads.
    assert [work_for(real_spark, ask) for ask in questions] == [(1, 1), (4, 1), (3, 2)]


@on_spark
def test_sql_written_by_hand_for_spark_answers_as_the_audit(
    real_spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "server", seed=1, connections=60, faults=dict.fromkeys(FAULTS, 2))
    journal = check([tmp_path / "server"], now_ns=WALL)
    audit(real_spark, journal, None, tmp_path / "out", Settings())

    def read(files: list[str]) -> Any:
        return here().read_parquet(real_spark, list(map(Path, files)), EVENTS)

    answer = Sparks(real_spark, journal).audit(read, tmp_path / "by hand")
    assert form_of_audit(*answer) == form_of_connections(tmp_path / "out" / "connections")


# ---- the choice


def test_files_of_this_machine_are_asked_here_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x" * 1_500_000)
    assert choose("auto", None, [tmp_path], tmp_path) == (
        "embedded",
        "1.5 MB of files on this machine",
    )
    assert choose("spark", None, [tmp_path], tmp_path) == ("spark", "as asked")
    assert bytes_of([tmp_path, tmp_path / "a.parquet"], 10**9) == 3_000_000
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")
    assert choose("auto", None, [tmp_path], tmp_path) == ("spark", "SPARK_REMOTE is set")
    assert choose("embedded", None, [tmp_path], tmp_path) == ("embedded", "as asked")


@pytest.mark.parametrize(
    ("master", "place", "only", "why"),
    [
        ("local[2]", None, None, "--master is given"),
        (None, "s3a://b/x", None, "s3a://b/x is not on this machine"),
        (None, None, "live is a stream", "live is a stream"),
    ],
)
def test_what_the_embedded_engine_cannot_is_sparks_and_is_refused_with_its_name(
    tmp_path: Path, master: str | None, place: str | None, only: str | None, why: str
) -> None:
    inputs: list[Any] = [Remote(place) if place else tmp_path]
    assert choose("auto", master, inputs, tmp_path, only_spark=only) == ("spark", why)
    with pytest.raises(NoSpark, match=r"--engine embedded cannot do this: .*; use --engine spark"):
        choose("embedded", master, inputs, tmp_path, only_spark=only)


@pytest.mark.parametrize(("without", "engine"), [(None, "spark"), ("no Java", "embedded")])
def test_more_than_memory_bears_is_sparks_where_spark_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str | None, engine: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x" * 1000)
    monkeypatch.setattr("reaper.pipeline.engine.embedded.memory_bytes", lambda: 100)
    monkeypatch.setattr("reaper.pipeline.engine.choice.no_spark", lambda: without)
    chosen, why = choose("auto", None, [tmp_path], tmp_path)
    assert (chosen, "it will spill" in why) == (engine, engine == "embedded")


@pytest.mark.slow
def test_the_embedded_engine_imports_no_spark_and_reads_files_of_any_name(tmp_path: Path) -> None:
    write(tmp_path / "raw", connections=8)
    odd = tmp_path / "of [any] {name}, it's*"
    (tmp_path / "raw").rename(odd)
    given = ["audit", "--events", str(odd), "--out", str(tmp_path / "it's"), "--json"]
    program = f"import sys; from reaper.pipeline import cli; status = cli.main({given!r})"
    program += (
        "; sys.exit(status or any(name.split('.')[0] in ('pyspark', 'py4j') for name in "
        "sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "engine: embedded (" in done.stderr
    assert len(done.stderr.splitlines()) < 8, done.stderr


def test_connections_are_added_day_by_day_each_once(spark: Any, tmp_path: Path) -> None:
    """Open in the first answer, ended in the second; the third has nothing new."""
    for name, last in (("before", "touch 9"), ("after", "touch 9; close_peer 12")):
        with journal(tmp_path / name, 1, sequence=7) as ours:
            play("open 0 5; close_peer 3", 10 * S, ours)
            play(f"open 5 5; {last}", 10 * S, ours)
            ours.config(23 * S, "still here")
    found = []
    for name in ("before", "after", "after"):
        inputs = check([tmp_path / name], now_ns=WALL)
        run_by_day(spark, inputs, None, tmp_path / "out", Settings(), lambda _: None)
        table = ds.dataset(tmp_path / "out" / "connections", partitioning="hive").to_table()
        found.append(table["verdict"].to_pylist())
    assert found == [["ok_closed"], ["ok_closed"] * 2, ["ok_closed"] * 2]
    assert not (tmp_path / "out" / ".answer").exists()


@on_spark
def test_both_engines_add_days_and_leave_what_is_there(both: Both, tmp_path: Path) -> None:
    schema = pa.schema([("conn", pa.int64()), ("day", pa.date32()), ("verdict", pa.string())])
    first, second = date(2026, 11, 26), date(2026, 11, 27)
    batches: list[list[tuple[Any, ...]]] = [
        [(1, first, "a")],
        [(1, first, "b"), (2, first, "b"), (3, second, "b")],
    ]

    def kept(session: Any) -> dict[str, list[Any]]:
        target = tmp_path / answering()
        for rows in batches:
            here().append_days(small_frame(session, rows, schema), target, "conn")
        days = {}
        for day in sorted(target.glob("day=*")):
            files = sorted(day.glob("*.parquet"))
            there = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
            days[day.name] = sorted((row["conn"], row["verdict"]) for row in there)
        return days

    embedded, on_spark_ = both(kept)
    assert embedded == on_spark_
    assert embedded == {"day=2026-11-26": [(1, "a"), (2, "b")], "day=2026-11-27": [(3, "b")]}


@pytest.mark.parametrize(("first", "then"), [(["--by-day"], []), ([], ["--by-day"])])
def test_days_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: list[str], then: list[str]
) -> None:
    write(tmp_path / "server", connections=5)
    asked = ["audit", "--events", str(tmp_path / "server"), "--out", str(tmp_path / "out")]
    asked += ["--engine", "embedded", "--quiet"]
    assert main([*asked, *first]) == 0
    kept = sorted((tmp_path / "out").rglob("*.parquet"))
    assert main([*asked, *then]) == 2
    assert "give --by-day" in (said := capsys.readouterr().err) or "another --out" in said
    assert sorted((tmp_path / "out").rglob("*.parquet")) == kept


# ---- where a Spark may start, and whose configuration counts: none starts

OURS = {"spark.sql.warehouse.dir", "spark.ui.showConsoleProgress", "spark.driver.extraJavaOptions"}
EMBEDDED = OURS | {"spark.ui.enabled", "spark.driver.memory"}


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user who has configured nothing; their SPARK_CONF_DIR."""
    for name in (
        "SPARK_REMOTE",
        "PYSPARK_SUBMIT_ARGS",
        "PYSPARK_GATEWAY_PORT",
        "SPARK_DRIVER_MEMORY",
        "MASTER",
        *_OPTIONS_OF_JAVA,
    ):
        monkeypatch.delenv(name, raising=False)
    conf = tmp_path / "conf"
    conf.mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    return conf


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("master", [None, "local", "local[2]"])
def test_an_embedded_driver_gets_memory_and_quiet(tmp_path: Path, master: str | None) -> None:
    given = _of_driver(tmp_path, master)
    assert set(given) == EMBEDDED
    assert 1024 <= int(given["spark.driver.memory"].removesuffix("m")) <= EMBEDDED_HEAP_MB


@pytest.mark.usefixtures("no_settings")
def test_a_cluster_keeps_its_page_and_its_memory(tmp_path: Path) -> None:
    for cluster in ("spark://somewhere:7077", "yarn", "k8s://https://somewhere"):
        assert set(_of_driver(tmp_path, cluster)) == OURS


def test_settings_of_the_user_are_kept(
    no_settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = no_settings / "spark-defaults.conf"
    defaults.write_text(
        "# spark.ui.enabled true\nspark.sql.warehouse.dir=/data\nspark.driver.memory 2g\n"
    )
    assert set(_of_driver(tmp_path, None)) == EMBEDDED - {
        "spark.sql.warehouse.dir",
        "spark.driver.memory",
    }
    defaults.write_text("spark.master spark://somewhere:7077\n")
    assert set(_of_driver(tmp_path, None)) == OURS
    defaults.unlink()
    (no_settings / "log4j2.properties").write_text("")
    java = _of_driver(tmp_path, None)["spark.driver.extraJavaOptions"]
    assert java.split() == list(BRIEF_JAVA)
    assert "-XX:-DontCompileHugeMethods" in java  # or Java interprets rows of connections
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")  # with a second one it starts not
    assert set(_of_driver(tmp_path, None)) == EMBEDDED - {"spark.driver.extraJavaOptions"}
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", "--driver-memory 2g --conf spark.ui.enabled=true pyspark-shell"
    )
    assert set(_of_driver(tmp_path, None)) == OURS - {"spark.driver.extraJavaOptions"}


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(("over", "java"), [(0, BRIEFEST_JAVA), (1, BRIEF_JAVA)])
def test_a_little_journal_gets_a_java_with_one_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: int, java: tuple[str, ...]
) -> None:
    class Started(Exception):
        """What Spark would have started with."""

    def start(builder: Any, key: str, value: str) -> Any:
        if key == "spark.driver.extraJavaOptions":
            raise Started(value)
        return builder

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.config", start)
    monkeypatch.setattr("reaper.pipeline.engine.spark._open_already", lambda: None)
    monkeypatch.setattr("reaper.pipeline.engine.spark.check_java", lambda: None)  # none is started
    (tmp_path / "server").mkdir()
    with (tmp_path / "server" / "one.parquet").open("wb") as sparse:
        sparse.truncate(LITTLE + over)
    words = f"audit --engine spark --quiet --events {tmp_path / 'server'} --out {tmp_path / 'out'}"
    with pytest.raises(Started) as started:
        main(words.split())
    assert [word for word in str(started.value).split() if word.startswith("-XX")] == [*java]


def test_what_spark_says_whenever_it_starts_or_ends_a_stream_stays_off_the_screen() -> None:
    program = (
        "import subprocess, sys, threading\n"
        "from reaper.pipeline.engine.spark import _without_noise\n"
        "with _without_noise(): java = subprocess.Popen(['sh', '-c', "
        "'echo Setting default log level to WARN >&2; echo kept >&2; "
        "echo spark: WARN DAGScheduler: Failed to cancel job group 1. Cannot find active jobs for "
        "it. >&2'])\n"
        "java.wait()\n"  # with it ends what the thread reads that passes its lines on
        "[each.join() for each in threading.enumerate() if each.name == 'spark-stderr']\n"
        "print('mine', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == ["kept", "mine"]


@pytest.fixture
def masters() -> Iterator[tuple[str, str]]:
    """An address that listens, and one that refuses."""
    with socket.create_server(("127.0.0.1", 0)) as master, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # but not listening
        here, gone = (f"127.0.0.1:{each.getsockname()[1]}" for each in (master, closed))
        yield here, gone


@pytest.mark.parametrize("scheme", ["sc", "spark"])
def test_a_cluster_that_does_not_answer_is_one_line_at_once(
    masters: tuple[str, str], scheme: str
) -> None:
    url = f"{scheme}://{masters[1]}"
    with pytest.raises(NoSpark, match=f"no Spark at {url}.*; expected {scheme}://HOST:"):
        check_reachable(url)


def test_one_master_of_several_that_answers_is_enough(masters: tuple[str, str]) -> None:
    here, gone = masters
    check_reachable(f"spark://{gone},{here}")
    check_reachable(f"sc://{here}/;user_id=me")


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    ("master", "remote", "reason"),
    [
        ("spurk://host:1", None, "spurk://host:1 is no Spark master; expected"),
        ("spark:host", None, "spark:host is no Spark master; expected"),
        ("everywhere", None, "everywhere is no Spark master; expected"),
        ("local", "sc://somewhere", "--master local contradicts SPARK_REMOTE=sc://somewhere"),
    ],
)
def test_a_master_that_is_none_or_contradicts_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, master: str | None, remote: str | None, reason: str
) -> None:
    if remote:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(NoSpark, match=reason), open_session("test", master):
        pass
