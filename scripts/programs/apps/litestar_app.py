from __future__ import annotations

from asgi import app as answers  # type: ignore[import-not-found]
from litestar import Litestar, asgi

app = Litestar([asgi("/", is_mount=True)(answers)])
