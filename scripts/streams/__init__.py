"""Quiet streams behind nginx and HAProxy: which are cut, and when a proxy lets go of
one whose reader has left.

*Only the readers and the server's kernel judge.* `python -m scripts.streams` measures
the table of docs/howto/streams.md; the campaign's trial "quiet streams" is made of the
same parts.
"""
