from __future__ import annotations

from bokeh.io import curdoc
from bokeh.models import Div

curdoc().add_root(Div(text="ok"))
