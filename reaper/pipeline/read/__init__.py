"""Files as frames.

One rule: *a file is taken whole, or put aside with a reason*. Read `inputs` (the
check), `runs` (whose files they are, and on which clock), `frames` (events, one row per
connection), `command`.
"""
