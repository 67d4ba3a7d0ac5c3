"""One Spark session a command, embedded by default; the master is set only when the user named one.

Nothing else here or in the rest of the pipeline knows where Spark runs: no RDD, no `sparkContext`, no `_jvm`, so that
Spark Connect and any cluster work unchanged.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
"""Spark 4 asks for it."""

ROWS_PER_PARTITION = 500_000
LEAST_PARTITIONS = 4
"""Spark's own 200 partitions cost a small log half a minute of empty tasks."""

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{3}
"""


class NoJava(Exception):
    """Spark cannot start here. The message is one line that says what to install."""


def check_java() -> None:
    """Make sure that Spark would find a Java it can use.

    Raises:
        NoJava: none, or one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    wanted = (
        f"Spark needs Java {JAVA_LEAST} or newer: install a runtime (Debian: apt-get install openjdk-17-jre-headless)"
    )
    if shutil.which(java) is None:
        raise NoJava(f"{wanted}; found none{f' at JAVA_HOME={home}' if home else ' on PATH'}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    if found is None or int(found[1]) < JAVA_LEAST:
        raise NoJava(f"{wanted}; {java} is {'of unknown version' if found is None else f'version {found[1]}'}")


@contextmanager
def open_session(name: str, master: str | None = None, *, rows: int = 0) -> Iterator[SparkSession]:
    """The session of one command; stopped on the way out.

    Args:
        name: Shown by Spark.
        master: A Spark master URL, or `sc://...` for Spark Connect; None: whatever the environment says, else embedded.
        rows: About how many will be read; settles the number of shuffle partitions, which AQE can only make smaller.
    Raises:
        NoJava: Spark cannot start here.
    """
    remote = (master is not None and master.startswith("sc://")) or "SPARK_REMOTE" in os.environ
    if not remote:
        check_java()
    import logging

    from pyspark.sql import SparkSession

    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)  # the exception says it all again
    with tempfile.TemporaryDirectory(prefix="reaper-spark-") as scratch:
        layout = Path(scratch, "log4j2.properties")
        layout.write_text(_LOGGING, encoding="ascii")
        builder = SparkSession.builder.appName(f"reaper {name}")
        if master is not None:
            builder = builder.remote(master) if remote else builder.master(master)
        settings = {"spark.sql.adaptive.enabled": "true", "spark.sql.session.timeZone": "UTC"}
        if not remote:
            partitions = min(max(LEAST_PARTITIONS, rows // ROWS_PER_PARTITION), 2000)
            settings["spark.sql.shuffle.partitions"] = str(partitions)
            settings |= {
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={layout}",
                "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
            }
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
