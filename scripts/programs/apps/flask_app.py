from __future__ import annotations

from flask import Flask
from wsgi import app as answers  # type: ignore[import-not-found]

app = Flask(__name__)
app.wsgi_app = answers  # type: ignore[method-assign]  # as a middleware takes its place
