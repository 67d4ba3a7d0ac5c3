from __future__ import annotations

from asgi import app as answers  # type: ignore[import-not-found]
from quart import Quart

app = Quart(__name__)
app.asgi_app = answers  # type: ignore[method-assign]  # as a middleware takes its place
