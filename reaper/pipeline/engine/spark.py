"""One Spark session a command: in this process by default, or wherever the user says. A
setting that the user has made is never overwritten.

Nothing else here or in the rest of the pipeline knows where Spark runs: no RDD, no
`sparkContext`, no `_jvm`, no Python on executors, so that Spark Connect and any cluster
work unchanged. docs/cluster.md has the commands.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import needs
from ..places import Place, files_below, pattern, uri
from .functions import use

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from .parts import Ladder, Part

JAVA_LEAST = 17
"""Spark 4 asks for it."""

SPARK_LEAST = (4, 0)
"""Before it there are no `try_` casts of columns, and the pipeline needs them."""

ROWS_PER_PARTITION = 500_000
LEAST_PARTITIONS = 4
"""Spark's own 200 partitions cost a small log half a minute of empty tasks."""

PORTION: int | None = None
"""See that of `embedded`: Spark parts rows by itself."""

EMBEDDED_HEAP_MB = 3072
"""Driver and executor in one. With what a JVM takes beside its heap, the process stays
below 4 GiB. Spark's own 1 GiB spills.
"""

PATIENCE_S = 10.0
"""How long a master may take to answer. Spark itself tries for a minute, Spark Connect
for ten, both in silence.
"""

_JAVA = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UseParallelGC")  # there are other Javas

BRIEF_JAVA = (
    *_JAVA,
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-XX:-DontCompileHugeMethods",
)
"""For a Java that lives for one answer: ten times Java's own thresholds leave to its
second compiler what runs for every row. With Java's own, half of the processor time of
a short answer went into compiling Spark's planner, which then was asked no more.

The last has methods of more than 8,000 bytes compiled, which Java only interprets
otherwise. Spark makes such methods over rows of connections. At ten million events they
took 17 of the 28 seconds of an audit's tasks, and take 8 compiled; of the 34 of an
advice's, 22 and 6.
"""

BRIEFEST_JAVA = (*_JAVA, "-XX:TieredStopAtLevel=1")
"""For one that reads little: the first compiler alone."""

_OPTIONS_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where a user tells every Java how to run. Two collectors would keep it from
starting.
"""

_PORTS = {"sc": 15002, "spark": 7077}

# What the scheduler warns of is why nothing seems to happen: no worker with room, an
# executor lost.
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = warn
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{3}
"""

_NOISE = (
    b"WARNING: Using incubator modules",
    b"Using Spark's default log4j profile",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Picked up JAVA_TOOL_OPTIONS",
    b"spark: WARN DAGScheduler: Failed to cancel job group",
)
"""What Java and Spark say whenever they start, or end a stream: nothing that anyone
could act on.
"""

_ALSO_SET_BY = {
    "spark.driver.memory": "--driver-memory",
    "spark.driver.extraJavaOptions": "--driver-java-options",
}
"""Other words for a property among the arguments of spark-submit."""

_UNSEEN = (
    "PATH_NOT_FOUND",
    "UNABLE_TO_INFER_SCHEMA",
    "FILE_NOT_EXIST",
    "java.io.FileNotFoundException",
)
"""How Spark says that a file is missing which this program has just seen, or Spark has
just written.
"""


class NoSpark(Exception):
    """Spark cannot work here. The message is one line that says what to do."""


class NoJava(NoSpark):
    """Spark cannot start here. The message is one line that says what to install."""


def check_version() -> None:
    """Make sure that the PySpark of this process is one that the pipeline works with,
    if there is one.

    Raises:
        NoSpark: it is older than `SPARK_LEAST`.
    """
    try:
        from pyspark import __version__ as found
    except ModuleNotFoundError:
        return  # whoever needs it says so
    _check_version("PySpark", found)


def _check_version(what: str, found: str) -> None:
    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if numbers < SPARK_LEAST:
        least = ".".join(map(str, SPARK_LEAST))
        raise NoSpark(
            f"{what} {found} is too old: the pipeline works with Spark {least} and newer "
            "(pip install 'idle-reaper[spark]'), or without it (--engine embedded)"
        )


def check_java() -> None:
    """Make sure that Spark would find a Java it can use.

    Raises:
        NoJava: none, or one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    wanted = (
        f"Spark needs Java {JAVA_LEAST} or newer: install a runtime (Debian: apt-get install "
        "openjdk-17-jre-headless)"
    )
    if shutil.which(java) is None:
        raise NoJava(f"{wanted}; found none{f' at JAVA_HOME={home}' if home else ' on PATH'}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    if found is None or int(found[1]) < JAVA_LEAST:
        raise NoJava(
            f"{wanted}; {java} is "
            f"{'of unknown version' if found is None else f'version {found[1]}'}"
        )


def check_reachable(url: str) -> None:
    """Make sure that a server listens where *url* (`sc://` or `spark://`, the latter
    with several hosts) points.

    Raises:
        NoSpark: none does, or it is not a URL.
    """
    scheme, _, rest = url.partition("://")
    said = ""
    for place in rest.split("/")[0].split(","):
        host, _, port = (
            place.rpartition(":")
            if re.search(r":\d+$", place)
            else (place, "", str(_PORTS[scheme]))
        )
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S).close()
        except (OSError, OverflowError) as error:
            said = str(error)
        else:
            return
    wanted = (
        f"{scheme}://HOST:{_PORTS[scheme]} of a running "
        f"{'Connect server' if scheme == 'sc' else 'master'}"
    )
    raise NoSpark(f"no Spark at {url}: {said}; expected {wanted}")


@contextmanager
def open_session(
    name: str, master: str | None = None, *, connect: bool = True, little: bool = False
) -> Iterator[SparkSession]:
    """Open the session of one command, and stop it on the way out.

    In a program that has a Spark session already, as a notebook has, and without
    *master*, it is a new session of that Spark: its settings, views and frames are
    apart, nothing of the program's own session is changed, and nothing is stopped.

    Args:
        name: Shown by Spark.
        master: A Spark master URL, or `sc://...` for Spark Connect; None: whatever the
            environment says, else embedded.
        connect: Whether Spark Connect will do. It will not where Spark calls Python
            back, for it would do so at the server.
        little: Whether what is read is little, see `choice.LITTLE`. It matters to a
            Java that is started here alone.
    Raises:
        NoSpark: Spark cannot start here, or does not see the files that this program
            sees.
    """
    check_version()
    if master is not None and not re.match(
        r"sc://|spark://|k8s://|yarn$|local(-cluster)?(\[.*\])?$", master
    ):
        raise NoSpark(
            f"--master {master} is no Spark master; expected sc://, spark:// or k8s:// and a host, "
            "yarn, local[N]"
        )
    asked = os.environ.get("SPARK_REMOTE")
    remote = master if master is not None and master.startswith("sc://") else asked
    if master is not None and remote is not None and remote != master:
        raise NoSpark(f"--master {master} contradicts SPARK_REMOTE={asked}: give one of them")
    if remote is not None and not connect:
        raise NoSpark(
            f"{name} does not work through Spark Connect ({remote}): give --master with a cluster, "
            "or none"
        )
    if (remote or "").startswith("sc://") or (master or "").startswith("spark://"):
        check_reachable(remote or master or "")
    theirs = _open_already() if master is None else None
    with tempfile.TemporaryDirectory(prefix="reaper-spark-") as scratch:
        session = (
            _started(Path(scratch), f"reaper {name}", master, remote, little)
            if theirs is None
            else theirs.newSession()
        )
        before = use("spark")
        try:
            session.conf.set(
                "spark.sql.session.timeZone", "UTC"
            )  # not for choice: it decides what a log line means
            yield session
        except Exception as error:
            if any(word in str(error) for word in _UNSEEN):
                raise NoSpark(
                    f"Spark does not see what this program sees: {line_of(error)}: --events, "
                    "--client, --logs and --out must be the same directories for the driver and "
                    "every executor"
                ) from error
            raise
        finally:
            use(before)
            if theirs is None:
                session.stop()


def _open_already() -> SparkSession | None:
    """The session that this program has opened by itself; None if it has none, or has
    stopped it.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    # Active is a matter of threads: of another one's session only the class knows.
    return SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Keep `_NOISE` of a Java that is started within off standard error."""
    sys.stderr.flush()
    ours = os.dup(2)
    read, write = os.pipe()

    def pass_on() -> None:
        with open(read, "rb") as lines, open(ours, "wb", buffering=0) as screen:
            for line in lines:
                if not line.startswith(_NOISE):
                    screen.write(line)

    os.dup2(write, 2)
    os.close(write)
    threading.Thread(target=pass_on, name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, 2)


def _started(
    scratch: Path, name: str, master: str | None, remote: str | None, little: bool
) -> SparkSession:
    """A session of *remote*, or of a Spark that is started here. Raises NoSpark."""
    if not (remote or "").startswith("sc://"):
        check_java()
    import logging

    with needs("Spark", "idle-reaper[spark]"):
        from pyspark.errors import PySparkImportError
        from pyspark.sql import SparkSession

    logging.getLogger("DataFrameQueryContextLogger").setLevel(
        logging.CRITICAL
    )  # the exception says it all again
    builder = SparkSession.builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    if (
        remote is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    ):  # else the driver runs already: spark-submit's
        for key, value in _of_driver(scratch, master, little).items():
            builder = builder.config(key, value)
    try:
        with _without_noise():
            session: SparkSession = builder.getOrCreate()
    except PySparkImportError as error:
        raise NoSpark(f"{line_of(error)}: pip install 'idle-reaper[connect]'") from error
    except Exception as error:
        raise NoSpark(
            f"Spark does not start{f' at {master}' if master else ''}: {line_of(error)}"
        ) from error
    if remote is not None:
        _check_version(f"Spark at {remote}", session.version)
    return session


def read_parquet(session: SparkSession, paths: Sequence[Place], schema: pa.Schema) -> DataFrame:
    """The rows of the files *paths*; columns of *schema* that a file lacks are null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return session.read.schema(from_arrow_schema(schema)).parquet(*map(pattern, paths))


def read_table(session: SparkSession, paths: Sequence[Place]) -> DataFrame:
    """The rows of the Parquet files at and below *paths*, with their own columns."""
    return session.read.parquet(*map(pattern, paths))


def grouped(
    events: DataFrame, key: str, parts: Sequence[Part], ladder: Ladder | None = None
) -> DataFrame:
    """*events* grouped by *key*: for each of *parts*, the sums over its rows, and the
    columns of *ladder*; null where there are none.

    All parts are one aggregation: reading the rows again, and joining the results,
    would cost more.
    """
    from pyspark.sql.functions import expr

    wheres = []
    columns = []
    for part in parts:
        kinds = f"code IN ({', '.join(map(str, part.kinds))})"
        mine = f"{kinds} AND ({part.where})" if part.where else kinds
        wheres.append(f"({mine})")
        columns += [
            expr(f"{aggregate} FILTER (WHERE {of or mine})").alias(label)
            for label, (aggregate, of) in part.columns.items()
        ]
    if ladder is not None:
        shortest = min((*ladder.steps, *(most for _, most in ladder.counted)))
        wheres.append(f"({ladder.measure} > {shortest} AND {ladder.where})")
        columns += [
            expr(
                f"min({ladder.value}) FILTER (WHERE {ladder.measure} > {step} AND {ladder.where})"
            ).alias(f"{ladder.name}_{i}")
            for i, step in enumerate(ladder.steps)
        ]
        columns += [
            expr(f"count(1) FILTER (WHERE {ladder.measure} > {most} AND {ladder.counts})").alias(
                label
            )
            for label, most in ladder.counted
        ]
    return events.where(" OR ".join(wheres)).groupBy(key).agg(*columns)


def counted(
    frame: DataFrame, by: str, head: Column, sums: dict[str, str], keys: Sequence[Sequence[Column]]
) -> list[Any]:
    """Count the rows of *frame* for each *by* and `key`: *head*, and one after the
    other of *keys*. Of *head* there are *sums*, too. A null is no key.

    Args:
        keys: Each in a row of those that are alike: they are one array.
    """
    from pyspark.sql import functions

    # Functions over arrays: as many keys written out are a method that Java, for its
    # length, never compiles.
    arrays = [functions.array(*each) for each in keys]
    key = functions.concat(functions.array(functions.col("_head")), *arrays)
    rows = frame.withColumn("_head", head).withColumn("key", functions.explode(key))
    found: list[Any] = (
        rows.where("key IS NOT NULL")
        .groupBy(by, "key")
        .agg(
            functions.count(functions.lit(1)).alias("count"),
            *(
                functions.expr(f"{each} FILTER (WHERE key = _head)").alias(name)
                for name, each in sums.items()
            ),
        )
        .collect()
    )
    return found


def read_lines(session: SparkSession, paths: Sequence[Place]) -> DataFrame:
    """The lines of the files *paths*, `.gz` or plain, as `value`."""
    return session.read.text([pattern(path) for path in paths], recursiveFileLookup=True)


def write_back(frame: DataFrame, target: Place) -> DataFrame:
    """Write *frame* to Parquet at *target*, over what is there. Returns it as it reads
    back.

    Raises:
        NoSpark: some of it did not come back: executors wrote it where the driver does
            not look.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    vars(frame)["isStreaming"] = (
        False  # or Connect has the whole plan analysed, for the observation's own question
    )
    sent = Observation()
    write = frame.observe(sent, count(lit(1)).alias("rows")).write.mode("overwrite")
    _, schema = together(
        partial(write.parquet, uri(target)), lambda: frame.schema
    )  # Connect plans it for each
    back = frame.sparkSession.read.schema(schema).parquet(pattern(target))
    if (found := back.count()) != sent.get["rows"]:
        raise NoSpark(
            f"of {sent.get['rows']} connections written to {target} {found} are there: executors "
            "wrote the rest to disks of their own; --out must be one directory for the driver and "
            "every executor"
        )
    return back


def append_days(frame: DataFrame, target: Place, key: str) -> None:
    """Add the rows of *frame* whose *key* is not there yet to the Parquet files at
    *target*, a folder for each value of its column `day`. What is there stays.
    """
    if target.exists() and any(files_below(target)):
        known = frame.sparkSession.read.schema(frame.schema).parquet(pattern(target))
        frame = frame.join(known.select(key), key, "left_anti")
    frame.write.mode("append").partitionBy("day").parquet(uri(target))


def together(*questions: Callable[[], Any]) -> list[Any]:
    """Ask all *questions* at once, and return their answers in order. While one runs,
    Spark plans the next.

    Raises:
        Exception: what the first of them that failed raised, once all have ended.
    """
    with ThreadPoolExecutor(len(questions)) as pool:
        return [asked.result() for asked in [pool.submit(question) for question in questions]]


def expect(session: SparkSession, rows: int) -> None:
    """Settle the number of shuffle partitions for about *rows* rows. Adaptive execution
    can only make it smaller.

    Asked once per session; what the user has set stays.
    """
    if "spark.sql.shuffle.partitions" not in session.conf.getAll:
        partitions = min(max(LEAST_PARTITIONS, rows // ROWS_PER_PARTITION), 2000)
        session.conf.set("spark.sql.shuffle.partitions", str(partitions))


def _of_driver(scratch: Path, master: str | None, little: bool = False) -> dict[str, str]:
    """Properties for a driver that is started here, but for those that the user's own
    configuration names.
    """
    import pyspark

    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    conf_dir = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))
    defaults = conf_dir / "spark-defaults.conf"
    lines = defaults.read_text(encoding="utf-8").splitlines() if defaults.is_file() else []
    theirs = " ".join(line for line in lines if not line.lstrip().startswith("#"))
    theirs += " " + os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    wanted = {
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.ui.showConsoleProgress": "false",
    }
    java = []
    if not any(conf_dir.glob("log4j2.*")):
        layout = scratch / "log4j2.properties"
        layout.write_text(_LOGGING, encoding="ascii")
        java.append(f"-Dlog4j2.configurationFile={layout}")
    elsewhere = "MASTER" in os.environ or "spark.master" in theirs or "--master" in theirs
    if master.startswith("local") if master is not None else not elsewhere:
        wanted["spark.ui.enabled"] = "false"
        if not any("-XX:" in said for said in (theirs, *map(_environment, _OPTIONS_OF_JAVA))):
            java += BRIEFEST_JAVA if little else BRIEF_JAVA
        if "SPARK_DRIVER_MEMORY" not in os.environ:
            wanted["spark.driver.memory"] = f"{min(EMBEDDED_HEAP_MB, max(1024, memory_mb() // 2))}m"
    if java:
        wanted["spark.driver.extraJavaOptions"] = " ".join(java)
    return {
        key: value
        for key, value in wanted.items()
        if key not in theirs and _ALSO_SET_BY.get(key, key) not in theirs
    }


def _environment(name: str) -> str:
    return os.environ.get(name, "")


def memory_mb() -> int:
    """The memory of this machine, or what the container allows, MiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text(encoding="ascii").strip() if limit.is_file() else "max"
    return min(memory, int(allowed) if allowed.isdecimal() else memory) >> 20


def line_of(error: Exception) -> str:
    """The one line of *error* that says what happened: that of the Java exception,
    where there is one.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])[
        :300
    ]
