from __future__ import annotations

import sys

import dash

app = dash.Dash()
app.layout = dash.html.Div("ok")
app.run(host="127.0.0.1", port=sys.argv[1])
