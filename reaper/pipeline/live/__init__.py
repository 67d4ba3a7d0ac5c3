"""Journals that grow, followed with Structured Streaming.

One rule: *nothing is lost or doubled, whatever stops it*. Read `feed` (files in steps),
`tables` (the two queries), `run` (the loop), `status` and `page` (what is shown),
`command`.
"""
