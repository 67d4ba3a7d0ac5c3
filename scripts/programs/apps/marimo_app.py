from __future__ import annotations

import marimo

app = marimo.App()
app.cell(lambda: "ok")
