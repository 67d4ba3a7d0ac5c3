"""The servers that `reaper run` guards from inside.

One rule: *what a server can be told is told, and only the rest is wrapped*. uvicorn has
a setting for it (`http=`), gunicorn another (the worker class), websockets a third
(`create_connection=`). Where a server has none, the one method that meets every
connection is wrapped.

What a guest may change in each is in `changes.py` of that server's room in
`reaper.servers`: in the process that imported the server, and only after each of the
names that it lists has been found (`servers.guest`).
"""

from __future__ import annotations

from ..servers.aiohttp import changes as aiohttp
from ..servers.anyio import changes as anyio
from ..servers.guest import Guest
from ..servers.gunicorn import changes as gunicorn
from ..servers.hypercorn import changes as hypercorn
from ..servers.sanic import changes as sanic
from ..servers.tornado import changes as tornado
from ..servers.twisted import changes as twisted
from ..servers.uvicorn import changes as uvicorn
from ..servers.websockets import changes as websockets

SERVERS: tuple[Guest, ...] = (
    *uvicorn.GUESTS,
    *gunicorn.GUESTS,
    *aiohttp.GUESTS,
    *sanic.GUESTS,
    *hypercorn.GUESTS,
    *tornado.GUESTS,
    *twisted.GUESTS,
    *websockets.GUESTS,
    *anyio.GUESTS,
)
"""Every server, in the order of docs/run.md. A server that is changed in two modules
stands here twice. `hook/sitecustomize.py` holds the names of the modules once more.
"""
