from __future__ import annotations

import sys

import gradio

gradio.Interface(str.upper, "text", "text").launch(
    server_name="127.0.0.1", server_port=int(sys.argv[1])
)
