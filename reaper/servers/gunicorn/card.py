"""What there is to say of gunicorn and its workers."""

from __future__ import annotations

from ...config.effects import Which
from ..abilities import (
    ASKED,
    CANCELS,
    HINT,
    LAST,
    LEASES,
    ON_TIME,
    REFUSES,
    SHAKES,
    STREAMS,
    TLS,
    able,
)
from ..factories import OUR_LOOPS, SPARED
from ..guest import Card, Change, Kind
from .changes import config, worker
from .names import CONFIG, NEEDS, WORKER

KEEP_ALIVE = Which("gunicorn's --keep-alive holds until you set this")

CARD = Card(
    title="gunicorn",
    needs=(CONFIG, WORKER),
    kinds=(
        Kind(
            "gunicorn-uvicorn",
            "gunicorn with uvicorn's worker",
            able(ON_TIME, keep_alive=KEEP_ALIVE, drain=Which("at most `--graceful-timeout`")),
            starts="gunicorn {asgi} -k uvicorn.workers.UvicornWorker -b 127.0.0.1:{port}",
            under="uvicorn",
        ),
        Kind(
            "gunicorn-asgi",
            "gunicorn's asgi worker",
            able(
                *(LEASES, ASKED, LAST, TLS, REFUSES, HINT, STREAMS, CANCELS),
                keep_alive=KEEP_ALIVE,
                drain=Which("at most 2 s less than `--graceful-timeout`"),
                drain_delay="",
                drain_window="",
                drain_idle="",
                stream_ping="from the first bytes on: the server sends the headers with them",
                abandoned="over HTTP/2 its own `asgi_disconnect_grace_period`",
            ),
            needs=NEEDS["ASGIWorker"],
            called="'s ASGIWorker",
            serves="asgi:Asgi",
            starts="gunicorn {asgi} -k asgi -b 127.0.0.1:{port}",
        ),
        Kind(
            "gunicorn-gthread",
            "gunicorn's threads",
            able(
                *(LEASES, ASKED, LAST, SHAKES, REFUSES, HINT),
                keep_alive=KEEP_ALIVE,
                tunnel="only for streams of HTTP/2",
                tunnel_age="only for streams of HTTP/2",
                drain="at max_age; at a stop its own --graceful-timeout",
                drain_delay="",
                drain_idle="",
                limits__max_connections=Which("only if you set it, and below --worker-connections"),
            ),
            {"timeouts.abandoned": "a request in a thread cannot be cancelled"},
            NEEDS["ThreadWorker"],
            "'s ThreadWorker",
            serves="threads:Threaded",
            starts="gunicorn {wsgi} --threads 60 -b 127.0.0.1:{port}",
        ),
    ),
    changes={"gunicorn.config": Change(config), "gunicorn.workers.base": Change(worker)},
    done="`Config.worker_class`: `asgi` and `gthread` give way to `reaper.gunicorn.ASGIWorker` "
    "and `ThreadWorker`; with `-k uvicorn.workers.UvicornWorker` the worker stays, and the "
    "row of uvicorn holds for the uvicorn in it. `Worker.init_process` is wrapped to say "
    "where the worker listens",
    page="gunicorn",
    promised=OUR_LOOPS,
    spared=SPARED,
    own={"keep_alive": "--keep-alive, 2s unless given"},
    note="with the workers asgi, gthread and uvicorn's; the others from outside",
    below=("uvicorn", "uvicorn_worker"),
)
