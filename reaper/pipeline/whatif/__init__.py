"""A journal replayed under other settings.

One rule: *each figure says how it is known*: exact, bounded, estimated or refused. Read
`settings` (what is asked), `replay` (the silences in Spark), `run`, `command`.
"""
