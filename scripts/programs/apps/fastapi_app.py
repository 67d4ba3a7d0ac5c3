from __future__ import annotations

from asgi import app as answers  # type: ignore[import-not-found]
from fastapi import FastAPI

app = FastAPI()
app.mount("/", answers)
