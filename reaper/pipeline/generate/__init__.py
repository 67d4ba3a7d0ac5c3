"""Journals of any size, right or with faults planted.

One rule: *same arguments, same bytes*. Read `habits` (the clients), `loop` (the server), `faults`, `writer`, `files`,
`run`, `command`.
"""
