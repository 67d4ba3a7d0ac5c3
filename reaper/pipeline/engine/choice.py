"""Which engine a command asks: DuckDB in this process, or Spark.

The rule of this module: *one line says which engine was chosen, and why*.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ..places import Place, Remote, files_below
from . import embedded
from .spark import NoSpark, check_java, check_version, open_session

CHOICES = ("auto", "spark", "embedded")

WORKED_ON = 4
"""Bytes of memory that a byte of a journal may take while it is judged. 50M rows of ten
writers, 0.9 GB of files, took 2.0 GiB for an audit and 1.4 GiB for advice.
"""

LITTLE = 24 << 20
"""Bytes of journals, 1.8 million rows, up to which Java's second compiler costs more
than it saves. Processor seconds of a whole audit with both compilers and with the
first alone, two pairs each: 20,000 rows 19.3 and 18.2, 14.2 and 14.0; a million 25.2
and 25.9, 19.7 and 20.4; three million 32.3 and 36.3, 30.1 and 31.7. Of advice on three
million: 35.9 and 38.1, 35.5 and 39.2.
"""

ENVIRONMENT = (
    "SPARK_REMOTE",
    "MASTER",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_GATEWAY_PORT",
)
"""If one of these is set, it says where Spark is to run."""


def choose(
    asked: str,
    master: str | None,
    inputs: Sequence[Place],
    out: Place,
    *,
    only_spark: str | None = None,
) -> tuple[str, str]:
    """Choose `spark` or `embedded`, and say why.

    Args:
        asked: One of `CHOICES`.
        only_spark: Why the question needs Spark; None if both engines will do.
    Raises:
        NoSpark: the embedded engine is asked for what it cannot. The message is one
            line.
    """
    elsewhere = next((where for where in (*inputs, out) if isinstance(where, Remote)), None)
    named = next((name for name in ENVIRONMENT if os.environ.get(name)), None)
    if only_spark is not None:
        why = only_spark
    elif master is not None:
        why = "--master is given"
    elif elsewhere is not None:
        why = f"{elsewhere} is not on this machine"
    elif asked == "auto" and named is not None:
        why = f"{named} is set"
    else:
        why = ""
    if asked == "embedded" and why:
        raise NoSpark(f"--engine embedded cannot do this: {why}; use --engine spark")
    if asked == "spark":
        return "spark", "as asked"
    if why:
        return "spark", why
    if asked == "embedded":
        return "embedded", "as asked"
    most = embedded.memory_bytes() // WORKED_ON
    size = bytes_of(inputs, most)
    if size <= most:
        return "embedded", f"{size / 1e6:,.1f} MB of files on this machine"
    if (missing := no_spark()) is not None:
        return "embedded", f"more than {most / 1e9:,.1f} GB of files, so it will spill: {missing}"
    return "spark", f"more than {most / 1e9:,.1f} GB of files"


def no_spark() -> str | None:
    """Why Spark could not start in this process, in one line; None if it could."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed (pip install 'idle-reaper[spark]')"
    try:
        check_version()
        check_java()
    except NoSpark as error:
        return str(error)
    return None


def bytes_of(inputs: Sequence[Place], enough: int) -> int:
    """The bytes of all files at and below *inputs*. Stops looking once there are more
    than *enough*.
    """
    total = 0
    for where in inputs:
        for _, _, size in files_below(where):
            total += size
            if total > enough:
                return total
    return total


def is_little(journals: Sequence[Place]) -> bool:
    """Whether *journals*, all there is to read, are known to be `LITTLE`."""
    here = not any(isinstance(where, Remote) for where in journals)
    return bool(journals) and here and bytes_of(journals, LITTLE) <= LITTLE


@contextmanager
def asked_session(
    name: str,
    engine: str,
    why: str,
    master: str | None,
    connect: bool,
    little: bool,
    progress: Callable[[str], None],
) -> Iterator[Any]:
    """The session of the command *name*, of the *engine* that was chosen. *connect*,
    *little*: see `open_session`.
    """
    progress(f"engine: {engine} ({why})")
    opened: Any = (
        embedded.open_session()
        if engine == "embedded"
        else open_session(name, master, connect=connect, little=little)
    )
    with opened as session:
        yield session
