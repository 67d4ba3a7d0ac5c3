"""What there is to say of uvicorn."""

from __future__ import annotations

from ...config.effects import Which
from ..abilities import ON_TIME, able
from ..factories import OUR_LOOPS, SPARED
from ..guest import Card, Change, Kind
from .changes import change
from .names import HTTP2, NEEDS, STARTS

CARD = Card(
    title="uvicorn",
    needs=(STARTS,),
    kinds=(
        Kind(
            "uvicorn",
            "uvicorn, h11 and httptools",
            able(
                ON_TIME, keep_alive=Which("uvicorn's --timeout-keep-alive holds until you set this")
            ),
            {"limits.max_requests": "its own --limit-max-requests, for a process"},
            NEEDS,
            starts="uvicorn {asgi} --port {port}",
        ),
    ),
    changes={"uvicorn.server": Change(change)},
    done="`Config.http` is [the guarded one](uvicorn.md), where it is `auto`, `httptools` or "
    "`h11`, and `zttp` with `--http2`; `Server.startup` is wrapped to say where it listens",
    page="uvicorn",
    promised=OUR_LOOPS,
    spared=SPARED,
    besides={"--http zttp --http2": (HTTP2,)},
    own={"keep_alive": "--timeout-keep-alive, 5s unless given"},
    below=("h11", "httptools", "zttp"),
)
