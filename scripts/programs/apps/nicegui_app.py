from __future__ import annotations

import sys

from nicegui import ui

ui.label("ok")
ui.run(host="127.0.0.1", port=int(sys.argv[1]), reload=False, show=False)
