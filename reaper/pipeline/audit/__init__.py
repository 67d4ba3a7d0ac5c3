"""Was every reap right?

One rule: *each connection has exactly one verdict, and each row is counted*. Read `verdicts` (the
law as one expression), `joined` (both sides of a connection), `run`, `command`.
"""
