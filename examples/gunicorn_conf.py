"""gunicorn with the guarded worker:
`gunicorn examples.fastapi_app:app -c examples/gunicorn_conf.py`.
"""

from __future__ import annotations

worker_class = "reaper.gunicorn.UvicornWorker"
workers = 2
# longer than what stands in front keeps a connection; `timeouts.keep_alive` would win
# over it
keepalive = 65
