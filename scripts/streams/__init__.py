"""Quiet streams behind nginx and HAProxy: which are cut, and when a proxy lets go of
one whose reader has left.

*Only the readers and the server's kernel judge.* `python -m scripts.streams` measures
the table of docs/howto/streams.md; the campaign's trial "quiet streams" is made of the
same parts.

The readers are the load generator's clients. Those that leave do so by an act of their
own, all at one instant: some have a network namespace of their own, and vanish with its
link.
"""
