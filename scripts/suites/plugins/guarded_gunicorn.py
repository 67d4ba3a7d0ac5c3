"""A plugin of pytest for gunicorn's own tests, which runs in their process, below
`reaper run`.

`reaper run` guards a worker that gunicorn is told by name. The tests import the class
and call its methods, so the classes are replaced before a test imports them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gunicorn.config  # noqa: F401  # this makes `reaper run` import what follows

ours = import_module("_idle_reaper.gunicorn")
workers: Any = import_module("gunicorn.workers.gasgi")
workers.ASGIWorker = ours.ASGIWorker
workers = import_module("gunicorn.workers.gthread")
workers.ThreadWorker = ours.ThreadWorker
