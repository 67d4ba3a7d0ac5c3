from __future__ import annotations

import streamlit

streamlit.write("ok")
