"""A PostgreSQL server of a trial's own: it listens on a UNIX socket only, and nothing
is left of it.

As root it runs as `nobody`, for it refuses to run as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..serving import DidNotStart

PLACES = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
"""Where Debian puts what is in no PATH."""
PATIENCE = 60.0


def tool(name: str) -> str | None:
    """The path of a program of PostgreSQL; None: it is not installed."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


@contextmanager
def postgres() -> Iterator[str]:
    """A server for the length of the block: its address, as SQLAlchemy takes it for
    asyncpg.

    Raises:
        DidNotStart: it is not installed, or did not begin.
    """
    initdb, server, ready = map(tool, ("initdb", "postgres", "pg_isready"))
    if not (initdb and server and ready):
        raise DidNotStart("no initdb, postgres and pg_isready: install PostgreSQL")
    as_whom: dict[str, str] = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        if as_whom:
            shutil.chown(folder, **as_whom)
        data = f"{folder}/data"
        words = [initdb, "-D", data, "-A", "trust", "-U", "trial", "--no-sync", "--no-locale"]
        made = subprocess.run(words, cwd=folder, capture_output=True, text=True, **as_whom)  # type: ignore[call-overload]
        if made.returncode:
            raise DidNotStart(f"initdb: {made.stderr[-300:]}")
        words = [server, "-D", data, "-k", folder, "-c", "listen_addresses=", "-F"]
        process = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL, **as_whom)  # type: ignore[call-overload]
        try:
            until = time.monotonic() + PATIENCE
            while subprocess.run([ready, "-q", "-h", folder], check=False).returncode:
                if process.poll() is not None or time.monotonic() > until:
                    raise DidNotStart("postgres did not begin")
                time.sleep(0.1)
            yield f"postgresql+asyncpg://trial@/postgres?host={folder}"
        finally:
            process.terminate()
            process.wait()
