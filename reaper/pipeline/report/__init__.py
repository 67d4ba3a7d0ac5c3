"""Audit and advice as one page.

One rule: *the verdict in ten seconds, the evidence by scrolling*. Read `run` (the
figures and the page), `command`.
"""
